"""Figures of cost: a refiner by passes, a round by context, the best block and K."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xpress_lab.viz.labels import name_ends
from xpress_lab.viz.style import INK, MUTED, in_order, label_of, look_of

VARIANTS = {"plain": (":", "written out"), "fast": ("-", "fast")}


def latency_curves(records: pd.DataFrame, rank: int = 128, block: int = 16) -> Figure:
    """Microseconds of a block's refinement by K, a panel per vocabulary, logarithmic.

    Level lines are Markov's serial steps; the thin line is what reading w2 once a pass
    must take.

    Args:
        records: from :func:`xpress_lab.benchmarks.refiner_latency.refiner_latency`.
        rank, block: which of the sizes.
    """
    at = records[(records["rank"] == rank) & (records["block"] == block)]
    vocabularies = sorted(at["vocab"].unique())
    fig, axes = plt.subplots(
        1, len(vocabularies), figsize=(0.6 + 3.5 * len(vocabularies), 4.2), sharey=True,
        squeeze=False,
    )  # fmt: skip
    for ax, vocab in zip(axes[0], vocabularies, strict=True):
        own = at[at["vocab"] == vocab]
        _by_passes(ax, own)
        _serial(ax, own)
        ax.set_yscale("log")
        ax.set_title(f"V = {vocab:,}")
        ax.set_xlabel("Jacobi passes K")
        ax.set_xticks(sorted(own.loc[own["method"] == "xpress", "passes"].unique()))
        if ax is not axes[0][0]:
            ax.tick_params(axis="y", which="both", length=0)
    axes[0][0].set_ylabel("microseconds a block")
    named = axes[0][0].get_legend_handles_labels()
    fig.legend(*named, loc="outside upper center", ncols=len(named[0]))
    return fig


def _by_passes(ax: Axes, own: pd.DataFrame) -> None:
    """xPress, written out and fast, over its floor."""
    look = look_of("xpress")
    refiner = own[own["method"] == "xpress"]
    for variant, (line, name) in VARIANTS.items():
        part = refiner[refiner["variant"] == variant].sort_values("passes")
        y, half = part["microseconds"], part["spread"] / 2
        ax.errorbar(part["passes"], y, yerr=half, color=look.colour, linestyle=line,
                    marker=look.marker, ms=4.5, elinewidth=1,
                    label=f"xPress, {name}")  # fmt: skip
    floor = refiner[refiner["variant"] == "plain"].sort_values("passes")
    ax.plot(floor["passes"], floor["floor_microseconds"], color=MUTED, linewidth=1,
            label="reading w2 K times")  # fmt: skip


def _serial(ax: Axes, own: pd.DataFrame) -> None:
    """Markov's serial steps, which know no K."""
    look = look_of("markov")
    serial = own[own["method"] == "markov"].set_index("variant")["microseconds"]
    for variant, (line, name) in VARIANTS.items():
        ax.axhline(serial[variant], color=look.colour, linestyle=line,
                   label=f"Markov, {name}")  # fmt: skip


def certificate_rates(table: pd.DataFrame) -> Figure:
    """How often the certificate fails, by candidates a slot; a line per temperature.

    Args:
        table: from :func:`xpress_lab.benchmarks.certificates.certificate_failures`.
    """
    fig, ax = plt.subplots(figsize=(5.6, 3.4))
    look = look_of("xpress")
    for temperature, line in zip(
        sorted(table["temperature"].unique()), "-:", strict=False
    ):
        own = table[table["temperature"] == temperature].sort_values("candidates")
        rate = 100 * own["failure_rate"]
        ax.plot(own["candidates"], rate, line, color=look.colour, marker=look.marker,
                ms=4.5, label=f"T = {temperature:g}")  # fmt: skip
    ax.set_xscale("log", base=2)
    counts = sorted(table["candidates"].unique())
    ax.set_xticks(counts, [f"{count:,}" for count in counts])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("candidates a slot")
    ax.set_ylabel("blocks that need more than\none full pass, per cent")
    ax.legend(loc="upper right")
    return fig


def context_costs(table: pd.DataFrame) -> Figure:
    """A round by length of the context: inside the model calls, and outside of them.

    Args:
        table: from :func:`xpress_lab.benchmarks.overhead.round_costs`.
    """
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    panels = {"model_ms": "in model calls", "outside_ms": "outside model calls"}
    for ax, (value, what) in zip(axes, panels.items(), strict=True):
        ends = []
        for arm in in_order(table["arm"].unique()):
            own, look = table[table["arm"] == arm].sort_values("context"), look_of(arm)
            half = own["spread"] / 2 if value == "outside_ms" else None
            ax.errorbar(own["context"], own[value], yerr=half, color=look.colour,
                        linestyle=look.line, marker=look.marker, ms=4.5)  # fmt: skip
            ends.append((own[value].iloc[-1], label_of(arm), look.colour))
        ax.set_ylim(bottom=0)
        ax.set_xscale("log", base=2)
        lengths = sorted(table["context"].unique())
        ax.set_xticks(lengths, [f"{length:,}" for length in lengths])
        ax.set_xlabel("tokens of context")
        ax.set_ylabel(f"milliseconds a round,\n{what}")
        name_ends(ax, ends)
    return fig


def tuning_map(measured: pd.DataFrame) -> Figure:
    """Speed-up over plain decoding by the cost model: passes across, block sizes down.

    Args:
        measured: from :func:`xpress_lab.benchmarks.cost_model.tune`.
    """
    table = measured.pivot(index="block", columns="passes", values="speedup")
    known = [k for k in table.columns if k != "fixed"]
    table = table[[*sorted(known, key=int), *(set(table.columns) - set(known))]]
    fig, ax = plt.subplots(figsize=(1.6 + 0.75 * len(table.columns), 3))
    far = np.abs(table.to_numpy() - 1).max()
    image = ax.imshow(table, cmap="RdBu", vmin=1 - far, vmax=1 + far, aspect="auto")
    for (row, column), value in np.ndenumerate(table.to_numpy()):
        dark = abs(value - 1) > 0.5 * far
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9,
                color="white" if dark else INK)  # fmt: skip
    ax.set_xticks(range(len(table.columns)), table.columns)
    ax.set_yticks(range(len(table)), table.index)
    ax.grid(False)
    ax.set_xlabel("Jacobi passes K")
    ax.set_ylabel("block size")
    ax.figure.colorbar(image, ax=ax, label="speed-up")
    return fig
