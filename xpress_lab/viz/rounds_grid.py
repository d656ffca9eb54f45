"""A whole text as the rounds that made it: what was drafted, kept and thrown away."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from xpress_lab.decoding import Generation, Round
from xpress_lab.errors import LabError
from xpress_lab.viz.jacobi_grid import (
    CELL_HEIGHT,
    CELL_WIDTH,
    NO,
    Words,
    font_size,
    lookup,
    show_word,
)
from xpress_lab.viz.style import INK, MUTED, look_of, tint

NAMES_WIDTH, EDGES_HEIGHT = 0.85, 0.75  # inches
OWN = "#fff3c4"  # the target's own token


def rounds_grid(
    text: Generation, words: Words, method: str, most: int | None = None
) -> Figure:
    """Draw one text, a row per verification.

    Args:
        text: drafted in chains, with block_size > 1.
        words: text of a token id, a function or a sequence.
        method: gives the colour.
        most: draw the first rounds only.
    """
    word, look = lookup(words), look_of(method)
    rounds = text.rounds[:most]
    if any(one.parents for one in rounds):
        raise LabError("A text drafted in trees has no slots to draw: use a chain.")
    slots = text.block_size - 1
    wide, high = CELL_WIDTH * (slots + 1), CELL_HEIGHT * 1.12 * len(rounds)
    width, height = wide + NAMES_WIDTH + 0.35, high + EDGES_HEIGHT
    fig = plt.figure(figsize=(width, height), layout="none")
    bottom = 0.38 / height
    ax = fig.add_axes((NAMES_WIDTH / width, bottom, wide / width, high / height))
    ax.set(xlim=(-0.02, slots + 1.02), ylim=(len(rounds) - 0.5, -0.5))
    ax.set_axis_off()
    for k in range(slots):
        ax.text(k + 0.5, -0.75, str(k + 1), ha="center", fontsize=8, color=MUTED)
    ax.text(-0.1, -0.75, "slot", ha="right", fontsize=8, color=MUTED)
    for y, one in enumerate(rounds):
        name = f"round {y + 1}"
        ax.text(-0.1, y, name, ha="right", va="center", fontsize=8.5)
        _round(ax, y, one, lambda token: show_word(word(token)), look.colour)
    handles = [
        Patch(
            facecolor=tint(look.colour, 0.3), edgecolor="#b5b5b5", label="draft kept"
        ),
        Patch(facecolor=OWN, edgecolor=INK, label="the target's own word"),
        Patch(facecolor="white", edgecolor=NO, label="draft thrown away (struck out)"),
    ]
    fig.legend(
        handles=handles, loc="lower center", ncols=3, fontsize=8.5, borderaxespad=0.1
    )
    return fig


def _round(ax: Axes, y: int, one: Round, word, colour: str) -> None:
    """Kept drafts, then the target's word, then what was drafted in vain.

    Where a text ends within the kept drafts, nothing behind its end was emitted.
    """
    kept = min(one.accepted, one.emitted)
    for k, token in enumerate(one.block[1:]):
        fill = tint(colour, 0.3) if k < kept else "white"
        _box(ax, k, y, fill, word(token), struck=k >= kept)
    if one.emitted > one.accepted:
        _box(ax, kept, y, OWN, word(one.next_token), edge=INK, zorder=3)
        if kept + 1 < len(one.block):
            _rejected(ax, kept, y, word(one.block[kept + 1]))


def _box(ax, k, y, fill, text, struck=False, edge="#cfcfcf", zorder=1) -> None:
    ax.add_patch(
        Rectangle(
            (k, y - 0.45),
            1,
            0.9,
            facecolor=fill,
            edgecolor=edge,
            linewidth=1.2 if edge == INK else 0.6,
            zorder=zorder,
        )
    )
    own = edge == INK
    ax.text(
        k + 0.5,
        y - 0.1 * own,
        text.replace("$", r"\$"),
        ha="center",
        va="center",
        fontsize=font_size(text, bold=own),
        color=MUTED if struck else INK,
        weight="bold" if own else "normal",
        zorder=zorder,
        clip_on=False,
    )
    if struck:
        ax.plot([k + 0.12, k + 0.88], [y] * 2, color=NO, lw=1, alpha=0.6)


def _rejected(ax: Axes, k: int, y: int, text: str) -> None:
    """The draft that the target's own word replaces, small in the same cell."""
    style = {"ha": "center", "va": "center", "fontsize": 6, "color": MUTED}
    ax.text(k + 0.5, y + 0.26, text.replace("$", r"\$"), zorder=4, **style)
    half = min(0.45, 0.05 + 0.04 * len(text))
    ends = [k + 0.5 - half, k + 0.5 + half]
    ax.plot(ends, [y + 0.26] * 2, color=NO, lw=0.8, alpha=0.6, zorder=4)
