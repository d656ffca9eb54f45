"""The picture of the method: a block of drafts, pass by pass.

Passes run down, slots run across. Pass 0 is the seed, the bare dFlash draft. Every
cell below is compared with the one above it:

* **changed**: this pass chose another token.
* **frozen**: unchanged, and so is everything to its left. It can never change
  again, because its inputs can not.
* **kept**: unchanged, but something to its left moved, so it may still change.

A red number above a slot says that its last draft is **rejected later**, by the target.
"""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Polygon, Rectangle

from xpress_lab.decoding import Round
from xpress_lab.viz.style import INK, MUTED

SEED, CHANGED, KEPT, FROZEN = "seed", "changed", "kept", "frozen"
ACCEPTED, REJECTED, UNREAD = "accepted", "rejected", "unread"

FILL = {SEED: "#f0f0f0", CHANGED: "#f7c66b", KEPT: "white", FROZEN: "#bcdcf0"}
YES, NO = "#00664b", "#b3261e"
GLYPHS = {"\n": "⏎", " ": "␣", "    ": "⇥", "": "∅"}
CELL_WIDTH, CELL_HEIGHT = 0.66, 0.34  # inches
NAMES_WIDTH, LEGEND_LINE = 1.15, 0.24  # inches
WIDE = 12  # slots, from which the legend fits one line

Words = Callable[[int], str] | Sequence[str]


def classify(
    trace: Sequence[Sequence[int]], accepted: int
) -> tuple[list[list[str]], list[str]]:
    """What happened in each cell, and what the target said of the last row.

    Args:
        trace: drafts of the seed and of each pass, one row each.
        accepted: leading drafts of the last row that the target kept.

    Returns:
        A state per pass and slot (seed, changed, kept, frozen), and a verdict per
        slot: accepted, rejected (the first miss) or unread (behind the miss).
    """
    states = [[SEED] * len(trace[0])]
    for before, now in zip(trace, trace[1:], strict=False):
        row, prefix_holds = [], True
        for old, new in zip(before, now, strict=True):
            prefix_holds = prefix_holds and old == new
            row.append(FROZEN if prefix_holds else KEPT if old == new else CHANGED)
        states.append(row)
    behind = len(trace[0]) - accepted - 1
    verdict = [ACCEPTED] * accepted + [REJECTED] * (behind >= 0) + [UNREAD] * behind
    return states, verdict


def right_so_far(drafts: Sequence[int], emitted: Sequence[int]) -> int:
    """Leading drafts that agree with the text that was finally emitted."""
    for count, (draft, token) in enumerate(zip(drafts, emitted, strict=False)):
        if draft != token:
            return count
    return min(len(drafts), len(emitted))


def emitted_by(round: Round) -> list[int]:
    """What the target makes of the block: the kept drafts and its own token."""
    return [*round.block[1 : round.accepted + 1], round.next_token]


def gain(round: Round) -> int:
    """Right drafts after the passes, less right drafts before them."""
    return round.accepted - right_so_far(round.trace[0], emitted_by(round))


def show_word(word: str) -> str:
    """A token's text in a form that can be seen: white space becomes a sign."""
    return GLYPHS.get(word, word.strip(" ").replace("<|", "<").replace("|>", ">"))


def lookup(words: Words) -> Callable[[int], str]:
    """Text of a token id, from a function or a sequence."""
    return words if callable(words) else words.__getitem__


def font_size(text: str, bold: bool = False) -> float:
    """The largest size at which a word fits its cell."""
    length = len(text) + bold + 0.5 * sum(text.count(wide) for wide in "mwMW")
    return next((s for s, most in ((9, 7), (8, 8), (7, 9.5)) if length <= most), 6)


def jacobi_grid(
    round: Round,
    words: Words,
    ax: Axes | None = None,
    upto: int | None = None,
    legend: bool = True,
) -> Figure:
    """Draw one round: its block at every pass, and the target's verdict.

    Args:
        round: with its trace; without one only the final drafts are drawn.
        words: text of a token id, a function or a sequence.
        ax: drawn on if given, else a new figure of fitting size is made.
        upto: show passes 0..upto only, with the place of the others left empty;
            the verdict appears with the last pass.
        legend: explain the colours under the grid.
    """
    word = lookup(words)
    trace = round.trace or [round.block[1:]]
    states, verdict = classify(trace, round.accepted)
    shown = len(trace) if upto is None else min(upto + 1, len(trace))
    rows, slots = len(trace) + 1, len(trace[0])
    if ax is None:
        ax = _fitting_axes(rows, slots)
    _empty_stage(ax, rows, verdict)
    emitted = emitted_by(round)
    for p in range(shown):
        _name_row(ax, p, _pass_name(p, len(round.trace)), bold=p == shown - 1)
        for k, token in enumerate(trace[p]):
            _cell(ax, p, k, show_word(word(token)), states[p][k])
        _frozen_edge(ax, p, states[p])
        right = right_so_far(trace[p], emitted)
        ax.text(slots + 0.45, p, str(right), ha="center", va="center", fontsize=9)
    if shown == len(trace):
        _name_row(ax, rows - 1 + 0.05, "target", bold=True)
        _verdict_row(ax, rows - 1, verdict, show_word(word(round.next_token)))
    anchor = show_word(word(round.block[0]))
    ax.text(-0.1, -1.02, f"after “{anchor}”", ha="right", va="center", fontsize=8)
    if legend:
        _legend(ax, slots)
    return ax.figure


def _pass_name(p: int, passes: int) -> str:
    if not passes:
        return "drafts"
    return "pass 0: draft" if p == 0 else f"pass {p}"


def _fitting_axes(rows: int, slots: int) -> Axes:
    """Axes on a new figure, so that a cell has the same size in every grid."""
    wide, high = CELL_WIDTH * (slots + 1), CELL_HEIGHT * (rows + 1.3)
    below = LEGEND_LINE * (1.7 if slots >= WIDE else 2.7)
    width, height = wide + NAMES_WIDTH, high + below
    fig = plt.figure(figsize=(width, height), layout="none")
    place = (NAMES_WIDTH / width, below / height, wide / width, high / height)
    return fig.add_axes(place)


def _empty_stage(ax: Axes, rows: int, verdict: list[str]) -> None:
    slots = len(verdict)
    ax.set_xlim(-0.05, slots + 0.95)
    ax.set_ylim(rows - 0.1, -1.4)
    ax.set_axis_off()
    ax.grid(False)
    for k, said in enumerate(verdict):
        text = f"slot {k + 1}" if k == 0 else str(k + 1)
        colour = MUTED if said == ACCEPTED else NO
        style = {"ha": "center", "va": "center", "fontsize": 8}
        ax.text(k + 0.5, -0.75, text, color=colour, **style)
    ax.text(
        slots + 0.45,
        -0.85,
        "right\nso far",
        ha="center",
        va="center",
        fontsize=8,
        color=MUTED,
    )


def _name_row(ax: Axes, y: float, name: str, bold: bool) -> None:
    weight = "bold" if bold else "normal"
    ax.text(-0.1, y, name, ha="right", va="center", fontsize=8.5, weight=weight)


def _cell(ax: Axes, p: int, k: int, text: str, state: str) -> None:
    """One token: fill says the state, so do a corner (changed) and bold type."""
    box = Rectangle(
        (k, p - 0.5), 1, 1, facecolor=FILL[state], edgecolor="#b5b5b5", linewidth=0.6
    )
    ax.add_patch(box)
    if state == CHANGED:
        corner = [(k, p - 0.5), (k + 0.16, p - 0.5), (k, p - 0.2)]
        ax.add_patch(Polygon(corner, facecolor=INK, linewidth=0))
    weight = "bold" if state == CHANGED else "normal"
    ax.text(
        k + 0.5,
        p,
        text.replace("$", r"\$"),
        ha="center",
        va="center",
        fontsize=font_size(text, bold=state == CHANGED),
        weight=weight,
        color=INK,
    )


def _frozen_edge(ax: Axes, p: int, states: list[str]) -> None:
    """A thick line on the right of the frozen prefix."""
    frozen = states.count(FROZEN)
    if frozen:
        ax.plot([frozen] * 2, [p - 0.5, p + 0.5], color="#0b4f78", linewidth=2.4)


def _verdict_row(ax: Axes, y: int, verdict: list[str], correction: str) -> None:
    """Ticks, one cross with the target's own token, and strokes through the rest."""
    for k, said in enumerate(verdict):
        if said == ACCEPTED:
            ax.text(k + 0.5, y + 0.05, "✓", ha="center", va="center", color=YES)
        else:
            ax.plot([k + 0.12, k + 0.88], [y - 1] * 2, color=NO, linewidth=1.1)
    if REJECTED in verdict:
        k = verdict.index(REJECTED)
        text, style = f"✗\n{correction}", {"color": NO, "weight": "bold"}
    else:
        k, text, style = (
            len(verdict),
            f"✓ bonus\n{correction}",
            {"color": YES, "weight": "bold"},
        )
    ax.text(k + 0.5, y - 0.22, text, ha="center", va="top", fontsize=8, **style)


def _legend(ax: Axes, slots: int) -> None:
    names = {
        CHANGED: "changed by this pass",
        KEPT: "same as above, not final yet",
        FROZEN: "frozen: final, as is all to its left",
    }
    handles = [
        Patch(facecolor=FILL[state], edgecolor="#b5b5b5", label=name)
        for state, name in names.items()
    ]
    red = {"marker": "$7$", "color": NO, "linestyle": "", "markersize": 6}
    handles.append(Line2D([], [], label="red number: rejected later", **red))
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=4 if slots >= WIDE else 2,
        fontsize=8.5,
        frameon=False,
        borderaxespad=0.2,
    )
