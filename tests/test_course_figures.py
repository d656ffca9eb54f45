"""The figures of notebooks 02 and 05, from made-up numbers: what they say and draw."""

import matplotlib

matplotlib.use("Agg")

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_hex

from xpress_lab.benchmarks.ablation import BARE, VARIANTS, WHOLE
from xpress_lab.benchmarks.costs import HEAD_PARTS
from xpress_lab.decoding import Generation, Round
from xpress_lab.viz import anatomy, exactness, identity
from xpress_lab.viz.refiner_diagram import refiner_diagram

WORDS = ["Anna", " lives", " in", " Paris", "\n", "$"]


pytestmark = pytest.mark.usefixtures("house_style")


def texts(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def bars(ax) -> list[float]:
    """Lengths of horizontal bars, top to bottom as they were drawn."""
    return [patch.get_width() for patch in ax.patches]


# inside the refiner ----------------------------------------------------------


def test_diagram_names_modules_shapes_and_words():
    shapes = {"t": [6], "h": [6, 9], "g": [9], "a": [6, 4], "c": [6, 4], "z": [6, 4]}
    shapes["bias"] = [5, 30]
    fig = refiner_diagram(shapes, WORDS, WORDS[1:], watched=3)
    found = texts(fig)
    assert {"Fuse", "Mix", "Trans", "Read", "6 × 9", "5 × 30", "anchor"} <= set(found)
    assert found.count("lives") == 2 and found.count("Anna") == 1
    (ax,) = fig.axes
    strong = [line for line in ax.lines if line.get_linewidth() > 1]
    mixed = [line for line in strong if np.ptp(line.get_xdata()) > 0]
    assert len(mixed) == 3  # slot 3 hears slots 0..2, and itself straight down


def test_mixer_maps_leave_out_what_training_cannot_reach():
    mixer = torch.arange(2 * 16, dtype=torch.float32).reshape(2, 4, 4)
    fig = anatomy.mixer_maps(mixer, channels=[1])
    assert len(fig.axes) == 3 + 3  # maps and their scales
    images = [ax.images[0].get_array() for ax in fig.axes[:3]]
    for image in images:
        np.testing.assert_array_equal(image.mask, np.triu(np.ones((4, 4)), 1) == 1)
    rms = mixer.square().mean(0).sqrt().numpy()
    assert images[0][2, 1] == pytest.approx(rms[2, 1])
    assert images[1][3, 0] == mixer[:, 3, 0].mean()
    assert images[2][3, 0] == mixer[1, 3, 0]


def test_influence_map_greys_what_never_moves():
    moved = torch.tensor([[0.5, 0.1], [1.0, 0.5], [0.0, 2.0]])  # previous by slot
    fig = anatomy.influence_map(moved)
    image = fig.axes[0].images[0].get_array()
    assert image.shape == (2, 3)
    assert image.mask.tolist() == [[False, False, True], [False, False, False]]
    assert image[1, 2] == 2


def test_reach_curves_have_one_at_their_largest():
    fig = anatomy.reach_curve({"L": np.array([1.0, 2.0]), "bias": np.array([4.0, 1.0])})
    assert [line.get_ydata().tolist() for line in fig.axes[0].lines] == [
        [0.5, 1.0],
        [1.0, 0.25],
    ]


def test_work_bars_show_every_number():
    work = pd.DataFrame(
        [
            {"form": form, "stage": stage, "operations": 9, "multiplications": size}
            for form, size in (("raw", 2_000_000), ("folded", 1_500_000))
            for stage in ("once a block", "every pass")
        ]
    ).set_index(["form", "stage"])
    fig = anatomy.work_bars(work)
    assert len(fig.axes) == 2
    assert sum(len(ax.patches) for ax in fig.axes) == 8
    assert "2 M" in texts(fig) and "9" in texts(fig)


def test_budget_bars_add_the_head_up():
    lines = [
        {"model": "target", "part": "all", "parameters": 8_000_000_000},
        {"model": "drafter", "part": "all", "parameters": 1_000_000},
        *({"model": "head", "part": p, "parameters": 50} for p in HEAD_PARTS),
    ]
    frame = pd.DataFrame(lines)
    fig = anatomy.budget_bars({"one": frame, "two": frame})
    assert len(fig.axes) == 4
    assert bars(fig.axes[0]) == [8e9, 1e6, 250]
    assert sum(bars(fig.axes[1])) == pytest.approx(1)
    assert {"8 B", "1 M", "250"} <= set(texts(fig))
    assert fig.axes[2].get_title("left") == "two"


def test_ablation_bars_tell_the_whole_head_from_the_others():
    lines = pd.DataFrame(
        [
            {"temperature": t, "variant": v, "tau": 2.0 + n, "tau_low": 1.5 + n,
             "tau_high": 2.5 + n}
            for t in (0.0, 1.0)
            for n, v in enumerate((*VARIANTS, BARE))
        ]
    )  # fmt: skip
    fig = anatomy.ablation_bars(lines)
    left = fig.axes[0]
    assert len(fig.axes) == 2 and bars(left)[:3] == [2.0, 3.0, 4.0]
    fills = [to_hex(patch.get_facecolor()) for patch in left.patches]
    assert len(set(fills)) == 3  # whole, lacking, bare
    assert left.get_yticklabels()[0].get_text() == WHOLE
    assert len(anatomy.ablation_bars(lines[lines["temperature"] == 0]).axes) == 1


# lossless verification -------------------------------------------------------


def test_text_cuts_draw_each_round_once():
    rounds = [Round(1, 2, 0, [0, 1, 2], 3), Round(0, 1, 0, [3, 4, 5], 5)]
    fast = Generation([0], [0, 1, 3, 5], rounds, block_size=3)
    slow = Generation([0], [0, 1, 3, 5], [Round(0, 1, 0, [0], 1)] * 3)
    fig = identity.text_cuts({"ar": slow, "xpress": fast}, WORDS[:4])
    assert bars(fig.axes[0]) == [1, 1, 1, 1, 1, 2, 1]
    assert "2 rounds, tau 1.5" in texts(fig)


def test_rounding_chart_has_a_place_for_zero():
    gaps = {"bfloat16": np.array([0.1, 0.2]), "float64": np.array([0.0, 0.0])}
    fig = identity.rounding_and_margins(np.array([3.0, 0.0]), gaps)
    counted = [sum(p.get_height() for p in ax.patches) for ax in fig.axes]
    assert counted == [2, 4]
    assert {"bfloat16", "float64"} <= set(texts(fig))


def test_near_tie_says_who_chooses_what():
    rows = {"one row": np.array([1.0, 1.0]), "a block": np.array([1.0, 1.25])}
    fig = identity.near_tie(rows, ["red", "blue"], grain=0.25)
    assert texts(fig) == ["  chooses “red”", "  chooses “blue”"]  # first of equals
    grid = [line for line in fig.axes[0].lines if line.get_zorder() == 0]
    assert [line.get_xdata()[0] for line in grid] == [0.75, 1.0, 1.25, 1.5]


def test_rejection_picture_adds_up_to_p():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.2, 0.3, 0.5])
    fig = exactness.rejection_picture(p, q, ["a", "b", "c"], drawn=p)
    heights = [[bar.get_height() for bar in ax.patches] for ax in fig.axes]
    np.testing.assert_allclose(np.add(heights[0][:3], heights[0][3:]), q)
    np.testing.assert_allclose(heights[1], [0.3, 0.2, 0])
    np.testing.assert_allclose(np.add(heights[2][:3], heights[2][3:]), p)


def test_p_value_chart_cuts_off_and_names_each_rule():
    lines = pd.DataFrame(
        [
            {"rule": rule, "right": right, "passes": k, "p_value": p}
            for rule, right, p in (("good", True, 0.5), ("bad", False, 0.0))
            for k in range(3)
        ]
    )
    fig = exactness.p_value_chart(lines)
    good, bad = fig.axes[0].lines
    assert good.get_ydata().tolist() == [0.5] * 3
    assert bad.get_ydata().tolist() == [exactness.SMALLEST] * 3
    assert {"good", "bad"} <= set(texts(fig))


def test_law_errors_mark_what_is_off():
    law, n = np.array([0.5, 0.3, 0.2]), 10_000
    seen = {"right": law * n, "wrong": np.array([0.6, 0.2, 0.2]) * n}
    fig = exactness.law_errors(law, seen, ["a", "b", "c"])
    right, wrong = fig.axes
    np.testing.assert_allclose(bars(right), 0, atol=1e-9)
    np.testing.assert_allclose(bars(wrong), [20, -100 / 3, 0], atol=1e-9)
    fills = [to_hex(patch.get_facecolor()) for patch in wrong.patches]
    assert fills[0] == fills[1] != fills[2]
    assert right.get_yticklabels()[2].get_text() == "c"


def test_calibration_dots_lie_where_the_numbers_say():
    lines = pd.DataFrame(
        {"q": [0.2, 0.8], "late_q": [0.4, 0.6], "share": [0.21, 0.79], "blocks": [9, 9]}
    )
    fig = exactness.calibration_dots(lines)
    places = [ax.collections[0].get_offsets().tolist() for ax in fig.axes]
    assert places == [[[0.2, 0.21], [0.8, 0.79]], [[0.4, 0.21], [0.6, 0.79]]]


def test_opening_bars_show_law_and_counts():
    law = {(1, 2): 0.5, (1, 3): 0.3}
    seen = {"honest": {(1, 2): 50, (1, 3): 30}, "liar": {(1, 2): 80, (4, 4): 20}}
    fig = exactness.opening_bars(law, seen, lambda words: "-".join(map(str, words)))
    shares = [line.get_xdata().tolist() for line in fig.axes[0].lines[:1]]
    assert bars(fig.axes[0])[:3] == pytest.approx([0.5, 0.3, 0.2])
    assert shares and fig.axes[0].get_yticklabels()[0].get_text() == "1-2"
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels == ["1-2", "1-3", "anything else"]
