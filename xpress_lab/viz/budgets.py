"""Figures of token trees: what a budget buys, and what it costs."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xpress_lab.benchmarks.orthogonality import BOTH, PLANTED, PRODUCT, REFINED
from xpress_lab.benchmarks.tables import POOLED
from xpress_lab.presets import TREES
from xpress_lab.viz.acceptance import TAU_LABEL
from xpress_lab.viz.labels import name_ends
from xpress_lab.viz.style import INK, budget_of, in_order, label_of, look_of, split_arm

VALUES = {"tau": TAU_LABEL, "speedup": "speed-up over plain decoding"}
DODGE = 0.018  # of the axis' width, between error bars of one budget


def budget_curves(lines: pd.DataFrame, benchmark: str = POOLED) -> Figure:
    """tau and speed against the budget of a tree; chains as level lines.

    A column of panels per temperature; bars are 95 % intervals over texts.

    Args:
        lines: from :func:`xpress_lab.benchmarks.tables.summary`.
    """
    lines = lines[lines["benchmark"] == benchmark]
    temperatures = sorted(lines["temperature"].unique())
    size = (5.4 * len(temperatures), 7.2)
    fig, axes = plt.subplots(
        2, len(temperatures), figsize=size, sharex=True, sharey="row", squeeze=False
    )
    ends: dict[Axes, list] = {}
    for column, temperature in enumerate(temperatures):
        at = lines[lines["temperature"] == temperature]
        for ax, value in zip(axes[:, column], VALUES, strict=True):
            ends[ax] = [*_trees(ax, at, value), *_chains(ax, at, value)]
        kind = "greedy" if temperature == 0 else "sampling"
        axes[0, column].set_title(f"T = {temperature:g} ({kind})")
        axes[1, column].set_xlabel("budget: drafts that the target verifies, M")
    for ax, what in zip(axes[:, 0], VALUES.values(), strict=True):
        ax.set_ylabel(what)
    plain = look_of("ar")
    for ax in axes[1]:
        ax.axhline(1, color=plain.colour, linestyle=plain.line, linewidth=1.2)
        ends[ax].append((None, 1, plain.label, plain.colour))
    for ax, found in ends.items():  # panels share their limits, known only now
        leave, *names = zip(*found, strict=True)
        name_ends(ax, list(zip(*names, strict=True)), gap=0.062, leave=leave)
    return fig


def families(arms) -> dict[str, list[str]]:
    """Tree arms that differ in the budget alone, in the order of all figures."""
    found: dict[str, list[str]] = {}
    for arm in in_order(arm for arm in arms if split_arm(arm)[0] in TREES):
        found.setdefault(arm.partition(" M=")[0], []).append(arm)
    return found


def short_label(family: str) -> str:
    """``xPress + DDTree, paths`` for ``xpress+ddtree paths``; K goes unsaid."""
    by_paths = "paths" in split_arm(family)[1]
    return look_of(family).label + (", paths" if by_paths else "")


End = tuple[float | None, float, str, str]  # x, y, name and colour


def _trees(ax: Axes, at: pd.DataFrame, value: str) -> list[End]:
    """A line per family; where it ends, its name and colour."""
    own, ends = at.set_index("arm"), []
    budgets = sorted({budget_of(arm) for arm in own.index} - {0})
    groups = families(own.index)
    for number, (family, arms) in enumerate(groups.items()):
        look, by_paths = look_of(family), "paths" in family
        shift = 1 + DODGE * (number - (len(groups) - 1) / 2) * 2
        x = [budget_of(arm) * shift for arm in arms]
        y = own.loc[arms, value].to_numpy()
        low, high = own.loc[arms, f"{value}_low"], own.loc[arms, f"{value}_high"]
        ax.errorbar(
            x,
            y,
            yerr=np.array([y - low, high - y]).clip(0),
            color=look.colour,
            linestyle="-" if by_paths else look.line,
            linewidth=1.9 if by_paths else 1.3,
            marker=look.marker,
            markerfacecolor=look.colour if by_paths else "white",
            ms=6,
            elinewidth=0.8,
            capsize=2,
        )
        ends.append((x[-1], y[-1], short_label(family), look.colour))
    ax.set_xscale("log", base=2)
    ax.set_xticks(budgets, [str(m) for m in budgets], minor=False)
    return ends


def _chains(ax: Axes, at: pd.DataFrame, value: str) -> list[End]:
    """Level lines of the chains beside the trees."""
    ends = []
    for line in at.itertuples():
        if split_arm(line.arm)[0] in ("dflash", "xpress"):
            look, height = look_of(line.arm), getattr(line, value)
            ax.axhline(height, color=look.colour, linestyle=look.line, linewidth=1.1)
            ends.append((None, height, f"{look.label} chain", look.colour))
    return ends


def together_bars(lines: pd.DataFrame) -> Figure:
    """xPress, tree and both over the bare chain; ticks where the gains' product lies.

    A row of panels per measure, a column per temperature.

    Args:
        lines: from :func:`xpress_lab.benchmarks.orthogonality.together`.
    """
    measures = list(lines["measure"].unique())
    temperatures = sorted(lines["temperature"].unique())
    size = (4.9 * len(temperatures), 3.1 * len(measures))
    fig, axes = plt.subplots(
        len(measures), len(temperatures), figsize=size, sharey="row", squeeze=False
    )
    looks = dict(
        zip((REFINED, PLANTED, BOTH), ("xpress", "dflash+ddtree", "xpress+ddtree"),
            strict=True)
    )  # fmt: skip
    for row, measure in zip(axes, measures, strict=True):
        for ax, temperature in zip(row, temperatures, strict=True):
            at = lines[
                (lines["measure"] == measure) & (lines["temperature"] == temperature)
            ]
            _grouped(ax, at, looks)
            ax.set_title(f"T = {temperature:g}")
        row[0].set_ylabel(f"{measure},\nover the bare chain")
    for ax in axes[-1]:
        ax.set_xlabel("budget M")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=len(handles))
    return fig


def _grouped(ax: Axes, at: pd.DataFrame, looks: dict[str, str]) -> None:
    budgets = sorted(at["budget"].unique())
    places = np.arange(len(budgets))
    for number, (who, method) in enumerate(looks.items()):
        own, look = (
            at[at["who"] == who].set_index("budget").loc[budgets],
            look_of(method),
        )
        spread = np.array([own["ratio"] - own["low"], own["high"] - own["ratio"]])
        x = places + 0.27 * (number - 1)
        style = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white"}
        error = {"ecolor": INK, "elinewidth": 1, "capsize": 2}
        ax.bar(
            x,
            own["ratio"],
            0.25,
            yerr=spread.clip(0),
            error_kw=error,
            label=who,
            linewidth=0.5,
            **style,
        )
    product = at[at["who"] == PRODUCT].set_index("budget").loc[budgets, "ratio"]
    ax.hlines(
        product,
        places + 0.27 - 0.16,
        places + 0.27 + 0.16,
        color="#b3261e",
        linewidth=2.2,
        label=PRODUCT,
        zorder=5,
    )
    ax.axhline(1, color=look_of("dflash").colour, linestyle="--", linewidth=1.2)
    ax.set_xticks(places, [str(m) for m in budgets])
    ax.grid(False, axis="x")


def caught_curves(shares: pd.DataFrame, methods: dict[str, str]) -> Figure:
    """Share of first misses whose right word stood near the top of the list.

    Args:
        shares: from :func:`xpress_lab.benchmarks.orthogonality.caught`.
        methods: which method's look each column has.
    """
    fig, ax = plt.subplots(figsize=(6.4, 3.3))
    ends = []
    for who in shares:
        look = look_of(methods[who])
        style = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
        ax.plot(shares.index, shares[who], ms=5, **style)
        ends.append((shares[who].iloc[-1], who, look.colour))
    ax.set_ylim(0, 1)
    ax.set_yticks(np.linspace(0, 1, 5), [f"{y:.0%}" for y in np.linspace(0, 1, 5)])
    ax.set_xticks(shares.index)
    ax.set_xlabel("children that a tree gives the place of the miss")
    ax.set_ylabel("misses repaired")
    name_ends(ax, ends)
    return fig


def depth_curves(lines: pd.DataFrame, benchmark: str = POOLED) -> Figure:
    """tau and speed-up of dflash and xpress by layers of the drafter.

    Args:
        lines: from :func:`xpress_lab.benchmarks.orthogonality.layer_lines`.
    """
    lines = lines[(lines["benchmark"] == benchmark) & (lines["arm"] != "ar")]
    temperatures = sorted(lines["temperature"].unique())
    size = (4.4 * len(temperatures), 5.6)
    fig, axes = plt.subplots(
        2, len(temperatures), figsize=size, sharex=True, sharey="row", squeeze=False
    )
    ends: dict[Axes, list] = {ax: [] for ax in axes.flat}
    for column, temperature in enumerate(temperatures):
        at = lines[lines["temperature"] == temperature]
        for ax, value in zip(axes[:, column], VALUES, strict=True):
            for arm in in_order(at["arm"]):
                ends[ax].append(_depths(ax, at[at["arm"] == arm], arm, value))
        axes[0, column].set_title(f"T = {temperature:g}")
        axes[1, column].set_xlabel("layers of the drafter")
    for ax, what in zip(axes[:, 0], VALUES.values(), strict=True):
        ax.set_ylabel(what)
    for ax, names in ends.items():
        ax.set_xticks(sorted(lines["drafter_layers"].unique()))
        name_ends(ax, names)
    return fig


def _depths(ax: Axes, own: pd.DataFrame, arm: str, value: str):
    own, look = own.sort_values("drafter_layers"), look_of(arm)
    y = own[value].to_numpy()
    spread = np.array([y - own[f"{value}_low"], own[f"{value}_high"] - y]).clip(0)
    style = {"color": look.colour, "linestyle": look.line, "marker": look.marker}
    ax.errorbar(own["drafter_layers"], y, yerr=spread, ms=5, capsize=2, **style)
    return y[-1], label_of(arm), look.colour
