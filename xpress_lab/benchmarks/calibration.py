"""Does the confidence head say what happens? Its answers beside the target's.

The head is asked about every draft and nothing is cut, so that drafts which it would
have kept from the target are judged too. A draft is *reached* if all before it were
kept; only then does the target answer the question that the head was asked.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from tqdm import tqdm

from xpress_lab.block_method import BlockDrafting, BlockMethod
from xpress_lab.decoding import decode
from xpress_lab.lab import DEFAULT_PASSES, Lab, arm_method
from xpress_lab.sampling import Sampling
from xpress_lab.statistics import Ratio, paired_ratio, tau_pooled, tokens_per_second


class Observed(BlockDrafting):
    """Drafts as ever, cuts nothing, and notes what the head says of each draft."""

    def __init__(self, method: BlockMethod, capacity: int, said: list[list[float]]):
        super().__init__(method, capacity)
        self.said = said

    def counts(self, hidden, request, tokens) -> None:
        logits = self.sureness(hidden, request, tokens)
        self.said.append(logits[0].double().sigmoid().tolist())


def calibration(
    lab: Lab,
    kinds: Sequence[str],
    prompts: dict[str, list[str]],
    temperatures: Sequence[float] = (0.0, 1.0),
    seeds: Sequence[int] = (0,),
    max_new_tokens: int = 128,
) -> pd.DataFrame:
    """:func:`reliability` of the heads of some arms, with an ``arm`` column first."""
    tables = []
    for kind in kinds:
        how = kind, prompts, temperatures, DEFAULT_PASSES, max_new_tokens
        drafts = pd.concat([observe(lab, *how, seed) for seed in seeds])
        table = reliability(drafts)
        table.insert(0, "arm", kind)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def observe(
    lab: Lab,
    kind: str,
    prompts: dict[str, list[str]],
    temperatures: Sequence[float] = (0.0, 1.0),
    passes: int | None = DEFAULT_PASSES,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per draft of every round.

    Columns: temperature, benchmark, prompt_id, round, slot (from 1), confidence (the
    head's probability that the target keeps this draft once it is reached), survival
    (product of confidences up to it), reached and kept (booleans).
    """
    arm, said = lab.arm(kind, confidence=True), []
    method = arm_method(arm, lab.target, passes)
    method.begin = lambda capacity: Observed(method, capacity, said)
    rows = []
    for temperature in temperatures:
        for name, texts in prompts.items():
            progress = tqdm(texts, f"{kind} {name}", leave=False, disable=None)
            for number, prompt in enumerate(progress):
                said.clear()
                rounds = decode(
                    lab.target,
                    method,
                    lab.target.encode(prompt),
                    sampling=Sampling(temperature),
                    max_new_tokens=max_new_tokens,
                    seed=seed * 1_000_003 + number,
                ).rounds
                text = {"temperature": temperature, "benchmark": name}
                text["prompt_id"] = number
                rows += [text | draft for draft in _drafts(rounds, said)]
    return pd.DataFrame(rows)


def _drafts(rounds, said):
    """One record per draft of one text."""
    for index, (r, confidences) in enumerate(zip(rounds, said, strict=True)):
        survival = 1.0
        for slot, confidence in enumerate(confidences, 1):
            survival *= confidence
            yield {
                "round": index,
                "slot": slot,
                "confidence": confidence,
                "survival": survival,
                "reached": slot <= r.accepted + 1,
                "kept": slot <= r.accepted,
            }


def reliability(drafts: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """Predicted beside measured acceptance of reached drafts, by confidence.

    Columns: temperature, low and high (the bin's ends), drafts, predicted (mean
    confidence), measured (share kept), measured_low and measured_high (95 % Wilson
    interval). Empty bins are left out.
    """
    reached = drafts[drafts["reached"]]
    place = (reached["confidence"] * bins).astype(int).clip(upper=bins - 1)
    groups = reached.groupby(["temperature", place.rename("bin")])
    table = groups.agg(
        drafts=("kept", "size"),
        predicted=("confidence", "mean"),
        measured=("kept", "mean"),
    ).reset_index()
    low, high = wilson(table["measured"].to_numpy(), table["drafts"].to_numpy())
    ends = {"low": table["bin"] / bins, "high": (table["bin"] + 1) / bins}
    spread = {"measured_low": low, "measured_high": high}
    return table.assign(**ends, **spread).drop(columns="bin")


drafts_a_round = Ratio(lambda rows: rows["proposed"], lambda rows: rows["verify_steps"])


def cut_costs(rows: pd.DataFrame, method: str = "xpress") -> pd.DataFrame:
    """What cutting blocks at a confidence keeps, in units of the uncut method.

    Args:
        rows: of the runner, with arms of ``method`` at confidence 0 and above.

    Returns:
        A line per temperature and confidence: drafts, tau and speed over those of the
        uncut arm on the same texts, each with its interval (``_low``, ``_high``).
    """
    measures = {"drafts": drafts_a_round, "tau": tau_pooled, "speed": tokens_per_second}
    rows, lines = rows[rows["method"] == method], []
    for temperature, at in rows.groupby("temperature"):
        uncut = at[at["confidence"] == 0]
        for confidence, texts in at.groupby("confidence"):
            line = {"temperature": temperature, "confidence": confidence}
            for name, statistic in measures.items():
                value, low, high = paired_ratio(texts, uncut, statistic)
                line |= {name: value, f"{name}_low": low, f"{name}_high": high}
            lines.append(line)
    return pd.DataFrame(lines)


def wilson(share: np.ndarray, count: np.ndarray, z: float = 1.96):
    """Ends of Wilson's interval for a share of ``count`` draws; never beyond 0 or 1.

    Draws within a text are not independent, so that it is a little too narrow.
    """
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    spread = np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    half = z * spread / (1 + z**2 / count)
    return middle - half, middle + half


def scores(drafts: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """How good the head's answers are, a line per temperature.

    Columns: temperature, drafts (reached), predicted, measured, ece, brier, auroc.
    """
    reached = drafts[drafts["reached"]]
    return _scores(reached, "confidence", ["temperature"], bins)


def survival_scores(drafts: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """The same by slot for whole prefixes: is the product of confidences the share of
    rounds that keep at least so many drafts? As DSpark reports it (methods 3)."""
    return _scores(drafts, "survival", ["temperature", "slot"], bins)


def _scores(drafts, said: str, by: list[str], bins: int) -> pd.DataFrame:
    lines = []
    for key, group in drafts.groupby(by):
        p, kept = group[said].to_numpy(), group["kept"].to_numpy(dtype=float)
        lines.append(
            dict(zip(by, key, strict=True))
            | {
                "drafts": len(group),
                "predicted": p.mean(),
                "measured": kept.mean(),
                "ece": calibration_error(p, kept, bins),
                "brier": ((p - kept) ** 2).mean(),
                "auroc": auroc(p, kept),
            }
        )
    return pd.DataFrame(lines)


def calibration_error(p: np.ndarray, kept: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: |mean p - share kept| by bin of p, weighed by the
    bin's share of the drafts."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    gaps = np.bincount(place, p, bins) - np.bincount(place, kept, bins)
    return float(np.abs(gaps).sum() / len(p))


def auroc(p: np.ndarray, kept: np.ndarray) -> float:
    """Chance that a kept draft was given more than one that was not, ties counted
    half; ``nan`` if all fared alike."""
    good = int(kept.sum())
    bad = len(kept) - good
    if not good or not bad:
        return float("nan")
    ranks = pd.Series(p).rank().to_numpy()
    return float((ranks[kept > 0].sum() - good * (good + 1) / 2) / (good * bad))
