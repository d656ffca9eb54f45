"""Figures of the acceptance rule and of the law that it keeps, or fails to keep."""

import textwrap
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xpress_lab.viz.labels import name_log_ends
from xpress_lab.viz.style import INK, look_of, tint

KEPT, NEW = look_of("xpress").colour, "#d9a441"  # min(p, q); the residual
LOST = "#b3261e"
SMALLEST = 1e-30  # p-values are drawn no lower
GOOD = ("o", "s", "D", "^")
BAD = ("X", "v", "P", "*")


def rejection_picture(
    p: np.ndarray, q: np.ndarray, words: Sequence[str], drawn: np.ndarray | None = None
) -> Figure:
    """Why a rejected draft plus a replacement makes p: three panels over the words.

    Args:
        p, q: ``[V]`` the target's law and the draft's.
        drawn: ``[V]`` shares of what was emitted in an experiment, drawn as dots.
    """
    both = np.minimum(p, q)
    fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), sharey=True)
    x = np.arange(len(words))
    axes[0].bar(x, both, color=tint(KEPT, 0.6), label="kept: min(p, q)")
    style = {"hatch": "///", "edgecolor": LOST, "facecolor": "white"}
    style["linewidth"] = np.where(q > both, 1.0, 0.0)
    axes[0].bar(x, q - both, bottom=both, label="rejected: q beyond p", **style)
    axes[0].set_title("1  drafts, drawn from q")
    axes[1].bar(x, p - both, color=NEW, label="max(p − q, 0)")
    axes[1].set_title("2  replacements, from the residual")
    axes[2].bar(x, both, color=tint(KEPT, 0.6))
    axes[2].bar(x, p - both, bottom=both, color=NEW)
    axes[2].set_title("3  emitted: exactly p")
    _steps(axes[0], x, p)
    _steps(axes[2], x, p)
    if drawn is not None:
        axes[2].plot(x, drawn, "o", color=INK, ms=5, label="counted")
    for ax in axes:
        ax.set_xticks(x, words, rotation=0 if len(words) < 7 else 60)
        ax.grid(False, axis="x")
        ax.margins(y=0.36)
        ax.legend(loc="upper right", fontsize=8.5)
    axes[0].set_ylabel("probability")
    return fig


def p_value_chart(lines: pd.DataFrame) -> Figure:
    """Chi-square p-values by number of passes, one line per rule, logarithmic.

    Args:
        lines: columns rule, right (whether it should pass), passes, p_value.
    """
    fig, ax = plt.subplots(figsize=(8, 4))
    ends, looks = [], {True: iter(GOOD), False: iter(BAD)}
    for (rule, right), at in lines.groupby(["rule", "right"], sort=False):
        p = at["p_value"].clip(lower=SMALLEST)
        colour = KEPT if right else LOST
        style = {"marker": next(looks[right]), "ms": 6, "linewidth": 1}
        ax.plot(
            at["passes"],
            p,
            "-" if right else "--",
            color=colour,
            clip_on=False,  # a p-value may be 1
            **style,
        )
        ends.append((np.log10(p.iloc[-1]), rule, colour))
    ax.set_yscale("log")
    lowest = min(1e-5, lines["p_value"].clip(lower=SMALLEST).min())
    ax.set_ylim(lowest / 30, 1)
    ax.axhspan(1e-4, 1, color=tint(KEPT, 0.1), zorder=0)
    ax.text(ax.get_xlim()[0], 4e-4, "  agrees with the law", va="center", fontsize=9)
    ax.set_xticks(sorted(lines["passes"].unique()))
    ax.set_xlabel("Jacobi passes K")
    ax.set_ylabel("p-value (cut off at 1e-30)")
    name_log_ends(ax, ends)
    return fig


def law_errors(law: np.ndarray, seen: dict[str, np.ndarray], words: Sequence[str]):
    """What each rule says too often or too seldom, sentence by sentence.

    Args:
        law: ``[m]`` exact chances. seen: counts by rule, ``[m]`` each.
    """
    fig, axes = plt.subplots(
        1,
        len(seen),
        figsize=(2.2 + 1.9 * len(seen), 1.3 + 0.23 * len(words)),
        sharey=True,
    )
    y = np.arange(len(words))
    for ax, (rule, counts) in zip(np.atleast_1d(axes), seen.items(), strict=True):
        total = counts.sum()
        excess = counts / (law * total) - 1
        error = 1.96 * np.sqrt((1 - law) / (law * total))
        wrong = np.abs(excess) > 2 * error
        fills = [tint(LOST, 0.7) if off else tint(KEPT, 0.6) for off in wrong]
        ax.barh(y, 100 * excess, xerr=100 * error, color=fills, height=0.6)
        ax.axvline(0, color=INK, linewidth=0.8)
        ax.set_title(textwrap.fill(rule, 16), fontsize=9)
        ax.grid(False, axis="y")
    first = np.atleast_1d(axes)[0]
    first.set_yticks(y, words)
    first.invert_yaxis()
    fig.supxlabel("said too often (+) or too seldom (−), in per cent", fontsize=10)
    return fig


def _steps(ax: Axes, x: np.ndarray, p: np.ndarray) -> None:
    """The target's law as a line across each bar."""
    for place, height in zip(x, p, strict=True):
        ax.plot([place - 0.46, place + 0.46], [height] * 2, color=INK, linewidth=1.8)
    ax.plot([], [], color=INK, linewidth=1.8, label="target's p")


def calibration_dots(lines: pd.DataFrame) -> Figure:
    """Share of drafts against what q says, for two choices of q.

    Args:
        lines: from :func:`xpress_lab.exactness.calibration`.
    """
    fig, axes = plt.subplots(1, 2, figsize=(8.4, 4), sharex=True, sharey=True)
    kinds = {
        "q": ("q of the pass that drew the draft", KEPT, "o"),
        "late_q": ("q of the next pass", LOST, "X"),
    }
    for ax, (column, (title, colour, marker)) in zip(axes, kinds.items(), strict=True):
        size = 8 + 90 * lines["blocks"] / lines["blocks"].max()
        style = {"s": size, "color": tint(colour, 0.75), "marker": marker, "zorder": 3}
        ax.plot([0, 1], [0, 1], color=INK, linewidth=1, zorder=2)
        ax.scatter(lines[column], lines["share"], **style)
        ax.set(xlabel="what q says", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        ax.set_title(title, fontsize=10)
        ax.set_aspect("equal")
    axes[0].set_ylabel("share of blocks with this word")
    return fig


def opening_bars(
    law: dict[tuple, float],
    seen: Mapping[str, Mapping[tuple, int]],
    spell: Callable[[tuple], str],
    most: int = 12,
) -> Figure:
    """How often answers began in each way, beside the exact chances.

    Args:
        law: chances of the likelier openings; the others are one bar.
        seen: counts of openings by name of the method, at most two of them.
        spell: text of an opening.
        most: openings drawn by name.
    """
    first = sorted(law, key=law.get, reverse=True)[:most]
    names = [*map(spell, first), "anything else"]
    exact = np.array([law[words] for words in first])
    exact = np.append(exact, 1 - exact.sum())
    fig, ax = plt.subplots(figsize=(8.4, 0.32 * len(names) + 1))
    y = np.arange(len(names))
    ax.barh(y, exact, color="#d9d9d9", height=0.8, label="exact law")
    looks = [(KEPT, "o"), (LOST, "X")]
    for (name, own), (colour, marker) in zip(seen.items(), looks, strict=False):
        total = sum(own.values())
        share = np.array([own.get(words, 0) for words in first]) / total
        share = np.append(share, 1 - share.sum())
        error = 1.96 * np.sqrt(share * (1 - share) / total)
        style = {"fmt": marker, "color": colour, "label": name, "ms": 6, "capsize": 2}
        ax.errorbar(share, y, xerr=error, **style)
    ax.set_yticks(y, names)
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.set_xlabel("share of answers that begin so")
    ax.grid(False, axis="y")
    ax.legend(loc="center right")
    return fig
