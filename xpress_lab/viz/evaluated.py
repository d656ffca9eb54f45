"""Figures of a tier on the seven benchmarks: gains, contexts, repetition, speed."""

import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.benchmarks.tables import (
    labelled,
    published,
    tau_by_context,
    tau_gains,
)
from xpress_lab.statistics import degenerate, tau_pooled
from xpress_lab.viz.acceptance import TAU_LABEL, panels
from xpress_lab.viz.labels import in_families, name_benchmarks, name_ends
from xpress_lab.viz.style import INK, MUTED, in_order, label_of, look_of, tint

FEW_ROUNDS = 150  # a tau of fewer is noise and not drawn, unless there is no better


def gains(rows: pd.DataFrame, arm: str, over: str = "dflash") -> Figure:
    """Gain of an arm's tau over another's by benchmark: here, and as published.

    Bars of what was measured carry 95 % intervals, paired by text. The published
    figures are those of the arm's method (Qwen3-8B, one H200).

    Args:
        rows: tidy rows of the runner.
    """
    fig, axes = panels(rows, width=5.6)
    names = in_families(rows["benchmark"].unique())
    x, look = np.arange(len(names)), look_of(arm)
    style = {"width": 0.38, "edgecolor": "white"}
    for ax, (temperature, at) in zip(axes, rows.groupby("temperature"), strict=True):
        pair = [(arm, over)]
        ours = pd.concat([tau_gains(at[at["benchmark"] == n], pair) for n in names])
        ours = 100 * (ours[["low", "ratio", "high"]] - 1)
        spread = ours.diff(axis=1)[["ratio", "high"]].to_numpy().T
        ax.bar(x - 0.21, ours["ratio"], color=look.colour, hatch=look.hatch,
               yerr=spread, error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
               label="measured here", **style)  # fmt: skip
        theirs = _published_gain(temperature, arm.split()[0], over)
        ax.bar(x + 0.21, 100 * theirs.reindex(map(_key, names)), hatch="///",
               color=tint(MUTED, 0.6), label="published", **style)  # fmt: skip
        ax.axhline(0, color=INK, linewidth=0.8)
        name_benchmarks(ax, names)
        ax.grid(False, axis="x")
    axes[0].set_ylabel(f"gain of tau over {look_of(over).label}, %")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=2)
    return fig


def _published_gain(temperature: float, method: str, over: str) -> pd.Series:
    """Ratio of published taus less one, by :func:`_key` of the benchmark."""
    at = published().assign(key=lambda f: f["benchmark"].map(_key))
    at = at[at["temperature"] == temperature]
    tau = at.pivot(index="key", columns="method", values="tau")
    return tau[method] / tau[over] - 1


def context_curves(rows: pd.DataFrame) -> Figure:
    """Tau by length of the context, a line an arm, as far as all arms have rounds."""
    table = tau_by_context(rows)
    table = table[table["arm"] != "ar"]
    most = table.groupby(["temperature", "arm"])["rounds"].transform("max")
    table = table.assign(enough=table["rounds"] >= most.clip(upper=FEW_ROUNDS))
    arms = table["arm"].nunique()
    for_all = table.groupby(["temperature", "context"])["enough"].transform("sum")
    table = table[for_all == arms]
    fig, axes = panels(table, width=5.4)
    ends = {ax: [] for ax in axes}
    for ax, (_, at) in zip(axes, table.groupby("temperature"), strict=True):
        for arm in in_order(at["arm"]):
            line, look = at[at["arm"] == arm], look_of(arm)
            ax.plot(line["context"], line["tau"], color=look.colour, ms=4.5,
                    marker=look.marker, linestyle=look.line)  # fmt: skip
            ends[ax].append((line["tau"].iloc[-1], label_of(arm), look.colour))
        ax.set_xlabel("tokens before the block (prompt and answer)")
    for ax in axes:  # the panels share their limits, known only now
        name_ends(ax, ends[ax])
    axes[0].set_ylabel(TAU_LABEL)
    return fig


def repetition(rows: pd.DataFrame, arm: str) -> Figure:
    """Each text's tau against how much of it is new; circling texts are crosses."""
    rows = labelled(rows)
    rows = rows[rows["arm"] == arm]
    fig, axes = panels(rows, width=5.4)
    look = look_of(arm)
    for ax, (_, at) in zip(axes, rows.groupby("temperature"), strict=True):
        circling = degenerate(at)
        for part, marker, colour in (
            (~circling, "o", look.colour),
            (circling, "x", INK),
        ):
            texts = at[part]
            if texts.empty:
                continue
            tau = tau_pooled(texts)
            what = "going in circles" if marker == "x" else "other texts"
            ax.scatter(texts["distinct_3"], texts["tau"], s=16, marker=marker,
                       color=colour, alpha=0.7,
                       label=f"{what}: {len(texts)}, tau {tau:.2f}")  # fmt: skip
        ax.set_xlabel("share of 3-grams that are distinct")
        ax.legend(loc="upper right")
        ax.set_xlim(-0.03, 1.03)
    axes[0].set_ylabel(f"{TAU_LABEL}, {label_of(arm)}")
    return fig


def speed(lines: pd.DataFrame) -> Figure:
    """Speed of every runner in units of ``model.generate``'s: medians and quartiles.

    Args:
        lines: from :func:`xpress_lab.benchmarks.peers.speed_over`.
    """
    lines = lines.drop(index="generate").sort_values("speed")
    fig, (ax,) = panels(lines.assign(temperature=0.0), width=7.0)
    colours = [look_of(name.removeprefix("ours: ")).colour for name in lines.index]
    spread = [lines["speed"] - lines["low"], lines["high"] - lines["speed"]]
    ax.barh(lines.index, lines["speed"], color=colours, xerr=np.array(spread).clip(0),
            error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2})  # fmt: skip
    for y, (high, value) in enumerate(zip(lines["high"], lines["speed"], strict=True)):
        ax.text(high, y, f"  {value:.2f}x", va="center", fontsize=9)
    ax.axvline(1, color=INK, linestyle=":", linewidth=1.4)
    ax.set_xlim(0, lines["high"].max() * 1.15)
    ax.grid(False, axis="y")
    ax.set_xlabel("speed over model.generate, prefill left out (median, quartiles)")
    return fig


def _key(benchmark: str) -> str:
    """``MATH-500`` and ``math500`` are one benchmark."""
    return re.sub(r"[^a-z0-9]", "", benchmark.lower())
