"""Figures of what a trained refiner has learned, and of what its parts are worth."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from xpress_lab.benchmarks.ablation import BARE, WHOLE
from xpress_lab.viz.acceptance import TAU_LABEL
from xpress_lab.viz.style import INK, MUTED, look_of, tint

STRENGTH, SIGNED, NEVER = "viridis", "RdBu_r", "#d9d9d9"
MODELS = {"target": MUTED, "drafter": look_of("dflash").colour}


def mixer_maps(mixer: torch.Tensor, channels: Sequence[int]) -> Figure:
    """The learned triangle: strength and average over all channels, and some channels.

    Args:
        mixer: ``[r, B, B]`` raw L, row = the slot that listens.
        channels: which to draw one by one.
    """
    mixer = mixer.detach()
    slots = mixer.shape[-1]
    above = torch.ones(slots, slots).triu(1).bool().numpy()
    fig, axes = plt.subplots(
        1, 2 + len(channels), figsize=(6.6 + 2.2 * len(channels), 3.1)
    )
    strength = mixer.square().mean(dim=0).sqrt().numpy()
    seen = np.ma.masked_where(above, strength)
    _map(axes[0], seen, STRENGTH, "all channels: strength", vmin=0)
    some = mixer[list(channels)].numpy()
    named = {
        f"channel {number}": own for number, own in zip(channels, some, strict=True)
    }
    named = {"all channels: average": mixer.mean(dim=0).numpy(), **named}
    for ax, (name, values) in zip(axes[1:], named.items(), strict=True):
        most = float(np.abs(values if ax is axes[1] else some).max())
        seen = np.ma.masked_where(above, values)
        bar = ax in (axes[1], axes[-1])  # the channels share one scale
        _map(ax, seen, SIGNED, name, vmin=-most, vmax=most, bar=bar)
    axes[0].set_ylabel("listening slot k")
    return fig


def influence_map(moved: torch.Tensor) -> Figure:
    """Who hears whom, on a logarithmic scale; pairs that never do are grey.

    Args:
        moved: ``[B, B - 1]`` from :func:`xpress_lab.refiners.influence.influence`.
    """
    values = moved.T.numpy()  # slots down, previous tokens across
    seen = np.ma.masked_where(values == 0, values)
    fig, ax = plt.subplots(figsize=(6.2, 4.6))
    norm = LogNorm(float(seen.min()), float(seen.max()))
    _map(ax, seen, STRENGTH, "change of the bias (rms)", norm=norm, first_row=1)
    ax.set_xlabel("previous token that was exchanged (0: before the anchor)")
    ax.set_ylabel("slot whose bias moved")
    slots = moved.shape[1]
    ax.text(slots * 0.72, slots * 0.24, "exactly zero", ha="center", color=MUTED)
    return fig


def reach_curve(curves: dict[str, np.ndarray]) -> Figure:
    """How strength changes with distance, each curve in units of its largest value.

    Args:
        curves: name to values at distance 0, 1, 2, ... slots.
    """
    fig, ax = plt.subplots(figsize=(6.4, 3.2))
    looks = [("D", "-"), ("o", "--")]
    colour = look_of("xpress").colour
    for (name, values), (marker, line) in zip(curves.items(), looks, strict=False):
        strength = 1.0 if line == "-" else 0.6
        style = {"marker": marker, "linestyle": line, "color": tint(colour, strength)}
        ax.plot(values / values.max(), ms=4.5, label=name, **style)
    ax.set(xlabel="distance from speaker to listener, in slots", ylim=(0, None))
    ax.set_ylabel("strength, largest = 1")
    ax.set_xticks(range(0, max(map(len, curves.values())), 2))
    ax.legend()
    return fig


def work_bars(work: pd.DataFrame) -> Figure:
    """Multiplications and operations of the raw and the folded head.

    Args:
        work: from :func:`xpress_lab.benchmarks.costs.head_work`.
    """
    fig, axes = plt.subplots(1, 2, figsize=(9.2, 2.6), sharey=True)
    colour = look_of("xpress").colour
    fills = {"raw": tint(colour, 0.35), "folded": tint(colour, 0.85)}
    stages = list(work.index.get_level_values("stage").unique())
    for ax, column in zip(axes, ("multiplications", "operations"), strict=True):
        for number, (form, fill) in enumerate(fills.items()):
            values = work.loc[form].loc[stages, column]
            places = np.arange(len(stages)) + 0.38 * number
            drawn = ax.barh(places, values, 0.34, color=fill, label=form)
            labels = [_in_words(value) for value in values]
            ax.bar_label(drawn, labels, padding=3, fontsize=9)
        ax.set_xlabel(column)
        ax.set_xticks([])  # the numbers stand at the bars
        ax.margins(x=0.16)
        ax.grid(False)
    axes[0].set_yticks(np.arange(len(stages)) + 0.19, stages)
    axes[0].invert_yaxis()
    axes[1].legend(loc="lower right")
    return fig


def budget_bars(budgets: dict[str, pd.DataFrame]) -> Figure:
    """Parameters of target, drafter and head, and what the head is made of.

    Args:
        budgets: name to a frame of :func:`xpress_lab.benchmarks.costs.budget`.
    """
    fig, axes = plt.subplots(
        len(budgets),
        2,
        figsize=(10, 1.9 * len(budgets) + 0.5),
        width_ratios=[1, 1.25],
        squeeze=False,
    )
    for (left, right), (name, lines) in zip(axes, budgets.items(), strict=True):
        whole = lines.groupby("model", sort=False)["parameters"].sum()
        colours = [MODELS.get(model, look_of("xpress").colour) for model in whole.index]
        bars = left.barh(whole.index, whole, color=colours, height=0.62)
        labels = [_in_words(count) for count in whole]
        left.bar_label(bars, labels, padding=3, fontsize=9)
        left.set_xscale("log")
        left.set_xlim(whole.min() / 8, whole.max() * 8)
        left.invert_yaxis()
        left.grid(False, axis="y")
        left.set_title(name)
        _parts(right, lines[lines["model"] == "head"])
    axes[-1, 0].set_xlabel("parameters (logarithmic)")
    axes[-1, 1].set_xlabel("share of the head")
    axes[0, 1].set_title("the head, by part")
    return fig


def ablation_bars(lines: pd.DataFrame) -> Figure:
    """Tau with one part of the head missing, a panel per temperature.

    Args:
        lines: from :func:`xpress_lab.benchmarks.ablation.worth`.
    """
    temperatures = sorted(lines["temperature"].unique())
    fig, axes = plt.subplots(
        1, len(temperatures), figsize=(5 * len(temperatures), 3.6), sharey=True
    )
    colour = look_of("xpress").colour
    for ax, temperature in zip(np.atleast_1d(axes), temperatures, strict=True):
        at = lines[lines["temperature"] == temperature].set_index("variant")
        strengths = [1.0 if name == WHOLE else 0.5 for name in at.index]
        fills = [tint(colour, strength) for strength in strengths]
        if BARE in at.index:
            fills[list(at.index).index(BARE)] = tint(look_of("dflash").colour, 0.6)
        spread = [at["tau"] - at["tau_low"], at["tau_high"] - at["tau"]]
        style = {"ecolor": INK, "elinewidth": 1, "capsize": 2}
        ax.barh(at.index, at["tau"], color=fills, xerr=spread, error_kw=style)
        for y, line in enumerate(at.itertuples()):
            ink = "white" if line.Index == WHOLE else INK
            ax.text(0.1, y, f"{line.tau:.1f}", va="center", fontsize=9, color=ink)
        ax.axvline(at.loc[WHOLE, "tau"], color=colour, linewidth=1)
        ax.axvline(1, color=MUTED, linestyle=":", linewidth=1.4)
        ax.set_xlim(0, lines["tau_high"].max() * 1.12)
        ax.set_xlabel(TAU_LABEL)
        ax.set_title(f"T = {temperature:g}")
        ax.grid(False, axis="y")
    np.atleast_1d(axes)[0].invert_yaxis()
    return fig


def _map(ax: Axes, values, colours, title, *, first_row=0, bar=True, **scale) -> None:
    """A matrix of slots by slots, with a colour bar; masked cells are grey."""
    rows, columns = values.shape
    cells = plt.get_cmap(colours).with_extremes(bad=NEVER)
    extent = (-0.5, columns - 0.5, rows + first_row - 0.5, first_row - 0.5)
    image = ax.imshow(values, cmap=cells, extent=extent, **scale)
    ax.set_title(title, fontsize=10)
    ax.grid(False)
    ax.set_xticks(range(0, columns, 5))
    ax.set_yticks(range(0, rows + first_row, 5))
    ax.set_xlabel("speaking slot j")
    if bar:
        ax.figure.colorbar(image, ax=ax, shrink=0.85)


def _parts(ax: Axes, lines: pd.DataFrame) -> None:
    """One stacked bar, its pieces named where there is room, below it where not."""
    shares = lines["parameters"] / lines["parameters"].sum()
    left = 0.0
    small = []
    for number, (part, share) in enumerate(zip(lines["part"], shares, strict=True)):
        fill = tint(look_of("xpress").colour, 0.75 - 0.14 * number)
        ax.barh(0, share, left=left, color=fill, edgecolor="white", height=0.5)
        if share > 0.12:
            said = f"{part}\n{share:.0%}"
            style = {"ha": "center", "va": "center", "fontsize": 8.5}
            ax.text(left + share / 2, 0, said, **style)
        else:
            small.append(f"{part} {share:.1%}")
        left += share
    ax.text(1, 0.42, ", ".join(small), ha="right", fontsize=8.5, color=INK)
    ax.set(xlim=(0, 1), ylim=(-0.45, 0.6), yticks=[])
    ax.set_xticks(np.linspace(0, 1, 5), [f"{x:.0%}" for x in np.linspace(0, 1, 5)])
    ax.grid(False, axis="y")


def _in_words(count: int) -> str:
    for size, sign in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {sign}"
    return str(count)
