"""Acceptance statistics: which tau is meant, and how sure we are of it.

Three averages are in use and differ (methods 6.1); each has its own function here.
All take the tidy rows of the benchmark runner, one row per generated text.

- :func:`tau_pooled`: tokens emitted / verifications, over all texts. Tokens past a
  stop id or the budget are not counted. Headline figures use this one.
- :func:`tau_per_step`: mean over verifications of accepted drafts + 1, as the target
  judged them, before any cut at a stop.
- :func:`tau_per_response`: mean over texts of each text's own tau.

The first token of a text comes from the prefill and belongs to no verification.
Acceptance *rate* is accepted / proposed drafts, a different number: 3.1 tokens a
step from 15 drafts is a rate of 0.14.
"""

import json
from collections.abc import Callable
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


def tau_pooled(rows: pd.DataFrame) -> float:
    """Sum of emitted tokens over sum of verifications."""
    return (rows["new_tokens"] - 1).sum() / rows["verify_steps"].sum()


def tau_per_step(rows: pd.DataFrame) -> float:
    """Mean over verifications of accepted + 1, uncut."""
    return rows["accepted"].sum() / rows["verify_steps"].sum() + 1


def tau_per_response(rows: pd.DataFrame) -> float:
    """Mean over texts of their own tau."""
    return rows["tau"].mean()


def acceptance_rate(rows: pd.DataFrame) -> float:
    """Accepted / proposed drafts; ``nan`` for plain decoding, which proposes none."""
    proposed = (rows["verify_steps"] * (rows["block_size"] - 1)).sum()
    return rows["accepted"].sum() / proposed if proposed else float("nan")


def tokens_per_second(rows: pd.DataFrame) -> float:
    """Pooled: tokens after the prefill's over the loop's seconds."""
    return (rows["new_tokens"] - 1).sum() / rows["decode_seconds"].sum()


def slot_acceptance(rows: pd.DataFrame) -> np.ndarray:
    """Share of verifications that accepted at least slot k, k = 1..B-1."""
    reached = np.sum([json.loads(cell) for cell in rows["accepted_per_slot"]], axis=0)
    return reached / rows["verify_steps"].sum()


def bootstrap(
    rows: pd.DataFrame,
    statistic: Callable[[pd.DataFrame], float],
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """95 % percentile interval, resampling texts (not steps, which are correlated)."""
    random = np.random.default_rng(seed)
    numeric = rows.select_dtypes("number")
    values = [
        statistic(numeric.iloc[random.integers(len(numeric), size=len(numeric))])
        for _ in range(draws)
    ]
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return Interval(statistic(rows), float(low), float(high))


def paired_ratio(
    rows: pd.DataFrame,
    baseline: pd.DataFrame,
    statistic: Callable[[pd.DataFrame], float],
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """Ratio of a pooled statistic between two methods on the same texts.

    Both sides are resampled with the same texts, so that hard prompts cancel.
    """
    on = ["benchmark", "prompt_id", "seed"]
    left, right = (
        frame.set_index(on).select_dtypes("number") for frame in (rows, baseline)
    )
    shared = left.index.intersection(right.index)
    left, right = left.loc[shared], right.loc[shared]
    random = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        pick = random.integers(len(shared), size=len(shared))
        values.append(statistic(left.iloc[pick]) / statistic(right.iloc[pick]))
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return Interval(statistic(left) / statistic(right), float(low), float(high))


def longest_run(tokens: list[int]) -> int:
    """Length of the longest run of one repeated token."""
    longest = run = 1 if tokens else 0
    for before, now in zip(tokens, tokens[1:], strict=False):
        run = run + 1 if now == before else 1
        longest = max(longest, run)
    return longest


def distinct_n(tokens: list[int], n: int = 3) -> float:
    """Share of n-grams that are distinct: 1 is no repetition, near 0 degenerate."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0
