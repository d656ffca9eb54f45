"""One look for every figure: what each method is called and how it is drawn.

Colours come from a colour-blind-safe palette, and no figure relies on colour alone:
methods also differ by marker, line style and hatch.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import seaborn as sns
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

DPI = 110
INK, MUTED, PAPER = "#222222", "#6b6b6b", "white"


@dataclass(frozen=True)
class Look:
    """How one method appears."""

    label: str
    colour: str
    marker: str
    line: str
    hatch: str


LOOKS = {
    "ar": Look("plain decoding", "#6b6b6b", "x", ":", ""),
    "dflash": Look("dFlash", "#0173b2", "o", "--", "///"),
    "markov": Look("Markov", "#de8f05", "s", "-.", "..."),
    "markov-gated": Look(
        "gated Markov", "#fbafe4", "<", (0, (4, 1, 1, 1, 1, 1)), "xxx"
    ),
    "markov-rnn": Look("RNN Markov", "#b5a800", ">", (0, (2, 1)), "+++"),
    "xpress": Look("xPress", "#007a5a", "D", "-", ""),
    "dflash+ddtree": Look("dFlash + DDTree", "#56b4e9", "v", (0, (5, 1)), "\\\\"),
    "eagle": Look("EAGLE-3", "#d55e00", "h", (0, (3, 2)), "--"),
    "dflash+presto": Look("dFlash + PRESTO", "#882255", "P", (0, (1, 1)), "++"),
    "xpress+ddtree": Look("xPress + DDTree", "#cc78bc", "^", (0, (3, 1, 1, 1)), "xx"),
    "xpress+presto": Look("xPress + PRESTO", "#ca9161", "X", (0, (8, 2)), "oo"),
}

# The stages of a round, in the order in which they happen. Greys, told apart by how
# light they are: a hue would be that of a method, and rows of a chart *are* methods.
STAGE_COLOURS = {
    "draft": "#9ba2ac",
    "refine": "#1b222b",
    "tree": "#6d7682",
    "verify": "#ccd1d7",
    "accept": "#414b57",
}


def use_style() -> None:
    """Set the theme for all figures that follow."""
    sns.set_theme(style="whitegrid", palette="colorblind", font="DejaVu Sans")
    plt.rcParams.update(
        {
            "figure.dpi": DPI,
            "savefig.dpi": DPI,
            "figure.facecolor": PAPER,
            "savefig.facecolor": PAPER,
            "figure.constrained_layout.use": True,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 10,
            "axes.edgecolor": "#999999",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "legend.fontsize": 9,
            "legend.frameon": False,
            "grid.color": "#e3e3e3",
            "hatch.linewidth": 0.6,
            "text.color": INK,
        }
    )


def split_arm(arm: str) -> tuple[str, str]:
    """``"xpress K=6"`` to ``("xpress", "K=6")``; a bare method has no second part."""
    method, _, rest = arm.partition(" ")
    return method, rest


def passes_of(arm: str) -> int | None:
    """K of an arm, ``None`` for the fixed point and for methods without passes."""
    found = re.search(r"K=(\d+)", arm)
    return int(found[1]) if found else None


def budget_of(arm: str) -> int:
    """M of a tree method's arm, 0 for chains."""
    found = re.search(r"M=(\d+)", arm)
    return int(found[1]) if found else 0


def in_order(arms: Iterable[str]) -> list[str]:
    """Distinct arms as they stand in every figure: by method, then by K, then M."""
    methods = list(LOOKS)

    def place(arm: str) -> tuple:
        method, passes = split_arm(arm)[0], passes_of(arm)
        rank = methods.index(method) if method in LOOKS else len(methods)
        order = float("inf") if passes is None else passes
        return rank, order, budget_of(arm), arm

    return sorted(set(arms), key=place)


def look_of(arm: str) -> Look:
    """The look of an arm's method; unknown methods get a neutral one."""
    method = split_arm(arm)[0]
    return LOOKS.get(method, Look(method, MUTED, "^", "-", "xx"))


def label_of(arm: str) -> str:
    """Display name of an arm: ``xPress K=6``."""
    rest = split_arm(arm)[1]
    return f"{look_of(arm).label} {rest}".strip()


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """The colour mixed with white; strength 1 leaves it, 0 gives white."""
    return tuple(1 - strength * (1 - channel) for channel in to_rgb(colour))


def save_figure(fig: Figure, path: str | Path) -> Path:
    """Write a PNG whose bytes depend on the picture alone, and close the figure."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(
        path, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None}
    )
    plt.close(fig)
    return path
