"""The refiner as a picture: Fuse, Mix, Trans, Read on one real block.

Slots run across, the four modules run down. A line says who reads from whom; the lines
into one watched slot are drawn strongly.
"""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from xpress_lab.viz.jacobi_grid import font_size, show_word
from xpress_lab.viz.style import INK, MUTED, look_of, tint

# Rows of the picture: where they stand, and what they are called.
PLACES = {"t": 0.0, "h": 0.9, "g": 1.8, "a": 3.2, "c": 5.3, "z": 6.7, "bias": 8.1}
NAMES = {
    "t": "previous token",
    "h": "drafter's hidden state",
    "g": "mean over the block",
    "a": "a",
    "c": "c",
    "z": "z",
    "bias": "bias on the logits",
}
OUT = 9.15  # the refined block, under the bias
FORMULAS = {
    "Fuse": (2.5, "three inputs become one vector"),
    "Mix": (4.25, "each slot hears those to its left"),
    "Trans": (5.97, "a small MLP, slot by slot"),
    "Read": (7.36, "one number per word of the vocabulary"),
}
HALF = 0.3  # of a row's height
CELL, ROW = 0.6, 0.66  # inches


def refiner_diagram(
    shapes: Mapping[str, Sequence[int]],
    before: Sequence[str],
    after: Sequence[str],
    watched: int = 5,
) -> Figure:
    """Draw one block on its way through the refiner.

    Args:
        shapes: of the tensors named in :data:`PLACES`, one block without the row axis.
        before: B words, the previous token of each slot.
        after: B - 1 words that the refined logits choose in slots 1..B-1.
        watched: the slot whose inputs are drawn strongly.
    """
    slots = shapes["h"][0]
    fig = plt.figure(figsize=(CELL * slots + 4.7, ROW * (OUT + 1.5)), layout="none")
    ax = fig.add_axes((0, 0, 1, 1))
    left, right = 3.7, 1.9  # room for names and shapes, in cells
    ax.set(xlim=(-left - 0.2, slots + right + 0.2), ylim=(OUT + 0.6, -0.9))
    ax.set_axis_off()
    _lines(ax, slots, watched)
    for key, y in PLACES.items():
        _row(ax, key, y, slots, before if key == "t" else None)
        ax.text(-0.25, y, NAMES[key], ha="right", va="center", fontsize=10)
        shape = " × ".join(map(str, shapes[key]))
        style = {"va": "center", "family": "monospace", "fontsize": 9.5}
        ax.text(slots + 0.25, y, shape, color=MUTED, **style)
    for name, (y, what) in FORMULAS.items():
        style = {"ha": "right", "color": look_of("xpress").colour}
        ax.text(-0.25, y - 0.12, name, weight="bold", fontsize=13, va="center", **style)
        ax.text(-0.25, y + 0.27, what, fontsize=8.5, va="center", **style)
    said = "added to the drafter's\nlogits, the largest is"
    ax.text(-0.25, OUT, said, ha="right", va="center", fontsize=9, color=INK)
    for k, word in enumerate(after, 1):
        _box(ax, k, OUT, "#fff", edge=INK)
        _word(ax, k, OUT, word)
    for k in range(slots):
        name = "anchor" if k == 0 else "slot 1" if k == 1 else str(k)
        weight = "bold" if k == watched else "normal"
        style = {"ha": "center", "fontsize": 9, "color": MUTED, "weight": weight}
        ax.text(k + 0.5, -0.5, name, **style)
    return fig


def _row(ax: Axes, key: str, y: float, slots: int, words) -> None:
    blue, green = look_of("dflash").colour, look_of("xpress").colour
    if key == "g":
        _box(ax, 0, y, tint(blue, 0.25), width=slots)
        return
    fill = {"t": "#f0f0f0", "h": tint(blue, 0.25)}.get(key, tint(green, 0.25))
    for k in range(key == "bias", slots):
        _box(ax, k, y, fill)
        if words is not None:
            _word(ax, k, y, words[k])


def _box(ax: Axes, k: float, y: float, fill, width: float = 1, edge="#b5b5b5") -> None:
    ax.add_patch(
        Rectangle(
            (k + 0.06, y - HALF),
            width - 0.12,
            2 * HALF,
            facecolor=fill,
            edgecolor=edge,
            linewidth=0.7,
            zorder=3,
        )
    )


def _word(ax: Axes, k: int, y: float, word: str) -> None:
    shown = show_word(word)
    size = min(font_size(shown), 8)
    text = shown.replace("$", r"\$")
    ax.text(k + 0.5, y, text, ha="center", va="center", fontsize=size, zorder=4)


def _lines(ax: Axes, slots: int, watched: int) -> None:
    """Who reads from whom: straight down everywhere but in Mix."""
    strong = {"color": look_of("xpress").colour, "linewidth": 1.7, "zorder": 2}
    faint = {"color": "#cfcfcf", "linewidth": 0.7, "zorder": 1}
    down = [("t", "a"), ("c", "z"), ("z", "bias")]
    for k in range(slots):
        style = strong if k == watched else faint
        for above, below in down:
            if below != "bias" or k:
                _line(ax, k, PLACES[above], k, PLACES[below], style)
        if k:
            _line(ax, k, PLACES["bias"], k, OUT, style)
        for j in range(k + 1):
            _line(ax, j, PLACES["a"], k, PLACES["c"], style)


def _line(ax: Axes, j: int, above: float, k: int, below: float, style: dict) -> None:
    ax.plot([j + 0.5, k + 0.5], [above + HALF, below - HALF], **style)
