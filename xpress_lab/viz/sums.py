"""Figures of the parallel adder: a sum settling, and accuracy by chain length."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from xpress_lab.beyond.adder import Problems
from xpress_lab.jacobi import Solution
from xpress_lab.viz.jacobi_grid import CHANGED, FILL, FROZEN, KEPT, NO, classify
from xpress_lab.viz.style import INK, MUTED, Look, look_of, tint

RIVAL = Look("rival: one look", "#332288", "*", (0, (3, 1, 1, 1, 1, 1)), "")
SAYS = {
    CHANGED: "changed by this pass",
    KEPT: "same as above, not final yet",
    FROZEN: "frozen: final, as is all to its right",
}


def sum_grid(problems: Problems, solution: Solution, row: int = 0) -> Figure:
    """One sum as on paper, highest digit on the left, and its digits pass by pass.

    Wrong digits are crossed out. Passes that change nothing are left out.

    Args:
        solution: with its trace, of the same problems.
    """
    trace = [digits[row].tolist() for digits in solution.trace]
    truth = problems.total[row].tolist()
    trace = trace[: trace.index(trace[-1]) + 2]  # up to the pass that notices
    states, _ = classify(trace, len(truth))
    width, rows = len(truth), 2 + len(trace)
    fig, ax = plt.subplots(figsize=(1.6 + 0.44 * width, 0.6 + 0.36 * rows))
    ax.set(xlim=(-3.2, width + 0.1), ylim=(rows + 0.3, -0.6))
    ax.set_axis_off()
    for y, (name, digits) in enumerate((("", problems.a), ("+", problems.b))):
        ax.text(-0.2, y, name, ha="right", va="center")
        for k, digit in enumerate(digits[row].tolist()):
            _digit(ax, width - 1 - k, y, str(digit))
    ax.plot([-0.3, width], [1.6] * 2, color=INK, linewidth=1)
    for p, (digits, state) in enumerate(zip(trace, states, strict=True)):
        y = 2.2 + p
        name = "pass 0: alone" if p == 0 else f"pass {p}"
        ax.text(-0.2, y, name, ha="right", va="center", fontsize=9)
        for k, digit in enumerate(digits):
            x = width - 1 - k
            box = {"facecolor": FILL[state[k]], "edgecolor": "#b5b5b5"}
            ax.add_patch(Rectangle((x, y - 0.5), 1, 1, linewidth=0.6, **box))
            _digit(ax, x, y, str(digit), bold=state[k] == CHANGED)
            if digit != truth[k]:
                ends = [x + 0.15, x + 0.85], [y + 0.35, y - 0.35]
                ax.plot(*ends, color=NO, linewidth=1.4)
    handles = [
        Patch(facecolor=FILL[state], edgecolor="#b5b5b5", label=text)
        for state, text in SAYS.items()
    ]
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "ncols": 3}
    ax.legend(handles=handles, fontsize=8.5, **place)
    return fig


def reach_bars(sums: dict[str, Problems], window: int) -> Figure:
    """How many columns decide a digit's carry, a panel a kind of sums.

    Args:
        window: columns that the network sees; digits that need more are hatched.
    """
    fig, axes = plt.subplots(1, len(sums), figsize=(4.6 * len(sums), 3.0), sharey=True)
    look = look_of("dflash")
    for ax, (name, problems) in zip(np.atleast_1d(axes), sums.items(), strict=True):
        counts = np.bincount(problems.reach.flatten())
        share, reach = counts / counts.sum(), np.arange(len(counts))
        blind = reach >= window
        for part, strength, hatch in ((~blind, 0.45, ""), (blind, 1.0, "///")):
            colour = tint(look.colour, strength)
            ax.bar(reach[part], share[part], color=colour, hatch=hatch,
                   edgecolor="white")  # fmt: skip
        ax.axvline(window - 0.5, color=INK, linestyle=":", linewidth=1.4)
        ax.set_title(f"{name} sums: {share[blind].sum():.1%} beyond the window")
        ax.set_xlabel("columns to the right that decide the carry")
        ax.set_xticks(range(0, len(counts), 1 + len(counts) // 10))
        ax.grid(False, axis="x")
    np.atleast_1d(axes)[0].set_ylabel("share of digits")
    return fig


def chain_map(table: pd.DataFrame, window: int, passes: int = 16) -> Figure:
    """Per cent of exact sums by longest chain (across) and passes (down).

    Args:
        table: from :func:`xpress_lab.beyond.measuring.by_chain`.
        window: of the adder; the step line is a pass a column beyond it, which is
            what causality promises to a refiner that is right when told the truth.
        passes: how many lines are drawn, 0 included.
    """
    shown = 100 * table.iloc[:passes]
    fig, ax = plt.subplots(figsize=(8.4, 4.6))
    image = ax.imshow(shown, cmap="viridis", vmin=0, vmax=100, aspect="auto")
    for y, values in enumerate(shown.to_numpy()):
        for x, share in enumerate(values):
            ink = "white" if share < 60 else INK
            style = {"ha": "center", "va": "center", "fontsize": 8, "color": ink}
            ax.text(x, y, f"{share:.0f}", **style)
    needed = np.clip(np.array(shown.columns) - window + 1, 0, None) - 0.5
    places = np.arange(len(needed))
    ax.step(places, needed, where="mid", color=INK, linewidth=2.2)
    ax.set_xticks(places, shown.columns)
    ax.set_yticks(range(len(shown)), shown.index)
    ax.set(xlabel="longest chain of the sum, in columns", ylabel="passes K")
    ax.set_ylim(len(shown) - 0.5, -0.5)
    ax.grid(False)
    fig.colorbar(image, ax=ax, label="per cent of sums exact")
    return fig


def chain_lines(shares: dict[str, pd.Series]) -> Figure:
    """Share of exact sums by longest chain, a line per way of solving.

    Args:
        shares: name to shares, indexed by chain length.
    """
    looks = [
        (look_of("dflash"), 1.0, 5),
        (RIVAL, 1.0, 8),
        (look_of("xpress"), 0.4, 5),
        (look_of("xpress"), 0.7, 5),
        (look_of("xpress"), 1.0, 9),  # larger, for another line lies upon it
        (look_of("markov"), 1.0, 4),
    ]
    fig, ax = plt.subplots(figsize=(7.6, 3.6))
    for (name, share), (look, strength, size) in zip(
        shares.items(), looks, strict=False
    ):
        style = {"marker": look.marker, "linestyle": look.line, "ms": size}
        colour = tint(look.colour, strength)
        ax.plot(share.index, share, color=colour, label=name, **style)
    ax.set(xlabel="longest chain of the sum, in columns", ylabel="share of exact sums")
    ax.set(ylim=(-0.04, 1.06), xticks=list(next(iter(shares.values())).index))
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def time_bars(tables: dict[str, pd.DataFrame]) -> Figure:
    """Time and evaluations in series by way of solving, a panel per kind of sums.

    Args:
        tables: name to :func:`xpress_lab.beyond.measuring.milliseconds`.
    """
    looks = [look_of(name) for name in ("dflash", "xpress", "markov")]
    fig, axes = plt.subplots(1, len(tables), figsize=(4.6 * len(tables), 2.5))
    for ax, (title, table) in zip(np.atleast_1d(axes), tables.items(), strict=True):
        drawn = ax.barh(
            table["way"],
            table["milliseconds"],
            color=[look.colour for look in looks],
            height=0.62,
        )
        said = [
            f"{line.milliseconds:.2f} ms, {line.evaluations:.3g} in series"
            for line in table.itertuples()
        ]
        ax.bar_label(drawn, said, padding=3, fontsize=8.5, color=INK)
        ax.set_xlim(0, table["milliseconds"].max() * 1.9)
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("least milliseconds of CPU time", color=MUTED)
        ax.invert_yaxis()
        ax.grid(False, axis="y")
        if ax is not np.atleast_1d(axes)[0]:
            ax.set_yticks([])
    return fig


def _digit(ax: Axes, x: float, y: float, text: str, bold: bool = False) -> None:
    weight = "bold" if bold else "normal"
    ax.text(x + 0.5, y, text, ha="center", va="center", fontsize=10, weight=weight)
