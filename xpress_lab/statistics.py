"""Acceptance statistics: which tau is meant, and how sure we are of it.

Three averages are in use and differ (methods 6.1); each has its own function here.
All take the tidy rows of the benchmark runner, one row per generated text.

- :data:`tau_pooled`: tokens emitted / verifications, over all texts. Tokens past a
  stop id or the budget are not counted. Headline figures use this one.
- :data:`tau_per_step`: mean over verifications of accepted drafts + 1, as the target
  judged them, before any cut at a stop.
- :func:`tau_per_response`: mean over texts of each text's own tau.

The first token of a text comes from the prefill and belongs to no verification.
Acceptance *rate* is accepted / proposed drafts, a different number: 3.1 tokens a
step from 15 drafts is a rate of 0.14.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import pandas as pd


class Interval(NamedTuple):
    """An estimate, and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Ratio:
    """A pooled statistic: one column's sum over another's.

    over, under: map rows to one number a text. Call it with rows for the value.
    """

    over: Callable[[pd.DataFrame], pd.Series]
    under: Callable[[pd.DataFrame], pd.Series]

    def __call__(self, rows: pd.DataFrame) -> float:
        over, under = (part(rows).sum(skipna=False) for part in (self.over, self.under))
        return float(over / under)

    def resampled(self, rows: pd.DataFrame, weights: np.ndarray) -> np.ndarray:
        """The value for each row of ``weights`` ``[draws, texts]``."""
        over, under = self.over(rows).to_numpy(), self.under(rows).to_numpy()
        return (weights @ over) / (weights @ under)


tau_pooled = Ratio(
    lambda rows: rows["new_tokens"] - 1, lambda rows: rows["verify_steps"]
)
tau_per_step = Ratio(
    lambda rows: rows["accepted"] + rows["verify_steps"],
    lambda rows: rows["verify_steps"],
)
# ``nan`` for texts that shared a batch, whose times are not their own.
tokens_per_second = Ratio(
    lambda rows: rows["new_tokens"] - 1, lambda rows: rows["decode_seconds"]
)


def tau_per_response(rows: pd.DataFrame) -> float:
    """Mean over texts of their own tau."""
    return rows["tau"].mean()


def acceptance_rate(rows: pd.DataFrame) -> float:
    """Accepted / proposed drafts; ``nan`` for plain decoding, which proposes none."""
    proposed = rows["proposed"].sum()
    return rows["accepted"].sum() / proposed if proposed else float("nan")


def slot_acceptance(rows: pd.DataFrame) -> np.ndarray:
    """Share of verifications that accepted at least slot k, k = 1..B-1."""
    reached = np.sum([json.loads(cell) for cell in rows["accepted_per_slot"]], axis=0)
    return reached / rows["verify_steps"].sum()


def bootstrap(
    rows: pd.DataFrame, statistic: Ratio, draws: int = 1000, seed: int = 0
) -> Interval:
    """95 % percentile interval, resampling texts (not steps, which are correlated)."""
    values = statistic.resampled(rows, _weights(len(rows), draws, seed))
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return Interval(statistic(rows), float(low), float(high))


def paired_ratio(
    rows: pd.DataFrame,
    baseline: pd.DataFrame,
    statistic: Ratio,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """Ratio of a pooled statistic between two methods on the texts they share.

    Both sides are resampled with the same texts, so that hard prompts cancel.
    """
    left, right = shared_texts(rows, baseline)
    weights = _weights(len(left), draws, seed)
    values = statistic.resampled(left, weights) / statistic.resampled(right, weights)
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return Interval(statistic(left) / statistic(right), float(low), float(high))


def benchmark_mean(
    rows: pd.DataFrame,
    baseline: pd.DataFrame | None = None,
    statistic: Ratio = tau_pooled,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """Mean over benchmarks of a pooled statistic, each benchmark counting the same.

    With a ``baseline``: the ratio of the two means, on the texts that both have. The
    interval resamples texts within each benchmark.
    """

    def mean(side: pd.DataFrame) -> np.ndarray:  # the value, then each resample's
        values = [
            [statistic(t), *statistic.resampled(t, _weights(len(t), draws, seed))]
            for _, t in side.groupby("benchmark")
        ]
        return np.mean(values, axis=0)

    if baseline is None:
        found = mean(rows)
    else:
        ours, theirs = shared_texts(rows, baseline)
        found = mean(ours) / mean(theirs)
    low, high = np.nanpercentile(found[1:], [2.5, 97.5])
    return Interval(float(found[0]), float(low), float(high))


def shared_texts(
    rows: pd.DataFrame, baseline: pd.DataFrame
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of two methods for the same texts, in the same order."""
    on = ["benchmark", "prompt_id", "seed"]
    left, right = rows.set_index(on), baseline.set_index(on)
    shared = left.index.intersection(right.index)
    return left.loc[shared], right.loc[shared]


def _weights(texts: int, draws: int, seed: int) -> np.ndarray:
    """How often each text is drawn in each resample, ``[draws, texts]``."""
    random = np.random.default_rng(seed)
    return random.multinomial(texts, [1 / texts] * texts, size=draws)


def token_hash(tokens: list) -> str:
    """Twelve hex digits that tell the ids of a text, or of several, from others."""
    return blake2b(repr(tokens).encode(), digest_size=6).hexdigest()


def longest_run(tokens: list[int]) -> int:
    """Length of the longest run of one repeated token."""
    longest = run = 1 if tokens else 0
    for before, now in zip(tokens, tokens[1:], strict=False):
        run = run + 1 if now == before else 1
        longest = max(longest, run)
    return longest


def degenerate(rows: pd.DataFrame) -> pd.Series:
    """Which texts go round in circles: under half of their 3-grams are distinct, or one
    token stands 16 times in a row. Such texts are easy to draft and flatter every tau.
    """
    return (rows["distinct_3"] < 0.5) | (rows["longest_run"] >= 16)


def distinct_n(tokens: list[int], n: int = 3) -> float:
    """Share of n-grams that are distinct: 1 is no repetition, near 0 degenerate."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
