"""Tables in the paper's layout, from tidy rows."""

import json
from functools import cache

import pandas as pd

from xpress_lab.benchmarks.rows import ARM
from xpress_lab.decoding import STAGES
from xpress_lab.errors import LabError
from xpress_lab.presets import SCHEDULED, TREES, data_folder
from xpress_lab.statistics import (
    Interval,
    Ratio,
    acceptance_rate,
    benchmark_mean,
    bootstrap,
    degenerate,
    paired_ratio,
    shared_texts,
    tau_per_response,
    tau_per_step,
    tau_pooled,
    tokens_per_second,
)

POOLED = "all"


def method_label(
    method: str,
    passes: str,
    rescoring: str = "",
    budget: int | None = None,
    confidence: float = 0.0,
) -> str:
    """``xpress K=6``, ``xpress fixed point``, ``xpress+ddtree paths M=32``,
    ``xpress K=6 cut 0.4``, ``xpress K=6 scheduled``, ``ar``.

    ``marginals`` are the rule and go unsaid; only trees have a budget to choose.
    """
    words = [method]
    if rescoring not in ("", "marginals"):
        words.append(rescoring)
    if passes:
        words.append("fixed point" if passes == "fixed" else f"K={passes}")
    if method in TREES:
        words.append(f"M={budget}")
    if confidence == SCHEDULED:
        words.append("scheduled")
    elif confidence:
        words.append(f"cut {confidence:g}")
    return " ".join(words)


def labelled(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with an ``arm`` column, in the order in which arms appear."""
    settings = [rows[c] for c in ARM]
    arms = [method_label(*row) for row in zip(*settings, strict=True)]
    return rows.assign(arm=arms)


def summary(rows: pd.DataFrame, baseline: str = "ar") -> pd.DataFrame:
    """One line per temperature, benchmark and arm, pooled over texts.

    Columns: the three taus with the pooled one's interval, the share of texts that go
    in circles (which flatter a tau), acceptance rate, speed, and speed-up over
    ``baseline`` on the same texts (``nan`` without it).
    """
    rows = labelled(rows)
    lines = []
    for temperature, at in rows.groupby("temperature"):
        groups = [(POOLED, at), *at.groupby("benchmark")]
        for name, group in groups:
            base = group[group["arm"] == baseline]
            for arm, texts in group.groupby("arm", sort=False):
                tau = bootstrap(texts, tau_pooled)
                timed = len(base) and texts["decode_seconds"].notna().all()
                speed = paired_ratio(texts, base, tokens_per_second) if timed else None
                lines.append(
                    {
                        "temperature": temperature,
                        "benchmark": name,
                        "arm": arm,
                        "texts": len(texts),
                        "tau": tau.value,
                        "tau_low": tau.low,
                        "tau_high": tau.high,
                        "tau_per_step": tau_per_step(texts),
                        "tau_per_response": tau_per_response(texts),
                        "degenerate": degenerate(texts).mean(),
                        "acceptance_rate": acceptance_rate(texts),
                        "tokens_per_second": tokens_per_second(texts),
                        "speedup": speed.value if speed else float("nan"),
                        "speedup_low": speed.low if speed else float("nan"),
                        "speedup_high": speed.high if speed else float("nan"),
                    }
                )
    return pd.DataFrame(lines)


def readable(lines: pd.DataFrame) -> pd.DataFrame:
    """What of :func:`summary` fits a screen, with intervals as ``[low, high]``."""
    shown = lines[["temperature", "benchmark", "arm", "texts"]].copy()
    for name, heading in (("tau", "tau"), ("speedup", "speed-up")):
        values = lines[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        shown[heading] = [
            "–" if pd.isna(value) else f"{value:.2f} [{low:.2f}, {high:.2f}]"
            for value, low, high in values
        ]
    shown.insert(5, "in circles", lines["degenerate"].map("{:.0%}".format))
    return shown.rename(columns={"temperature": "T"})


def paper_layout(lines: pd.DataFrame, temperature: float) -> pd.DataFrame:
    """Benchmarks down, arms across, ``speed-up / tau`` in the cells; tau alone where
    nothing was timed.
    """
    at = lines[lines["temperature"] == temperature]
    if at.empty:
        raise LabError(f"No rows at temperature {temperature} in these results.")
    timed = at["speedup"].notna().any()
    cells = [
        (f"{'–' if pd.isna(s) else f'{s:.2f}x'} / " if timed else "") + f"{t:.2f}"
        for s, t in zip(at["speedup"], at["tau"], strict=True)
    ]
    table = at.assign(cell=cells).pivot(index="benchmark", columns="arm", values="cell")
    return table[at["arm"].unique()].loc[at["benchmark"].unique()]


def tau_gains(rows: pd.DataFrame, pairs: list[tuple[str, str]]) -> pd.DataFrame:
    """Ratio of pooled tau between two arms on the same texts, with its interval.

    Args:
        pairs: ``(arm, over)`` labels as in :func:`method_label`.
    """
    rows = labelled(rows)
    lines = []
    for temperature, at in rows.groupby("temperature"):
        arms = dict(list(at.groupby("arm")))
        for arm, over in pairs:
            ratio = paired_ratio(arms[arm], arms[over], tau_pooled)
            lines.append(
                {
                    "temperature": temperature,
                    "arm": arm,
                    "over": over,
                    "texts": len(arms[arm]),
                    "ratio": ratio.value,
                    "low": ratio.low,
                    "high": ratio.high,
                }
            )
    return pd.DataFrame(lines)


def means(rows: pd.DataFrame, baseline: str = "dflash") -> pd.DataFrame:
    """Tau by temperature and arm, a mean in which each benchmark counts the same.

    Columns: tau, and its ratio to ``baseline``'s on the same texts, each with an
    interval; degenerate (share of texts that go in circles), and tau and ratio of
    the other texts (``calm_``).
    """
    rows = labelled(rows)
    lines = []
    for temperature, at in rows.groupby("temperature"):
        calm = at[~degenerate(at)]
        for arm in at["arm"].unique():
            line = {"temperature": temperature, "arm": arm}
            for prefix, texts in (("", at), ("calm_", calm)):
                own, base = (texts[texts["arm"] == a] for a in (arm, baseline))
                line |= _named(f"{prefix}tau", benchmark_mean(own))
                line |= _named(f"{prefix}gain", benchmark_mean(own, base))
            share = degenerate(at[at["arm"] == arm]).mean()
            lines.append(line | {"degenerate": share})
    return pd.DataFrame(lines)


def _named(name: str, found: Interval) -> dict[str, float]:
    return {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}


def tau_by_context(rows: pd.DataFrame) -> pd.DataFrame:
    """Pooled tau by length of the context (prompt and answer so far).

    Columns: temperature, arm, context (tokens, start of a stretch), rounds, tau.
    """
    lines = [
        {"temperature": row.temperature, "arm": row.arm, "context": start,
         "rounds": rounds, "emitted": emitted}
        for row in labelled(rows).itertuples()
        for start, rounds, emitted in json.loads(row.rounds_by_context)
    ]  # fmt: skip
    keys = ["temperature", "arm", "context"]
    table = pd.DataFrame(lines).groupby(keys, sort=False).sum().reset_index()
    table["tau"] = table["emitted"] / table["rounds"]
    return table.drop(columns="emitted").sort_values(keys)


@cache
def published() -> pd.DataFrame:
    """The paper's own table: Qwen3-8B, one H200, batch 1 (data/published.csv)."""
    return pd.read_csv(data_folder() / "published.csv", comment="#")


@cache
def published_passes() -> pd.DataFrame:
    """The paper's tau by K at T=0, read off its figure; Markov's as passes "markov"."""
    return pd.read_csv(data_folder() / "published-passes.csv", comment="#")


@cache
def published_batches() -> pd.DataFrame:
    """The authors' tokens a second in vLLM by batch size, greedy."""
    return pd.read_csv(data_folder() / "published-batches.csv", comment="#")


def published_layout(temperature: float) -> pd.DataFrame:
    """The paper's figures in the same layout."""
    at = published()
    at = at[at["temperature"] == temperature]
    cells = [
        f"{s:.1f}x / {t:.2f}" for s, t in zip(at["speedup"], at["tau"], strict=True)
    ]
    table = at.assign(cell=cells).pivot(
        index="benchmark", columns="method", values="cell"
    )
    return table.loc[at["benchmark"].unique()]


def stage_costs(rows: pd.DataFrame) -> pd.DataFrame:
    """Milliseconds a round by stage, and the cost model beside the clock.

    A stage's cost is its whole time over all rounds, so that the stages of a round
    add up. ``predicted`` = tau x AR step / (draft + refine + verify + accept) from
    those; ``clock`` is the ratio of times measured around the whole loop, prefill
    taken off, so it also holds what no stage counts. Means on both sides: tau is one,
    and a median of a skewed time times a mean is neither. Only texts that plain
    decoding ran too are used. ``median_ms`` and ``spread`` (interquartile range over
    median) are of a round's cost from text to text. ``break_even_tau`` is the tau
    under which speculation is slower than none.
    """
    rows = labelled(rows)
    stages = list(STAGES)
    lines = []
    for temperature, at in rows.groupby("temperature"):
        plain = at[at["arm"] == "ar"]
        for arm, texts in at.groupby("arm", sort=False):
            texts, beside = shared_texts(texts, plain)
            cost = {s: round_cost(texts, [s]) for s in stages}
            ar_step, tau = round_cost(beside, stages), tau_pooled(texts)
            round_ms = sum(cost.values())
            each = _milliseconds(texts, stages)
            low, middle, high = each.quantile([0.25, 0.5, 0.75])
            lines.append(
                {
                    "temperature": temperature,
                    "arm": arm,
                    **{f"{s}_ms": cost[s] for s in stages},
                    "round_ms": round_ms,
                    "median_ms": middle,
                    "spread": (high - low) / middle,
                    "ar_step_ms": ar_step,
                    "break_even_tau": round_ms / ar_step,
                    "tau": tau,
                    "predicted": tau * ar_step / round_ms,
                    "clock": clocked_speed(texts) / clocked_speed(beside),
                }
            )
    return pd.DataFrame(lines)


# Tokens a second by the clock around the loop, prefill taken off.
clocked_speed = Ratio(
    lambda rows: rows["new_tokens"] - 1,
    lambda rows: rows["wall_seconds"] - rows["prefill_seconds"],
)


def round_cost(rows: pd.DataFrame, stages: list[str]) -> float:
    """Mean milliseconds of a round that went into these stages."""
    weight = rows["verify_steps"]
    return float((_milliseconds(rows, stages) * weight).sum() / weight.sum())


def _milliseconds(rows: pd.DataFrame, stages: list[str]) -> pd.Series:
    """Each text's own mean of a round's time in these stages."""
    seconds = rows[[f"{stage}_seconds" for stage in stages]].sum(axis=1)
    return seconds / rows["verify_steps"] * 1e3
