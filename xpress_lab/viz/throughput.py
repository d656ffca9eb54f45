"""Figure of batches: how speed grows with the batch, and what speculation adds."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from xpress_lab.viz.acceptance import panels
from xpress_lab.viz.labels import name_ends
from xpress_lab.viz.style import INK, in_order, label_of, look_of, tint

PANELS = {"tokens_per_second": "tokens a second", "speedup": "speed-up over plain"}


def throughput_curves(lines: pd.DataFrame) -> Figure:
    """Tokens a second by batch size, and the same over plain decoding; an arm a line.

    A row of panels per temperature; bands are quartiles over turns.

    Args:
        lines: from :func:`xpress_lab.benchmarks.throughput.throughput_summary`.
    """
    temperatures = sorted(lines["temperature"].unique())
    sizes = sorted(lines["batch_size"].unique())
    fig, axes = plt.subplots(
        len(temperatures),
        len(PANELS),
        figsize=(10.4, 3.6 * len(temperatures)),
        sharex=True,
        sharey="col",
        squeeze=False,
    )
    ends = {}
    for row, temperature in zip(axes, temperatures, strict=True):
        at = lines[lines["temperature"] == temperature]
        for ax, (value, what) in zip(row, PANELS.items(), strict=True):
            ends[ax] = [_curve(ax, at, arm, value) for arm in in_order(at["arm"])]
            by_size(ax, sizes)
            ax.set_ylabel(what)
            ax.set_ylim(bottom=0)
            kind = "greedy" if temperature == 0 else "sampling"
            ax.set_title(f"T = {temperature:g} ({kind})")
    for ax in axes[:-1].flat:
        ax.set_xlabel("")
    for ax, names in ends.items():  # panels share their limits, known only now
        known = [end for end in names if end[0] == end[0]]
        name_ends(ax, known, leave=[sizes[-1]] * len(known))
    return fig


def schedule_curves(lines: pd.DataFrame) -> Figure:
    """Speed-up over plain decoding by batch size: drafts sent by schedule (strong, with
    quartiles) and all of them (thin), a method a colour.

    Args:
        lines: from :func:`xpress_lab.benchmarks.throughput.throughput_summary`.
    """
    sizes = sorted(lines["batch_size"].unique())
    fig, axes = panels(lines, width=4.6)
    ends = {ax: [] for ax in axes}
    for ax, (_, at) in zip(axes, lines.groupby("temperature"), strict=True):
        for arm in in_order(arm for arm in at["arm"] if arm.endswith(" scheduled")):
            y, _, colour = _curve(ax, at, arm, "speedup")
            ends[ax].append((y, look_of(arm).label, colour))
            whole = at[at["arm"] == arm.removesuffix(" scheduled")]
            whole = whole.sort_values("batch_size")
            ax.plot(whole["batch_size"], whole["speedup"], color=colour, zorder=3,
                    linestyle=look_of(arm).line, linewidth=0.9)  # fmt: skip
        ax.axhline(1, color=INK, linestyle=":", linewidth=1.4)
        by_size(ax, sizes)
        ax.set_ylim(bottom=0)
    for ax, names in ends.items():  # panels share their limits, known only now
        name_ends(ax, names, leave=[sizes[-1]] * len(names))
    axes[0].set_ylabel("speed-up over plain decoding")
    sent = {"drafts by schedule": {"marker": "o"}, "all drafts": {"linewidth": 0.9}}
    fig.legend(
        handles=[Line2D([], [], color=INK, label=k, **v) for k, v in sent.items()],
        loc="outside upper center",
        ncols=len(sent),
    )
    return fig


def by_size(ax: Axes, sizes: Sequence[int]) -> None:
    """A horizontal axis of batch sizes."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size:g}" for size in sizes], minor=False)
    ax.set_xlabel("texts in a batch")


def _curve(ax, lines: pd.DataFrame, arm: str, value: str) -> tuple[float, str, str]:
    """One line with its band; its last height, name and colour."""
    own, look = lines[lines["arm"] == arm].sort_values("batch_size"), look_of(arm)
    ax.fill_between(
        own["batch_size"],
        own[f"{value}_low"],
        own[f"{value}_high"],
        color=tint(look.colour, 0.22),
        linewidth=0,
    )
    ax.plot(
        own["batch_size"],
        own[value],
        color=look.colour,
        linestyle=look.line,
        marker=look.marker,
        ms=4.5,
    )
    return own[value].iloc[-1], label_of(arm), look.colour
