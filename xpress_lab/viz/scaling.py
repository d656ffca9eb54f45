"""Figures of the paper's scale: memory, and what a round costs by published figures."""

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.viz.acceptance import name_ends
from xpress_lab.viz.style import INK, MUTED, look_of

PART_COLOURS = {
    "target": "#0173b2",
    "drafter": "#56b4e9",
    "refiner": "#007a5a",
    "target's cache": "#d9a441",
    "drafter's cache": "#fbafe4",
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
    left = np.zeros(len(needs))
    for part, colour in PART_COLOURS.items():
        sizes = [one.set_index("part").loc[part, "gigabytes"] for one in needs.values()]
        ax.barh(list(needs), sizes, left=left, color=colour, height=0.6, label=part)
        left += sizes
    for y, total in enumerate(left):
        box = {"fc": "white", "ec": "none", "pad": 1}  # over the lines of the cards
        ax.text(total + 0.6, y, f"{total:.1f} GB", va="center", fontsize=9, bbox=box)
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
        floor: a cost that is drawn across and called what must be read.
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
    ax.axhline(1, color=look_of("ar").colour, linestyle=":", linewidth=1.4)
    ax.margins(y=0.25)
    if floor is not None:
        ax.axhline(floor, color=INK, linestyle="--", linewidth=1.1)
        name_ends(ax, [(floor, "weights that\nmust be read", INK)])
    ax.set_xticks(range(len(benchmarks)), benchmarks)
    ax.set_ylabel("cost of a round,\nin plain steps")
    ax.grid(False, axis="x")
    ax.legend(loc="upper right", ncols=len(methods))
    return fig
