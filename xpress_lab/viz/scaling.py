"""Figures of the paper's scale: memory, and what a round costs by published figures."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

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
