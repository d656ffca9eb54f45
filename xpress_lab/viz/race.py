"""Methods side by side on one prompt, at chosen moments of a recorded run.

A column is a method, a row is a moment. A text is laid out once, as a whole, and
uncovered piece by piece, so that no word moves while the text grows.
"""

import re
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from xpress_lab.benchmarks.recording import Lane
from xpress_lab.errors import LabError
from xpress_lab.viz.style import DPI, INK, MUTED, look_of, tint

# Letters of a monospaced font are drawn at whole pixels: 7 of them make an advance.
CHAR, LINE = 7 / DPI, 0.165  # inches
SIZE = CHAR * 72 / 0.602  # points
COLUMNS = 36  # characters a line
LEFT, GAP, TOP, FOOT, BETWEEN = 0.72, 0.24, 0.32, 0.36, 0.2  # inches

Segment = tuple[int, int, str, int]  # line, column, text, number of the piece


def layout(pieces: Sequence[str], columns: int = COLUMNS) -> list[Segment]:
    """Break a text into lines at spaces, remembering which piece each part is of.

    A word longer than a line is cut; the space at which a line breaks goes.
    """
    owners = [n for n, piece in enumerate(pieces) for _ in piece]
    segments: list[list] = []
    line = column = 0
    for found in re.finditer(r"\n|[^\S\n]+|\S+", "".join(pieces)):
        word, start = found[0], found.start()
        if word == "\n":
            line, column = line + 1, 0
            continue
        if word.isspace() and column and column + len(word) >= columns:
            line, column = line + 1, 0
            continue
        if column and column + len(word) > columns:
            line, column = line + 1, 0
        for char, owner in zip(word, owners[start:], strict=False):
            if column >= columns:
                line, column = line + 1, 0
            last = segments[-1] if segments else None
            if last and (last[0], last[3]) == (line, owner):
                last[2] += char
            else:
                segments.append([line, column, char, owner])
            column += 1
    return [tuple(segment) for segment in segments]


def moments_of(lanes: Sequence[Lane]) -> list[float]:
    """Three telling moments: half way of the quickest, its end, and the last end."""
    ends = [lane.seconds for lane in lanes]
    return [min(ends) / 2, min(ends), max(ends)]


def race(
    lanes: Sequence[Lane], moments: Sequence[float] | float | None = None
) -> Figure:
    """Draw what stood there at each moment, the newest piece of each text marked.

    Args:
        lanes: from :func:`xpress_lab.benchmarks.recording.record`.
        moments: seconds, a row each; by default :func:`moments_of`.
    """
    if not lanes:
        raise LabError("A race needs lanes: record at least one method.")
    moments = moments_of(lanes) if moments is None else moments
    moments = [moments] if isinstance(moments, int | float) else list(moments)
    layouts = [layout(lane.pieces) for lane in lanes]
    lines = 1 + max(segment[0] for parts in layouts for segment in parts)
    wide, high = COLUMNS * CHAR, lines * LINE
    width = LEFT + len(lanes) * (wide + GAP)
    height = TOP + len(moments) * (high + FOOT + BETWEEN)
    fig = plt.figure(figsize=(width, height), layout="none")
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(height, 0))
    ax.set_axis_off()
    for row, moment in enumerate(moments):
        y = TOP + row * (high + FOOT + BETWEEN)
        ax.text(0.08, y + LINE / 2, f"{moment:.2f} s", fontsize=9.5, va="center")
        for column, (lane, parts) in enumerate(zip(lanes, layouts, strict=True)):
            x = LEFT + column * (wide + GAP)
            if row == 0:
                _name(ax, x, lane)
            _text(ax, x, y, lane, parts, moment)
            _foot(ax, x, y + high + 0.06, wide, lane, moment)
    return fig


def race_sentence(lanes: Sequence[Lane], moment: float) -> str:
    """What the picture of one moment shows, in words."""
    said = []
    for lane in lanes:
        label, count = look_of(lane.method).label, lane.tokens_at(moment)
        done = moment >= lane.seconds
        said.append(f"{label} {'is done with' if done else 'has'} {count}")
    *rest, last = said
    listed = f"{', '.join(rest)} and {last}" if rest else last
    return f"After {moment:.2f} s {listed} tokens."


def _name(ax: Axes, x: float, lane: Lane) -> None:
    look = look_of(lane.method)
    ax.plot(x + 0.05, TOP / 2, look.marker, color=look.colour, ms=6)
    style = {"weight": "bold", "color": look.colour, "fontsize": 10}
    ax.text(x + 0.18, TOP / 2, look.label, va="center", **style)


def _text(ax: Axes, x: float, y: float, lane: Lane, parts, moment: float) -> None:
    """The pieces so far; the newest on a tinted ground and in bold."""
    shown, running = lane.pieces_at(moment), moment < lane.seconds
    fill = tint(look_of(lane.method).colour, 0.3)
    for line, column, text, piece in parts:
        if piece >= shown:
            break
        newest = running and piece == shown - 1
        left, top = x + column * CHAR, y + line * LINE
        if newest:
            size = (len(text) * CHAR, LINE * 0.9)
            ax.add_patch(Rectangle((left, top), *size, facecolor=fill, linewidth=0))
        ax.text(
            left,
            top + LINE * 0.45,
            text.replace("$", r"\$"),
            va="center",
            family="DejaVu Sans Mono",
            fontsize=SIZE,
            weight="bold" if newest else "normal",
            color=INK,
        )


def _foot(ax: Axes, x: float, y: float, wide: float, lane: Lane, moment: float) -> None:
    """A bar of tokens written out of all, and what that makes a second."""
    look, total = look_of(lane.method), sum(lane.counts)
    count, done = lane.tokens_at(moment), moment >= lane.seconds
    ax.add_patch(Rectangle((x, y), wide, 0.06, facecolor="#ececec", linewidth=0))
    share = wide * count / total
    ax.add_patch(Rectangle((x, y), share, 0.06, facecolor=look.colour, linewidth=0))
    ax.text(x, y + 0.2, f"{count} tokens", fontsize=8.5, va="center")
    speed = f"{'✓ ' if done else ''}{lane.speed_at(moment):.0f} tokens a second"
    style = {"color": INK if done else MUTED, "weight": "bold" if done else "normal"}
    ax.text(x + wide, y + 0.2, speed, ha="right", va="center", fontsize=8.5, **style)
