"""Where the time of a round goes: parts of the round by kinds of work."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.viz.style import in_order, label_of

# Greys, as for stages: a hue would be that of a method.
KIND_COLOURS = {
    "matrix products": "#ccd1d7",
    "attention": "#9ba2ac",
    "other operations": "#6d7682",
    "between operations": "#1b222b",
}
PARTS = ("target", "drafter", "refiner", "loop")


def profile_bars(table: pd.DataFrame) -> Figure:
    """Milliseconds a round of each part, by kind of work; a panel per arm.

    Args:
        table: from :func:`xpress_lab.benchmarks.round_profile.profile_rounds`.
    """
    arms = in_order(table["arm"])
    size = (8.6, 0.9 + 1.7 * len(arms))
    fig, axes = plt.subplots(len(arms), 1, figsize=size, sharex=True, squeeze=False)
    for ax, arm in zip(axes[:, 0], arms, strict=True):
        own = table[table["arm"] == arm]
        parts = own.pivot(index="part", columns="kind", values="milliseconds")
        parts = parts.reindex([p for p in PARTS if p in parts.index]).fillna(0.0)
        left, whole = np.zeros(len(parts)), own["milliseconds"].sum()
        for kind, colour in KIND_COLOURS.items():
            width = parts.get(kind, pd.Series(0.0, parts.index)).to_numpy()
            ax.barh(parts.index, width, left=left, color=colour, label=kind)
            left = left + width
        for y, end in enumerate(left):
            said = f"  {end:.2f} ms, {end / whole:.0%}"
            ax.text(end, y, said, va="center", fontsize=9)
        ax.set_title(f"{label_of(arm)}: {whole:.1f} ms a round")
        ax.invert_yaxis()
        ax.grid(False, axis="y")
    axes[-1, 0].set_xlabel("milliseconds a round, under the profiler")
    axes[-1, 0].set_xlim(right=1.22 * axes[-1, 0].get_xlim()[1])
    handles, labels = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return fig
