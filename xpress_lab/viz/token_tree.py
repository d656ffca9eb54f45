"""A token tree of one round: what was drafted, how likely, and which path was kept."""

import math
from collections import Counter
from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from xpress_lab.decoding import Round
from xpress_lab.errors import LabError
from xpress_lab.trees import TokenTree
from xpress_lab.viz.jacobi_grid import Words, font_size, lookup, show_word
from xpress_lab.viz.rounds_grid import OWN
from xpress_lab.viz.style import INK, MUTED, look_of, tint

COLUMN, ROW, TITLE, EDGES = 0.78, 0.36, 0.3, 0.6  # inches


def tree_of(one: Round) -> TokenTree:
    """The tree that a round verified, in target ids."""
    if not one.parents:
        raise LabError("This round drafted a chain, or nothing: it has no tree.")
    return TokenTree(one.block[1:], one.parents, one.scores)


def layout(tree: TokenTree) -> list[int]:
    """The line on which each node 0..M stands: a node's first child goes on beside it,
    every further child opens a line below."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents, start=1):
        children.setdefault(parent, []).append(node)
    lines, free = [0] * (len(tree) + 1), 0
    waiting = [0]
    while waiting:  # depth first, so that lines follow each other downwards
        node = waiting.pop()
        first, *others = children.get(node, [None])
        waiting += reversed(others)
        if node and node != children[tree.parents[node - 1]][0]:
            free += 1
        lines[node] = free
        if first is not None:
            waiting.append(first)
    return lines


def token_trees(
    rounds: Mapping[str, Round], words: Words, method: str, chances: bool = True
) -> Figure:
    """Trees below each other, drafted columns aligned.

    Args:
        rounds: by what is written above them; each drafted a tree.
        words: text of a token id, a function or a sequence.
        method: gives the colour of what was kept.
        chances: whether scores are logarithms of chances, which nodes show as per
            cent; else they show the score itself.
    """
    note = percent if chances else score_note
    trees = [with_own_word(one) for one in rounds.values()]
    deep = max(max(tree.depths) for tree in trees)
    rows = [max(layout(tree)) + 1 for tree in trees]
    heights = [ROW * count + TITLE for count in rows]
    width = COLUMN * (deep + 1) + 0.2
    height = sum(heights) + EDGES
    fig = plt.figure(figsize=(width, height), layout="none")
    top = height - 0.12
    for (title, one), room in zip(rounds.items(), heights, strict=True):
        place = (0.1 / width, (top - room) / height, 1 - 0.2 / width, room / height)
        ax = fig.add_axes(place)
        ax.set(
            xlim=(0, deep + 1),
            ylim=(room / ROW - 0.5 - TITLE / ROW, -0.5 - TITLE / ROW),
        )
        ax.set_axis_off()
        _tree(ax, one, words, look_of(method).colour, note)
        ax.text(0.05, -0.85, title, fontsize=9.5, weight="bold", va="center")
        top -= room
    _legend(fig, look_of(method).colour)
    return fig


def with_own_word(one: Round) -> TokenTree:
    """The round's tree and, as its newest node, the target's word behind the path."""
    tree, last = tree_of(one), one.path[-1] if one.path else 0
    return TokenTree(
        [*tree.tokens, one.next_token], [*tree.parents, last], [*tree.scores, 0.0]
    )


def _tree(
    ax: Axes, one: Round, words: Words, colour: str, note: Callable[[float], str]
) -> None:
    tree, own = with_own_word(one), len(one.block)
    shown = spelled(tree, one.block[0], words)
    lines, depths = layout(tree), tree.depths
    kept = {0, *one.path, own}
    for node, parent in enumerate(tree.parents, start=1):
        strong = node in kept
        _edge(ax, depths, lines, parent, node, colour if strong else "#b9b9b9", strong)
    notes = ["anchor", *map(note, one.scores), "target"]
    for node, text in enumerate(shown):
        strong = node in kept
        fill = OWN if node == own else tint(colour, 0.3) if strong else "white"
        edge = INK if node == own else "#b5b5b5"
        _box(ax, depths[node], lines[node], fill, text, notes[node], strong, edge)


def spelled(tree: TokenTree, anchor: int, words: Words) -> list[str]:
    """Words of nodes 0..M; siblings that would look alike show their leading space."""
    raw = [lookup(words)(token) for token in (anchor, *tree.tokens)]
    shown = [show_word(word) for word in raw]
    alike = Counter(zip(tree.parents, shown[1:], strict=True))
    for node, parent in enumerate(tree.parents, start=1):
        if alike[parent, shown[node]] > 1 and raw[node].startswith(" "):
            shown[node] = f"␣{shown[node]}"
    return shown


def percent(score: float) -> str:
    """A log-chance as whole per cent; small chances are not rounded to none."""
    chance = math.exp(score)
    return f"{chance:.0%}" if chance >= 0.005 else "< 1%"


def score_note(score: float) -> str:
    """A score that is no chance, with a true minus sign."""
    return f"score {score:.1f}".replace("-", "−")


def _edge(ax: Axes, depths, lines, parent: int, node: int, colour, strong) -> None:
    """Right from the parent, then down to the node's line."""
    start, end = depths[parent] + 0.93, depths[node] + 0.05
    bend = (start + end) / 2
    ax.plot(
        [start, bend, bend, end],
        [lines[parent], lines[parent], lines[node], lines[node]],
        color=colour,
        linewidth=1.8 if strong else 0.8,
        zorder=3 if strong else 1,
    )


def _box(ax, depth, line, fill, text, note, strong, edge="#b5b5b5") -> None:
    ax.add_patch(
        FancyBboxPatch(
            (depth + 0.07, line - 0.38),
            0.84,
            0.76,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=fill,
            edgecolor=edge,
            linewidth=1.2 if edge == INK else 0.7,
            zorder=2,
        )
    )
    style = {"ha": "center", "va": "center", "zorder": 4}
    ax.text(
        depth + 0.49,
        line - 0.12,
        text.replace("$", r"\$"),
        fontsize=font_size(text, bold=strong),
        weight="bold" if strong else "normal",
        color=INK,
        **style,
    )
    ax.text(depth + 0.49, line + 0.23, note, fontsize=5.8, color=MUTED, **style)


def _legend(fig: Figure, colour: str) -> None:
    handles = [
        Patch(facecolor=tint(colour, 0.3), edgecolor="#b5b5b5", label="path kept"),
        Patch(facecolor="white", edgecolor="#b5b5b5", label="drafted in vain"),
        Patch(facecolor=OWN, edgecolor=INK, label="the target's own word"),
    ]
    fig.legend(
        handles=handles, loc="lower center", ncols=3, fontsize=8.5, borderaxespad=0.1
    )
