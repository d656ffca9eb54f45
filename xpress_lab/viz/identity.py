"""Figures of greedy identity: one text cut in many ways, and what rounding can do."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from xpress_lab.decoding import Generation
from xpress_lab.viz.style import INK, MUTED, label_of, look_of, tint

# Greys: no number format, and no rival token, is a method.
FORMATS = {"bfloat16": "#222222", "float32": "#6b6b6b", "float64": "#a8a8a8"}
RIVALS = ("#222222", "#b36bb3", "#8a8a8a", "#b5b5b5", "#d0d0d0")
LOWEST = 1e-17  # differences below, zero among them, are drawn here


def text_cuts(texts: Mapping[str, Generation], words: Sequence[str]) -> Figure:
    """The same text by each method, cut where its rounds begin.

    Args:
        texts: generations by arm, all of the same tokens.
        words: the text's tokens, written above the first row.
    """
    count = len(words)
    fig, ax = plt.subplots(figsize=(11.5, 0.42 * len(texts) + 1.5))
    for y, (arm, text) in enumerate(texts.items()):
        look, start = look_of(arm), 1
        ax.barh(y, 1, left=0, height=0.72, color="#e3e3e3", edgecolor="white")
        for number, one in enumerate(text.rounds):
            fill = tint(look.colour, 0.75 if number % 2 else 0.5)
            style = {"height": 0.72, "color": fill, "edgecolor": "white"}
            ax.barh(y, one.emitted, left=start, **style)
            start += one.emitted
        said = f"{len(text.rounds)} rounds, tau {text.tau:.1f}"
        ax.text(count + 0.4, y, said, va="center", fontsize=8.5)
    for place, word in enumerate(words):
        ax.text(place + 0.5, -0.6, word, rotation=60, ha="left", fontsize=7)
    ax.set_yticks(range(len(texts)), [label_of(arm) for arm in texts])
    ax.set(xlim=(0, count + 11), ylim=(len(texts) - 0.4, -0.6))
    ax.set_xticks(range(0, count + 1, 10))
    ax.set_xlabel("tokens of the text")
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    return fig


def rounding_and_margins(margins: np.ndarray, gaps: Mapping[str, np.ndarray]) -> Figure:
    """How clearly the target chooses, and how far rounding moves its logits.

    Args:
        margins: ``[n]`` top-1 less top-2 logit at many places.
        gaps: by dtype, ``[n]`` the largest change of a logit when a pass takes in a
            block instead of one token.
    """
    fig, axes = plt.subplots(
        2, 1, figsize=(8.2, 4.4), sharex=True, height_ratios=[1, 1.25]
    )
    edges = np.logspace(-17, 2, 115)
    axes[0].hist(margins.clip(LOWEST), edges, color=tint(INK, 0.35))
    axes[0].set_ylabel("places")
    axes[0].set_title("margin between the two best tokens", fontsize=10)
    for name, values in gaps.items():
        style = {"color": tint(FORMATS[name], 0.6), "label": name}
        axes[1].hist(values.clip(LOWEST), edges, **style)
    top = axes[1].get_ylim()[1]
    for name, values in gaps.items():
        style = {"ha": "center", "color": FORMATS[name], "weight": "bold"}
        axes[1].text(np.median(values.clip(LOWEST)), 1.06 * top, name, **style)
    axes[1].set_ylim(0, 1.25 * top)
    axes[1].set_title("change of a logit, one row against a block of rows", fontsize=10)
    axes[1].set_xscale("log")
    axes[1].set(xlabel="logits (logarithmic)", ylabel="places")
    ticks = [LOWEST, 1e-14, 1e-11, 1e-8, 1e-5, 1e-2, 10]
    names = ["none", *(f"$10^{{{round(np.log10(tick))}}}$" for tick in ticks[1:])]
    axes[1].set_xticks(ticks, names)
    return fig


def near_tie(
    rows: Mapping[str, np.ndarray], words: Sequence[str], grain: float
) -> Figure:
    """The best tokens of one place, as each way of computing sees them.

    Args:
        rows: name to ``[m]`` logits of the same m tokens.
        grain: distance between neighbouring bfloat16 numbers there, drawn as a grid.
    """
    fig, ax = plt.subplots(figsize=(8.2, 0.62 * len(rows) + 1.1))
    values = np.concatenate(list(rows.values()))
    low = np.floor(values.min() / grain - 1) * grain
    high = np.ceil(values.max() / grain + 1) * grain
    for line in np.arange(low, high + grain / 2, grain):
        ax.axvline(line, color="#dddddd", linewidth=0.8, zorder=0)
    marks = "osD^v"
    for y, logits in enumerate(rows.values()):
        best = int(np.argmax(logits))
        for k, value in enumerate(logits):
            up = -0.14 if k % 2 else 0.14  # equal values stay visible side by side
            label = words[k] if y == 0 else None
            style = {"ms": 8, "color": RIVALS[k], "label": label, "zorder": 3}
            ax.plot(value, y + up, marks[k], linestyle="none", **style)
        ax.text(high, y, f"  chooses “{words[best]}”", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set(xlim=(low, high), ylim=(len(rows) - 0.5, -0.5))
    ax.set_xlabel("logit; grey lines: the numbers that bfloat16 has there")
    ax.grid(False)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(words))
    ax.tick_params(axis="y", colors=MUTED)
    return fig
