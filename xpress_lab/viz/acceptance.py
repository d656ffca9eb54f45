"""Figures of acceptance, convergence and cost, from tidy frames.

Each function takes a data frame that :mod:`xpress_lab.benchmarks` makes and returns
a new figure. Bars carry 95 % intervals; lines are named at their ends.
"""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from xpress_lab.benchmarks.tables import POOLED, labelled
from xpress_lab.statistics import slot_acceptance
from xpress_lab.viz.labels import in_families, name_benchmarks, name_ends
from xpress_lab.viz.style import (
    INK,
    MUTED,
    STAGE_COLOURS,
    in_order,
    label_of,
    look_of,
    passes_of,
    split_arm,
    tint,
)

TAU_LABEL = "tau: tokens per verification"
FEW_BLOCKS = 15  # a share of fewer blocks than this is noise and is not drawn
MANY_BARS = 16  # more of them in a panel, and panels stand above each other
HALO = withStroke(linewidth=3.4, foreground="white")  # shows a line on dark bars too


def tau_bars(lines: pd.DataFrame, arms: Sequence[str] | None = None) -> Figure:
    """Tau by benchmark and arm, a panel per temperature.

    Args:
        lines: from :func:`xpress_lab.benchmarks.tables.summary`.
        arms: which, in order; by default all but ``ar``, whose tau is 1.
    """
    fig, axes = _bars(lines, "tau", arms)
    for ax in axes:
        ax.axhline(1, color=look_of("ar").colour, linestyle=":", linewidth=1.4)
    axes[0].set_ylabel(TAU_LABEL)
    return fig


def speed_bars(lines: pd.DataFrame, arms: Sequence[str] | None = None) -> Figure:
    """Speed-up over plain decoding, measured by the clock; arguments as above."""
    fig, axes = _bars(lines, "speedup", arms)
    for ax in axes:
        ax.axhline(1, color=look_of("ar").colour, linestyle=":", linewidth=1.4)
    axes[0].set_ylabel("speed-up over plain decoding")
    return fig


def tau_by_passes(
    lines: pd.DataFrame,
    reference: pd.DataFrame | None = None,
    benchmark: str = POOLED,
) -> Figure:
    """Tau against the number of Jacobi passes K, a panel per temperature.

    Args:
        lines: summary lines with arms ``xpress K=0``, ``xpress K=1`` and so on.
        reference: summary lines with ``dflash`` and ``markov``, drawn as level lines;
            by default those among ``lines``.
        benchmark: which lines of either frame.
    """
    reference = lines if reference is None else reference
    lines = lines[lines["benchmark"] == benchmark]
    lines = lines.assign(K=[passes_of(arm) for arm in lines["arm"]])
    whole = ~lines["arm"].str.contains(" cut | scheduled")
    lines = lines[lines["arm"].str.startswith("xpress ") & lines["K"].notna() & whole]
    fig, axes = panels(lines, width=5.6)
    drawn = list(zip(axes, lines.groupby("temperature"), strict=True))
    ends = {ax: [] for ax in axes}
    for ax, (temperature, at) in drawn:
        at, look = at.sort_values("K"), look_of("xpress")
        ax.fill_between(
            at["K"].astype(float),
            at["tau_low"],
            at["tau_high"],
            color=tint(look.colour, 0.22),
            linewidth=0,
        )
        ax.plot(at["K"], at["tau"], color=look.colour, marker=look.marker, ms=4.5)
        ends[ax].append((at["tau"].iloc[-1], look.label, look.colour))
        for line in _levels(reference, benchmark, temperature):
            look = look_of(line.arm)
            ax.axhline(line.tau, color=look.colour, linestyle=look.line)
            ends[ax].append((line.tau, look.label, look.colour))
        ax.set_xlabel("Jacobi passes K")
        ax.set_xticks(_few(at["K"].max()))
        ax.margins(x=0.02)
    for ax in axes:  # the panels share their limits, known only now
        name_ends(ax, ends[ax])
    axes[0].set_ylabel(TAU_LABEL)
    return fig


def slot_curves(rows: pd.DataFrame, conditional: bool = False) -> Figure:
    """Acceptance by slot, a line per arm and a panel per temperature.

    Args:
        rows: tidy rows of the runner.
        conditional: the share among verifications that accepted all slots before;
            else among all verifications, which can only fall from slot to slot.
    """
    rows = labelled(rows)
    rows = rows[rows["block_size"] > 1]
    fig, axes = panels(rows, width=5.4)
    for ax, (_, at) in zip(axes, rows.groupby("temperature"), strict=True):
        ends, last = [], []
        for arm in in_order(at["arm"]):
            texts, look = at[at["arm"] == arm], look_of(arm)
            share = slot_acceptance(texts)
            if conditional:
                before = np.concatenate([[1.0], share[:-1]])
                enough = before * texts["verify_steps"].sum() >= FEW_BLOCKS
                before[~enough] = np.nan
                share = share / before
            ax.plot(
                np.arange(1, len(share) + 1),
                share,
                color=look.colour,
                marker=look.marker,
                linestyle=look.line,
                ms=4.5,
            )
            known = np.flatnonzero(~np.isnan(share))
            ends.append((share[known[-1]], label_of(arm), look.colour))
            last.append(known[-1] + 1)
        ax.set_ylim(0, 1.03)
        name_ends(ax, ends, leave=last)
        ax.set_xlabel("slot in the block")
        ax.set_xticks(range(1, len(share) + 1, 2))
    what = "accepted, if all before were" if conditional else "accepted up to this slot"
    axes[0].set_ylabel(f"share of blocks {what}")
    return fig


def convergence_curve(blocks: pd.DataFrame, slots: int | None = None) -> Figure:
    """Share of blocks that are final, by pass.

    Args:
        blocks: one row per block with ``final_pass``, the first pass whose tokens
            equal the fixed point (0 if the seed does), and perhaps ``read_pass``,
            the same for the slots that the target reads (see
            :func:`xpress_lab.benchmarks.convergence.read_pass`).
        slots: B - 1, the number of passes that always suffice.
    """
    last = slots or int(blocks["final_pass"].max())
    passes, look = np.arange(last + 1), look_of("xpress")
    curves = {"read_pass": ("the part that the target reads", "-", 1.0)}
    curves |= {"final_pass": ("the whole block", "--", 0.65)}
    fig, ax = plt.subplots(figsize=(6.8, 3.4))
    for column, (label, line, strength) in curves.items():
        if column in blocks:
            share = [(blocks[column] <= p).mean() for p in passes]
            colour = tint(look.colour, strength)
            style = {"color": colour, "marker": look.marker, "ms": 4.5}
            ax.plot(passes, share, line, label=label, **style)
    ax.axhline(1, color=MUTED, linewidth=0.8)
    ax.set_ylim(0, 1.05)
    ax.set_yticks(np.linspace(0, 1, 5), [f"{y:.0%}" for y in np.linspace(0, 1, 5)])
    ax.set_xticks(_few(last))
    ax.set_xlabel("Jacobi passes made")
    ax.set_ylabel("share of blocks that are final")
    ax.legend(loc="lower right")
    return fig


def stage_bars(costs: pd.DataFrame) -> Figure:
    """Milliseconds of a round by stage, beside the plain decoding step.

    Args:
        costs: from :func:`xpress_lab.benchmarks.tables.stage_costs`. A method pays
            off where its bar, divided by tau, ends left of the dotted line.
    """
    costs = costs[costs["arm"] != "ar"]
    stages = {s: c for s, c in STAGE_COLOURS.items() if costs[f"{s}_ms"].any()}
    temperatures = sorted(costs["temperature"].unique())
    count = costs["arm"].nunique()
    size = (9.2, 0.9 + (0.5 * count + 0.7) * len(temperatures))
    fig, axes = plt.subplots(
        len(temperatures), 1, figsize=size, sharex=True, squeeze=False
    )
    for ax, temperature in zip(axes[:, 0], temperatures, strict=True):
        at = costs[costs["temperature"] == temperature].set_index("arm")
        at = at.loc[in_order(at.index)].reset_index()
        left = np.zeros(len(at))
        names = [label_of(arm) for arm in at["arm"]]
        for stage, colour in stages.items():
            ms = at[f"{stage}_ms"].to_numpy()
            ax.barh(names, ms, left=left, color=colour, height=0.62, label=stage)
            left = left + ms
        for y, line in enumerate(at.itertuples()):
            ax.text(
                line.round_ms,
                y,
                f"  {line.round_ms:.2f} ms / tau {line.tau:.2f}"
                f" = {line.round_ms / line.tau:.2f} ms a token",
                va="center",
                fontsize=9,
            )
        step = at["ar_step_ms"].iloc[0]
        ax.axvline(step, color=INK, linestyle=":", linewidth=1.6, path_effects=[HALO])
        ax.text(
            step,
            -0.62,
            f" plain step {step:.2f} ms = 1 token",
            fontsize=9,
            va="bottom",
            color=INK,
        )
        ax.set_xlim(0, costs["round_ms"].max() * 1.75)
        ax.set_ylim(count - 0.5, -1.05)
        ax.grid(False, axis="y")
        ax.set_title(f"T = {temperature:g}")
    axes[-1, 0].set_xlabel("milliseconds per round")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper right", ncols=len(handles))
    return fig


def _bars(lines: pd.DataFrame, value: str, arms: Sequence[str] | None):
    """Grouped bars with intervals: benchmarks along, arms side by side."""
    arms = list(arms or in_order(set(lines["arm"]) - {"ar"}))
    benchmarks = in_families(lines["benchmark"].unique())
    width, bars = 0.8 / len(arms), len(benchmarks) * len(arms)
    fig, axes = panels(lines, width=max(4.4, 0.42 * bars), stacked=bars > MANY_BARS)
    for ax, (_, at) in zip(axes, lines.groupby("temperature"), strict=True):
        for number, arm in enumerate(arms):
            own = at[at["arm"] == arm].set_index("benchmark").reindex(benchmarks)
            x = np.arange(len(benchmarks)) + (number - (len(arms) - 1) / 2) * width
            look, strength = look_of(arm), _strength(arm, arms)
            spread = [
                own[value] - own[f"{value}_low"],
                own[f"{value}_high"] - own[value],
            ]
            ax.bar(
                x,
                own[value],
                width * 0.92,
                color=tint(look.colour, strength),
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.5,
                yerr=np.array(spread).clip(0),
                error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
                label=label_of(arm),
            )
            for place, high, y in zip(x, own[f"{value}_high"], own[value], strict=True):
                if np.isfinite(y):
                    ax.annotate(
                        f"{y:.2f}",
                        (place, high),
                        xytext=(0, 2),
                        textcoords="offset points",
                        ha="center",
                        fontsize=7.5 if len(arms) <= 4 else 6.5,
                    )
        name_benchmarks(ax, benchmarks, many=4 if bars <= MANY_BARS else 8)
        ax.grid(False, axis="x")
        ax.margins(x=0.02, y=0.08)
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=len(arms))
    return fig, axes


def _strength(arm: str, arms: Sequence[str]) -> float:
    """Several K of one method share its colour, the later ones stronger."""
    family = [other for other in arms if split_arm(other)[0] == split_arm(arm)[0]]
    return 0.4 + 0.6 * (family.index(arm) + 1) / len(family)


def panels(
    frame: pd.DataFrame, width: float, stacked: bool = False
) -> tuple[Figure, list[Axes]]:
    """One titled panel per temperature, sharing the vertical axis; beside each other,
    or one above the other where they are wide."""
    temperatures = sorted(frame["temperature"].unique())
    count = len(temperatures)
    rows, columns = (count, 1) if stacked else (1, count)
    size = (min(width * columns, 12), (2.9 if stacked else 3.6) * rows)
    fig, axes = plt.subplots(rows, columns, figsize=size, sharey=True, squeeze=False)
    for ax, temperature in zip(axes.flat, temperatures, strict=True):
        kind = "greedy" if temperature == 0 else "sampling"
        ax.set_title(f"T = {temperature:g} ({kind})")
    return fig, list(axes.flat)


def _levels(reference: pd.DataFrame, benchmark: str, temperature: float) -> list:
    """Lines of the arms without passes."""
    at = reference[
        (reference["benchmark"] == benchmark)
        & (reference["temperature"] == temperature)
        & reference["arm"].isin(["dflash", "markov"])
    ]
    return list(at.itertuples())


def _few(last: float) -> list[int]:
    """Whole-number ticks from 0 to ``last``, not too many."""
    step = 1 if last <= 8 else 2 if last <= 20 else 5
    return list(range(0, int(last) + 1, step))
