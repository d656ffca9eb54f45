"""The confidence head's calibration: what it said against what the target did."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.viz.style import INK, MUTED, look_of, tint


def reliability_diagram(table: pd.DataFrame, arm: str = "xpress") -> Figure:
    """Measured against predicted acceptance, and below how many drafts each point is.

    Args:
        table: from :func:`xpress_lab.benchmarks.calibration.reliability`.
        arm: whose head it is, for the colour. Points above the diagonal are drafts
            that did better than the head said.
    """
    temperatures, look = sorted(table["temperature"].unique()), look_of(arm)
    fig, axes = plt.subplots(
        2,
        len(temperatures),
        figsize=(4.2 * len(temperatures), 4.8),
        sharex=True,
        sharey="row",
        squeeze=False,
        height_ratios=(3, 1),
    )
    for (upper, lower), temperature in zip(axes.T, temperatures, strict=True):
        at = table[table["temperature"] == temperature]
        upper.plot([0, 1], [0, 1], color=MUTED, linestyle=":", linewidth=1.2)
        spread = [
            at["measured"] - at["measured_low"],
            at["measured_high"] - at["measured"],
        ]
        upper.errorbar(
            at["predicted"],
            at["measured"],
            yerr=np.array(spread).clip(0),
            color=look.colour,
            marker=look.marker,
            linestyle=look.line,
            ms=5,
            ecolor=INK,
            elinewidth=1,
            capsize=2,
        )
        upper.set_title(f"T = {temperature:g}: {at['drafts'].sum()} drafts")
        upper.set_xlim(0, 1)
        upper.set_ylim(0, 1.03)
        widths = at["high"] - at["low"]
        colour = tint(look.colour, 0.5)
        lower.bar(at["low"], at["drafts"], 0.92 * widths, align="edge", color=colour)
        lower.grid(False, axis="x")
        lower.set_xlabel("what the head said")
    axes[0, 0].set_ylabel("share that the target kept")
    axes[1, 0].set_ylabel("drafts")
    return fig
