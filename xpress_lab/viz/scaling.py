"""Figures of the paper's scale: sizes, layouts, memory, time, the cost of a round."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.training.estimates import ANEW, TOGETHER
from xpress_lab.viz.labels import name_ends
from xpress_lab.viz.style import INK, MUTED, look_of, tint

TARGET, DRAFTER = MUTED, look_of("dflash").colour
PART_COLOURS = {  # caches are paler than what fills them
    "target": TARGET,
    "drafter": DRAFTER,
    "refiner": look_of("xpress").colour,
    "target's cache": tint(TARGET, 0.45),
    "drafter's cache": tint(DRAFTER, 0.45),
}


def memory_bars(
    needs: Mapping[str, pd.DataFrame], cards: Mapping[str, float]
) -> Figure:
    """Gigabytes by part, a bar a case, with the memory of some cards as lines.

    Args:
        needs: from :func:`xpress_lab.training.estimates.memory_needs`, by case.
        cards: gigabytes of cards, by name.
    """
    fig, ax = plt.subplots(figsize=(9, 1.3 + 0.5 * len(needs)))
    left, rows = np.zeros(len(needs)), range(len(needs))
    for part, colour in PART_COLOURS.items():
        sizes = [one.set_index("part").loc[part, "gigabytes"] for one in needs.values()]
        ax.barh(rows, sizes, left=left, color=colour, height=0.6, label=part)
        left += sizes
    totals = zip(needs, left, strict=True)  # on the left: no card's line runs there
    ax.set_yticks(rows, [f"{case}\n{total:.1f} GB" for case, total in totals])
    for name, room in cards.items():
        ax.axvline(room, color=INK, linestyle=":", linewidth=1.3)
        ax.text(room, -0.62, f" {name}", fontsize=8.5, va="bottom", color=MUTED)
    ax.set_ylim(len(needs) - 0.5, -1)
    ax.set_xlim(0, 1.15 * max(*left, *cards.values()))
    ax.set_xlabel("gigabytes")
    ax.grid(False, axis="y")
    fig.legend(loc="outside upper center", ncols=len(PART_COLOURS))
    return fig


def implied_costs(costs: pd.DataFrame, floor: float | None = None) -> Figure:
    """What a round must have cost, in plain steps: tau over speed-up, by benchmark.

    Bars show what the rounding of the published speed-ups leaves open.

    Args:
        costs: from :func:`xpress_lab.benchmarks.cost_model.published_costs`.
        floor: a cost that is drawn across: what xPress must read.
    """
    benchmarks = list(costs["benchmark"].unique())
    fig, ax = plt.subplots(figsize=(8.6, 3.4))
    methods = list(costs["method"].unique())
    for number, method in enumerate(methods):
        own = costs[costs["method"] == method].set_index("benchmark").loc[benchmarks]
        x = np.arange(len(benchmarks)) + 0.2 * (number - (len(methods) - 1) / 2)
        y, look = own["implied_cost"], look_of(method)
        spread = np.array([y - own["low"], own["high"] - y])
        ax.errorbar(
            x, y, yerr=spread, fmt=look.marker, color=look.colour, ms=6, capsize=3,
            label=look.label,
        )  # fmt: skip
    plain = look_of("ar")
    ax.axhline(1, color=plain.colour, linestyle=plain.line, linewidth=1.4)
    ax.margins(y=0.25)
    ends = [(1, "a plain step", plain.colour)]
    if floor is not None:
        ax.axhline(floor, color=INK, linestyle="--", linewidth=1.1)
        ends.append((floor, "weights that\nxPress must read", INK))
    name_ends(ax, ends)
    ax.set_xticks(range(len(benchmarks)), benchmarks)
    ax.set_ylabel("cost of a round,\nin plain steps")
    ax.grid(False, axis="x")
    ax.legend(loc="upper right", ncols=len(methods))
    return fig


def size_dots(sizes: Mapping[str, Mapping[str, int]]) -> Figure:
    """Parameters by tier and part, on a logarithmic axis.

    Args:
        sizes: by tier, then by part (target, drafter, refiner).
    """
    fig, ax = plt.subplots(figsize=(8, 1.0 + 0.55 * len(sizes)))
    looks = {"target": ("s", 9), "drafter": ("o", -17), "refiner": ("D", 9)}
    for part, (marker, above) in looks.items():
        counts = [own[part] for own in sizes.values()]
        colour = PART_COLOURS[part]
        ax.plot(counts, range(len(sizes)), marker, color=colour, ms=9, label=part)
        for y, count in enumerate(counts):
            said = f"{count / 1e9:.2f} B" if count > 1e9 else f"{count / 1e6:.1f} M"
            ax.annotate(said, (count, y), (0, above), textcoords="offset points",
                        ha="center", fontsize=8.5)  # fmt: skip
    ax.set_xscale("log")
    ax.margins(x=0.1)
    ax.set_yticks(range(len(sizes)), list(sizes))
    ax.set_ylim(len(sizes) - 0.4, -0.7)
    ax.set_xlabel("parameters")
    fig.legend(loc="outside upper center", ncols=len(looks))
    return fig


def block_layouts(slots: int = 6) -> Figure:
    """What stands in each slot of a block, and which token of the text it drafts.

    Args:
        slots: B, the anchor's included.
    """
    fig, axes = plt.subplots(2, 1, figsize=(8, 3.4))
    for ax, (name, first) in zip(
        axes, (("fill-in", 1), ("anchor-first", 0)), strict=True
    ):
        for slot in range(slots):
            anchor = slot == 0
            fill = tint(MUTED, 0.5) if anchor else tint(DRAFTER, 0.25)
            ax.add_patch(plt.Rectangle((slot, 0), 0.92, 0.7, facecolor=fill))
            middle = {"ha": "center", "va": "center", "fontsize": 9}
            ax.text(slot + 0.46, 0.35, "anchor" if anchor else "mask", **middle)
            drafted = f"t+{slot + 1 - first}" if slot >= first else "nothing"
            colour = INK if slot >= first else MUTED
            ax.text(slot + 0.46, -0.28, drafted, color=colour, **middle)
        drafts = slots - first
        ax.set_title(f"{name}: a block of {slots} makes {drafts} drafts", fontsize=10)
        ax.text(-0.15, 0.35, "in", ha="right", va="center", fontsize=9)
        ax.text(-0.15, -0.28, "drafts", ha="right", va="center", fontsize=9)
        ax.set(xlim=(-0.9, slots), ylim=(-0.6, 0.8))
        ax.set_axis_off()
    return fig


def decoding_hours(costs: pd.DataFrame, tokens: int, plain_rate: float) -> Figure:
    """Hours that so many tokens take, by benchmark and method, at published speed-ups.

    Args:
        costs: from :func:`xpress_lab.benchmarks.cost_model.published_costs`.
        plain_rate: tokens a second of plain decoding.
    """
    hours = tokens / plain_rate / 3600
    table = costs.pivot(index="benchmark", columns="method", values="speedup")
    table = hours / table.loc[costs["benchmark"].unique()]
    fig, ax = plt.subplots(figsize=(8.6, 3.2))
    for number, method in enumerate(costs["method"].unique()):
        x, look = np.arange(len(table)) + 0.27 * (number - 1), look_of(method)
        ax.bar(x, table[method], 0.25, color=look.colour, hatch=look.hatch,
               edgecolor="white", label=look.label)  # fmt: skip
    plain = look_of("ar")
    ax.axhline(hours, color=plain.colour, linestyle=plain.line, linewidth=1.4)
    name_ends(ax, [(hours, plain.label, plain.colour)])
    ax.set_xticks(range(len(table)), table.index)
    ax.set_ylabel("hours, at most")
    ax.grid(False, axis="x")
    fig.legend(loc="outside upper center", ncols=table.shape[1])
    return fig


def hour_bars(estimate: pd.DataFrame) -> Figure:
    """Hours of training by part: the sum in grey, an alternative hatched.

    Args:
        estimate: from :func:`xpress_lab.training.estimates.training_estimate`.
    """
    fig, ax = plt.subplots(figsize=(8, 0.8 + 0.36 * len(estimate)))
    kinds = {TOGETHER: (tint(MUTED, 0.8), ""), ANEW: (tint(DRAFTER, 0.6), "///")}
    looks = [kinds.get(part, (tint(DRAFTER, 0.6), "")) for part in estimate["part"]]
    colours, hatches = zip(*looks, strict=True)
    ax.barh(estimate["part"], estimate["hours"], color=colours, hatch=hatches,
            edgecolor="white", height=0.62)  # fmt: skip
    for y, hours in enumerate(estimate["hours"]):
        ax.text(hours, y, f"  {hours:.1f} h", va="center", fontsize=9)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.15 * estimate["hours"].max())
    ax.set_xlabel("hours of one GPU, estimated")
    ax.grid(False, axis="y")
    return fig
