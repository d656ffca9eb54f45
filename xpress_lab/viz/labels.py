"""Names at the ends of lines, which spare a figure its legend, and of benchmarks."""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes

BENCHMARKS = {
    "all": "all together",
    "gsm8k": "GSM8K",
    "math500": "MATH-500",
    "aime25": "AIME25",
    "humaneval": "HumanEval",
    "mbpp": "MBPP",
    "livecodebench": "LiveCodeBench",
    "mt-bench": "MT-Bench",
}


def benchmark_label(name: str) -> str:
    """The name that people know; others as they are."""
    return BENCHMARKS.get(name, name)


def in_families(names: Iterable[str]) -> list[str]:
    """Math, code, conversation, as the paper orders them; others stay where they are,
    behind these."""
    known = list(BENCHMARKS)
    return sorted(names, key=lambda n: known.index(n) if n in known else len(known))


def name_benchmarks(ax: Axes, names: Sequence[str], many: int = 4) -> None:
    """Ticks at 0, 1, 2, ... with the benchmarks' names.

    Args:
        many: so many names stand side by side; more are tilted.
    """
    tilt = {"rotation": 30, "ha": "right"} if len(names) > many else {}
    ax.set_xticks(range(len(names)), [benchmark_label(n) for n in names], **tilt)


def name_ends(
    ax: Axes,
    ends: list[tuple[float, str, str]],
    gap: float = 0.075,
    leave: Sequence[float | None] | None = None,
) -> None:
    """Write (y, text, colour) labels right of the axes, pushed apart where needed.

    Args:
        gap: least distance between two labels, as a share of the axes' height.
        leave: the x at which each line ends, ``None`` for the right edge. A thin line
            then leads from there to its label, which may stand beside another one.
    """
    low, high = ax.get_ylim()
    places = [(y - low) / (high - low) for y, _, _ in ends]
    order = sorted(range(len(ends)), key=places.__getitem__)
    for before, now in zip(order, order[1:], strict=False):
        places[now] = max(places[now], places[before] + gap)
    excess = max(0.0, places[order[-1]] - 0.99) if order else 0.0
    style = {"va": "center", "fontsize": 9, "weight": "bold"}
    for n, (place, (y, text, colour)) in enumerate(zip(places, ends, strict=True)):
        style["color"], height = colour, place - excess
        if leave is None:
            ax.text(1.015, height, text, transform=ax.transAxes, **style)
        else:
            _lead(ax, leave[n], y, text, height, style)


def name_log_ends(ax: Axes, ends: list[tuple[float, str, str]]) -> None:
    """:func:`name_ends` for a logarithmic axis; ``ends`` hold base-10 logarithms.

    The upper and the lower labels are placed apart, so that a crowd at the top does
    not push down those at the bottom.
    """
    low, high = np.log10(ax.get_ylim())
    twin = ax.twinx()
    twin.set_ylim(low, high)
    twin.set_axis_off()
    middle = (low + high) / 2
    name_ends(twin, [end for end in ends if end[0] >= middle])
    name_ends(twin, [end for end in ends if end[0] < middle])


def _lead(ax: Axes, x: float | None, y: float, text: str, height: float, style) -> None:
    """A label right of the axes with a thin line to (x, y)."""
    edge = x is None
    thread = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.8}
    thread |= {"relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0 if edge else 4}
    units = ("axes fraction" if edge else "data", "data")
    label = {"xytext": (1.07, height), "textcoords": "axes fraction"} | style
    where = {"xycoords": units, "arrowprops": thread, "annotation_clip": False}
    ax.annotate(text, (1 if edge else x, y), **where, **label)
