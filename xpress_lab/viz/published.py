"""Figures of what others published: speed by passes, and by batch beside ours."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.viz.labels import name_ends
from xpress_lab.viz.style import INK, MUTED, label_of, look_of, tint


def speed_by_passes(rows: pd.DataFrame) -> Figure:
    """Expected speed of xPress over that of Markov by K; a line a benchmark.

    Args:
        rows: from :func:`xpress_lab.benchmarks.cost_model.published_by_passes`.
    """
    table = rows.pivot(index="passes", columns="benchmark", values="expected_speedup")
    ratio = table.drop(index="markov").div(table.loc["markov"])
    ratio.index = ratio.index.astype(int)
    ratio, look = ratio.sort_index(), look_of("xpress")
    fig, ax = plt.subplots(figsize=(7.0, 4.0))
    ends = []
    for n, name in enumerate(ratio.columns):
        colour = tint(look.colour, 0.55 + 0.45 * n / (len(ratio.columns) - 1))
        ax.plot(ratio.index, ratio[name], color=colour, marker="osD^vP"[n % 6], ms=4.5)
        ends.append((ratio[name].iloc[-1], name, colour))
    ax.axhline(1, color=look_of("markov").colour, linestyle=look_of("markov").line)
    ax.text(ratio.index[0], 1, "Markov ", ha="left", va="bottom", fontsize=9,
            color=look_of("markov").colour, weight="bold")  # fmt: skip
    ax.set_xlabel("Jacobi passes K")
    ax.set_ylabel("expected speed over Markov's")
    name_ends(ax, ends)
    return fig


def edges_by_batch(ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    """How much faster xPress is than dFlash and than Markov, by batch size.

    Args:
        ours: greedy lines of
            :func:`xpress_lab.benchmarks.throughput.throughput_summary`.
        theirs: from :func:`xpress_lab.benchmarks.tables.published_batches`; a thin line
            a benchmark, and their mean.
    """
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    ours = ours.assign(method=ours["arm"].str.split().str[0])
    for ax, over in zip(axes, ("dflash", "markov"), strict=True):
        published = _edge(theirs, over, ["benchmark", "batch_size"]).unstack(0)
        here = _edge(ours, over, ["batch_size"])
        ax.plot(published, color=tint(MUTED, 0.5), linewidth=1)
        look = look_of("xpress")
        lines = ((published.mean(axis=1), MUTED, "s", "published"),
                 (here, look.colour, look.marker, "here"))  # fmt: skip
        for line, colour, marker, _ in lines:
            ax.plot(line, color=colour, marker=marker, ms=5)
        ax.axhline(1, color=INK, linestyle=":", linewidth=1.4)
        ax.set_xscale("log", base=2)
        sizes = sorted({*published.index, *here.index})
        ax.set_xticks(sizes, [f"{size:g}" for size in sizes])
        ax.set_xlabel("texts in a batch")
        ax.set_title(f"xPress over {label_of(over)}")
        name_ends(ax, [(line.iloc[-1], name, c) for line, c, _, name in lines],
                  leave=[line.index[-1] for line, *_ in lines])  # fmt: skip
    axes[0].set_ylabel("ratio of tokens a second")
    return fig


def _edge(rows: pd.DataFrame, over: str, index: list[str]) -> pd.Series:
    """xPress's tokens a second over another method's."""
    table = rows.pivot(index=index, columns="method", values="tokens_per_second")
    return table["xpress"] / table[over]
