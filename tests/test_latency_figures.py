"""The figures of notebook 07, from made-up numbers: what they draw and say."""

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
import pytest

from xpress_lab.viz.latency import (
    certificate_rates,
    context_costs,
    latency_curves,
    tuning_map,
)
from xpress_lab.viz.published import edges_by_batch, speed_by_passes
from xpress_lab.viz.round_profile import KIND_COLOURS, profile_bars

pytestmark = pytest.mark.usefixtures("house_style")


def records() -> pd.DataFrame:
    """Two vocabularies, two ranks; only rank 128 at block 16 is to be drawn."""
    rows = []
    for vocab, rank, block in ((4_096, 128, 16), (49_152, 128, 16), (4_096, 64, 8)):
        size = {"vocab": vocab, "rank": rank, "block": block, "spread": 10.0}
        for variant, scale in (("plain", 4.0), ("fast", 1.0)):
            arms = [("xpress", k, scale * vocab / 100 * k) for k in (1, 2, 4)]
            arms.append(("markov", block - 1, scale * vocab / 10))
            rows += [
                size
                | {"method": method, "variant": variant, "passes": k}
                | {"microseconds": us, "floor_microseconds": us / 10}
                for method, k, us in arms
            ]
    return pd.DataFrame(rows)


def lines_at(ax, heights) -> bool:
    drawn = [line.get_ydata() for line in ax.get_lines()]
    return any(len(y) == len(heights) and np.allclose(y, heights) for y in drawn)


def test_latency_has_a_panel_per_vocabulary_and_its_floor():
    fig = latency_curves(records())
    panels = [ax for ax in fig.axes if ax.get_title("left")]
    assert [ax.get_title("left") for ax in panels] == ["V = 4,096", "V = 49,152"]
    for ax, vocab in zip(panels, (4_096, 49_152), strict=True):
        one = vocab / 100 * np.array([1, 2, 4])
        assert ax.get_yscale() == "log"
        assert lines_at(ax, one) and lines_at(ax, 4 * one)  # fast, written out
        assert lines_at(ax, 4 * one / 10)  # the floor
        assert lines_at(ax, [vocab / 10] * 2)  # Markov, fast
    said = {text.get_text() for text in fig.legends[0].get_texts()}
    assert {"xPress, fast", "Markov, written out", "reading w2 K times"} <= said


def test_certificate_rates_are_a_line_per_temperature():
    table = pd.DataFrame(
        {
            "temperature": [0.0, 0.0, 1.0, 1.0],
            "candidates": [64, 16, 16, 64],
            "failure_rate": [0.02, 0.1, 0.3, 0.05],
        }
    )
    fig = certificate_rates(table)
    (ax,) = fig.axes
    assert lines_at(ax, [10, 2]) and lines_at(ax, [30, 5])
    assert ax.get_ylim()[0] == 0
    assert [t.get_text() for t in ax.get_xticklabels()] == ["16", "64"]
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert named == ["T = 0", "T = 1"]


def test_context_costs_keep_the_two_parts_apart():
    table = pd.DataFrame(
        {
            "context": [256, 1024] * 2,
            "arm": ["ar"] * 2 + ["xpress K=6"] * 2,
            "model_ms": [10.0, 20.0, 15.0, 30.0],
            "outside_ms": [0.2, 0.2, 0.6, 0.7],
            "spread": 0.1,
        }
    )
    fig = context_costs(table)
    inside, outside = fig.axes[:2]
    assert lines_at(inside, [15, 30]) and lines_at(outside, [0.6, 0.7])
    assert inside.get_ylim()[0] == outside.get_ylim()[0] == 0
    assert "outside" in outside.get_ylabel()


def test_the_map_of_choices_orders_passes_as_numbers():
    cases = [("0", 8), ("10", 8), ("2", 8), ("fixed", 8)]
    measured = pd.DataFrame(cases, columns=["passes", "block"])
    measured["speedup"] = [0.8, 1.5, 1.2, 1.4]
    fig = tuning_map(measured)
    ax = fig.axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0", "2", "10", "fixed"]
    assert [t.get_text() for t in ax.texts] == ["0.80", "1.20", "1.50", "1.40"]


def test_a_profile_has_a_panel_per_arm_and_a_bar_per_part():
    table = pd.DataFrame(
        [
            {"arm": arm, "part": part, "kind": kind, "milliseconds": ms}
            for arm in ("dflash", "xpress K=6")
            for part, ms in (("target", 3.0), ("drafter", 1.0), ("loop", 0.5))
            for kind in ("matrix products", "between operations")
        ]
    )
    fig = profile_bars(table)
    titles = [ax.get_title("left") for ax in fig.axes]
    assert titles == ["dFlash: 9.0 ms a round", "xPress K=6: 9.0 ms a round"]
    widths = [bar.get_width() for bar in fig.axes[0].patches]
    assert widths == [3.0, 1.0, 0.5, *[0] * 6, 3.0, 1.0, 0.5]
    assert "  6.00 ms, 67%" in [text.get_text() for text in fig.axes[0].texts]
    said = [text.get_text() for text in fig.legends[0].get_texts()]
    assert said == list(KIND_COLOURS)


def test_expected_speed_is_drawn_over_markov_s():
    rows = pd.DataFrame(
        {"benchmark": ["a"] * 3 + ["b"] * 3, "passes": ["1", "2", "markov"] * 2,
         "expected_speedup": [2.0, 3.0, 4.0, 5.0, 4.0, 5.0]}
    )  # fmt: skip
    (ax,) = speed_by_passes(rows).axes
    assert lines_at(ax, [0.5, 0.75]) and lines_at(ax, [1.0, 0.8])


def test_edges_by_batch_are_ratios_ours_and_theirs():
    theirs = pd.DataFrame(
        [
            {"benchmark": name, "batch_size": size, "method": method,
             "tokens_per_second": speed * scale}
            for name, scale in (("A", 1.0), ("B", 2.0))
            for size in (1, 4)
            for method, speed in (("dflash", 2.0), ("markov", 4.0), ("xpress", 3.0))
        ]
    )  # fmt: skip
    ours = pd.DataFrame(
        [
            {"temperature": 0.0, "batch_size": size, "turn": turn, "method": method,
             "passes": "6" if method == "xpress" else "", "texts": 0, "tau": 1.0,
             "confidence": 0.0, "proposed": 0,
             "new_tokens": 10 * speed, "decode_seconds": 1.0 + turn,
             "verify_steps": 1, "target_calls": 1}
            for turn in range(3)
            for size in (1, 2)
            for method, speed in (("dflash", 1), ("markov", 3), ("xpress", 2 * size))
        ]
    )  # fmt: skip
    over_dflash, over_markov = edges_by_batch(ours, theirs).axes[:2]
    assert lines_at(over_dflash, [1.5, 1.5]) and lines_at(over_markov, [0.75, 0.75])
    assert lines_at(over_dflash, [2.0, 4.0]) and lines_at(over_markov, [2 / 3, 4 / 3])
