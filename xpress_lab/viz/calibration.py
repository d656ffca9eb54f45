"""The confidence head: what it said against what the target did, and what it saves."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.viz.acceptance import panels
from xpress_lab.viz.labels import name_ends
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
        upper.set_title(f"T = {temperature:g}: {at['drafts'].sum():,} drafts")
        upper.set_xlim(0, 1)
        upper.set_ylim(-0.03, 1.03)
        widths = at["high"] - at["low"]
        colour = tint(look.colour, 0.5)
        lower.bar(at["low"], at["drafts"], 0.92 * widths, align="edge", color=colour)
        lower.grid(False, axis="x")
        lower.set_xlabel("what the head said")
    axes[0, 0].set_ylabel("share that the target kept")
    axes[1, 0].set_ylabel("drafts")
    return fig


def cut_curves(table: pd.DataFrame, arm: str = "xpress") -> Figure:
    """Drafts sent, tau and speed by the confidence at which blocks are cut.

    All in units of the uncut method; bands are 95 % intervals over texts.

    Args:
        table: from :func:`xpress_lab.benchmarks.calibration.cut_costs`.
    """
    fig, axes = panels(table, width=5.4)
    look, ends = look_of(arm), {ax: [] for ax in axes}
    lines = (
        ("drafts", "drafts sent", MUTED, "s", ":"),
        ("tau", "tau", look.colour, look.marker, look.line),
        ("speed", "speed", INK, "o", "--"),
    )
    for ax, (_, at) in zip(axes, table.groupby("temperature"), strict=True):
        for name, label, colour, marker, line in lines:
            low, high = at[f"{name}_low"], at[f"{name}_high"]
            shade = tint(colour, 0.18)
            ax.fill_between(at["confidence"], low, high, color=shade, linewidth=0)
            ax.plot(at["confidence"], at[name], color=colour, marker=marker, ls=line)
            ends[ax].append((at[name].iloc[-1], label, colour))
        ax.axhline(1, color=MUTED, linewidth=0.8)
        ax.set_xlabel("blocks are cut before the first draft below this confidence")
    for ax in axes:  # the panels share their limits, known only now
        name_ends(ax, ends[ax])
    axes[0].set_ylabel("share of the uncut method's")
    return fig
