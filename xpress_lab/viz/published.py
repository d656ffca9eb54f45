"""Figures of what others published: speed by passes, and by batch beside ours."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.benchmarks.throughput import throughput_summary
from xpress_lab.viz.labels import name_ends
from xpress_lab.viz.style import INK, MUTED, label_of, look_of, tint
from xpress_lab.viz.throughput import by_size


def speed_by_passes(rows: pd.DataFrame) -> Figure:
    """Expected speed of xPress over Markov's by K: a thin line a benchmark, the mean.

    Args:
        rows: from :func:`xpress_lab.benchmarks.cost_model.published_by_passes`.
    """
    table = rows.pivot(index="passes", columns="benchmark", values="expected_speedup")
    ratio = table.drop(index="markov").div(table.loc["markov"])
    ratio.index = ratio.index.astype(int)
    ratio, look = ratio.sort_index(), look_of("xpress")
    fig, ax = plt.subplots(figsize=(7.0, 4.0))
    grey, mean, markov = tint(MUTED, 0.6), ratio.mean(axis=1), look_of("markov")
    ax.plot(ratio, color=grey, linewidth=1)
    ax.plot(mean, color=look.colour, marker=look.marker, ms=5)
    ax.axhline(1, color=markov.colour, linestyle=markov.line)
    ax.set_xlabel("Jacobi passes K")
    ax.set_ylabel("expected speed over Markov's")
    ends = [(ratio[name].iloc[-1], name, MUTED) for name in ratio.columns]
    ends += [(mean.iloc[-1], "their mean", look.colour), (1, "Markov", markov.colour)]
    name_ends(ax, ends, leave=[ratio.index[-1]] * (len(ends) - 1) + [None])
    return fig


def edges_by_batch(ours: pd.DataFrame, theirs: pd.DataFrame) -> Figure:
    """How much faster xPress is than dFlash and than Markov, by batch size.

    Args:
        ours: greedy rows of :func:`xpress_lab.benchmarks.throughput.run_throughput`;
            the ratio is taken turn by turn, and its quartiles are the band.
        theirs: from :func:`xpress_lab.benchmarks.tables.published_batches`; a thin line
            a benchmark, and their mean.
    """
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    ours = ours[ours["confidence"] == 0]
    speed = theirs.pivot(
        index=["batch_size", "benchmark"], columns="method", values="tokens_per_second"
    )
    for ax, over in zip(axes, ("dflash", "markov"), strict=True):
        published = (speed["xpress"] / speed[over]).unstack()
        lines = throughput_summary(ours, baseline=over).set_index("batch_size")
        lines, look = lines[lines["arm"].str.startswith("xpress")], look_of("xpress")
        here, shade = lines["speedup"], tint(look.colour, 0.22)
        ax.fill_between(
            here.index, lines["speedup_low"], lines["speedup_high"], color=shade, lw=0
        )
        ax.plot(published, color=tint(MUTED, 0.5), linewidth=1)
        lines = ((published.mean(axis=1), MUTED, "s", "published"),
                 (here, look.colour, look.marker, "here"))  # fmt: skip
        for line, colour, marker, _ in lines:
            ax.plot(line, color=colour, marker=marker, ms=5)
        ax.axhline(1, color=INK, linestyle=":", linewidth=1.4)
        by_size(ax, sorted({*published.index, *here.index}))
        ax.set_title(f"xPress over {label_of(over)}")
        name_ends(ax, [(line.iloc[-1], name, c) for line, c, _, name in lines],
                  leave=[line.index[-1] for line, *_ in lines])  # fmt: skip
    axes[0].set_ylabel("ratio of tokens a second")
    return fig
