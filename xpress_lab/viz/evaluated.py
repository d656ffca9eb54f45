"""Figures of a tier on the seven benchmarks: gains, contexts, repetition, speed."""

import re

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from xpress_lab.benchmarks.tables import (
    POOLED,
    labelled,
    published,
    tau_by_context,
)
from xpress_lab.statistics import degenerate, tau_pooled
from xpress_lab.viz.acceptance import TAU_LABEL, panels
from xpress_lab.viz.labels import name_benchmarks, name_ends
from xpress_lab.viz.style import INK, MUTED, in_order, label_of, look_of, tint

FEW_ROUNDS = 150  # a tau of fewer is noise and not drawn, unless there is no better


def gains(lines: pd.DataFrame, arm: str, over: str = "dflash") -> Figure:
    """Gain of an arm's tau over another's by benchmark: here, and as published.

    Args:
        lines: from :func:`xpress_lab.benchmarks.tables.summary`; the published
            figures are those of the arm's method (Qwen3-8B, one H200).
    """
    fig, axes = panels(lines, width=5.6)
    theirs = published().assign(key=lambda f: f["benchmark"].map(_key))
    for ax, (temperature, at) in zip(axes, lines.groupby("temperature"), strict=True):
        at = at[at["benchmark"] != POOLED]
        ours = at.pivot(index="benchmark", columns="arm", values="tau")
        paper = theirs[theirs["temperature"] == temperature].pivot(
            index="key", columns="method", values="tau"
        )
        method = arm.split()[0]
        published_gain = (paper[method] / paper[over] - 1).reindex(
            map(_key, ours.index)
        )
        x, look = np.arange(len(ours)), look_of(arm)
        for side, gain, colour, hatch, label in (
            (
                -0.21,
                ours[arm] / ours[over] - 1,
                look.colour,
                look.hatch,
                "measured here",
            ),
            (0.21, published_gain, tint(MUTED, 0.6), "///", "published"),
        ):
            ax.bar(x + side, 100 * gain, 0.38, color=colour, hatch=hatch,
                   edgecolor="white", label=label)  # fmt: skip
        ax.axhline(0, color=INK, linewidth=0.8)
        name_benchmarks(ax, ours.index)
        ax.grid(False, axis="x")
    axes[0].set_ylabel(f"tau over {look_of(over).label}'s, %")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside upper center", ncols=2)
    return fig


def context_curves(rows: pd.DataFrame) -> Figure:
    """Tau by length of the context, a line an arm."""
    table = tau_by_context(rows)
    table = table[table["arm"] != "ar"]
    most = table.groupby(["temperature", "arm"])["rounds"].transform("max")
    enough = table["rounds"] >= most.clip(upper=FEW_ROUNDS)
    table = table[enough]
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
            (circling, "x", look_of("markov").colour),
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
