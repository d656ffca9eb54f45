"""The figures of notebooks 08 and 09, from made-up numbers: what they say and draw."""

import math

import matplotlib

matplotlib.use("Agg")

import pandas as pd
import pytest

from xpress_lab.benchmarks.orthogonality import BOTH, PLANTED, PRODUCT, REFINED
from xpress_lab.decoding import Round
from xpress_lab.errors import LabError
from xpress_lab.trees import TokenTree
from xpress_lab.viz import budgets, scaling
from xpress_lab.viz.token_tree import (
    layout,
    percent,
    spelled,
    token_trees,
    with_own_word,
)

WORDS = ["Anna", " lives", " in", " Paris", " Rome", " $", "\n"]
#   anchor 0 -> lives(1) -> in(2) -> Paris(4)
#                               \-> Rome(5)
#           \-> $(3)
TREE = TokenTree([1, 2, 5, 3, 4], [0, 1, 0, 2, 2], [-0.1, -0.2, -2.0, -0.9, -9.0])


pytestmark = pytest.mark.usefixtures("house_style")


def texts(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def a_round(path: list[int], own: int) -> Round:
    shape = (TREE.parents, path, TREE.scores)
    return Round(len(path), len(path) + 1, 0, [0, *TREE.tokens], own, [], *shape)


# trees -----------------------------------------------------------------------


def test_first_children_go_on_and_others_open_lines_below():
    assert layout(TREE) == [0, 0, 0, 2, 0, 1]
    assert layout(TokenTree([], [], [])) == [0]
    assert layout(TokenTree([1, 2, 3], [0, 1, 2], [0.0] * 3)) == [0] * 4


def test_the_target_s_word_stands_behind_the_path_that_was_kept():
    grown = with_own_word(a_round([1, 2], 6))
    assert grown.tokens[-1] == 6 and grown.parents[-1] == 2
    assert layout(grown)[-1] == 2  # below its rejected siblings, above the root's
    assert with_own_word(a_round([], 6)).parents[-1] == 0


def test_a_tree_shows_every_word_its_chance_and_the_path():
    fig = token_trees({"before": a_round([1, 2], 6)}, WORDS, "xpress+ddtree")
    found = texts(fig)
    assert {"Anna", "lives", "in", "Paris", "Rome", r"\$", "⏎"} <= set(found)
    assert {"90%", "82%", "< 1%", "anchor", "target", "before"} <= set(found)
    strong = [t.get_text() for t in fig.axes[0].texts if t.get_weight() == "bold"]
    assert set(strong) == {"Anna", "lives", "in", "⏎", "before"}
    (ax,) = fig.axes
    assert len(ax.patches) == 7
    strong = [line.get_linewidth() > 1 for line in ax.lines]
    assert strong == [True, True, False, False, False, True]


def test_trees_share_their_columns():
    rounds = {"before": a_round([], 3), "after": a_round([1], 3)}
    fig = token_trees(rounds, WORDS.__getitem__, "xpress+ddtree")
    assert len(fig.axes) == 2
    assert fig.axes[0].get_xlim() == fig.axes[1].get_xlim()


def test_siblings_that_look_alike_show_their_space():
    words = [".", "Add", " Add", " up"]
    tree = TokenTree([1, 2, 3, 1], [0, 0, 1, 3], [0.0] * 4)
    assert spelled(tree, 0, words) == [".", "Add", "␣Add", "up", "Add"]


def test_chains_are_refused_and_small_chances_not_rounded_to_none():
    with pytest.raises(LabError, match="has no tree"):
        token_trees({"x": Round(0, 1, 0, [0, 1], 2)}, WORDS, "xpress")
    scores = [math.log(p) for p in (1.0, 0.055, 0.004)]
    assert [percent(score) for score in scores] == ["100%", "6%", "< 1%"]


def test_scores_that_are_no_chances_are_shown_as_they_are():
    fig = token_trees({"x": a_round([1], 6)}, WORDS, "dflash+presto", chances=False)
    notes = [text for text in texts(fig) if text.startswith("score")]
    assert notes == ["score −0.1", "score −0.2", "score −2.0", "score −0.9",
                     "score −9.0"]  # fmt: skip
    assert not [text for text in texts(fig) if "%" in text]


# budgets ---------------------------------------------------------------------


def lines_of(arms: dict[str, float], temperatures=(0.0, 1.0), **more) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"temperature": t, "benchmark": "all", "arm": arm} | more
            | {"tau": tau, "tau_low": tau - 0.5, "tau_high": tau + 0.5}
            | {"speedup": tau / 2, "speedup_low": 0.4 * tau, "speedup_high": 0.6 * tau}
            for t in temperatures
            for arm, tau in arms.items()
        ]
    )  # fmt: skip


ARMS = {
    "ar": 1.0,
    "dflash": 3.0,
    "xpress K=6": 4.0,
    **{f"xpress+ddtree K=6 M={m}": 4 + m / 32 for m in (16, 64)},
    **{f"xpress+ddtree paths M={m}": 5 + m / 32 for m in (16, 64)},
}


def test_families_differ_in_the_budget_alone():
    assert budgets.families(ARMS) == {
        "xpress+ddtree K=6": ["xpress+ddtree K=6 M=16", "xpress+ddtree K=6 M=64"],
        "xpress+ddtree paths": ["xpress+ddtree paths M=16", "xpress+ddtree paths M=64"],
    }


def test_budget_curves_draw_each_family_and_each_chain():
    fig = budgets.budget_curves(lines_of(ARMS))
    assert len(fig.axes) == 4
    top = fig.axes[0]
    drawn = [line.get_ydata() for line in top.containers[1].lines[:1]]
    assert drawn[0].tolist() == [5.5, 7.0]
    names = {
        "xPress + DDTree": (64, 6),
        "xPress + DDTree, paths": (64, 7),
        "dFlash chain": (1, 3),  # the right edge
        "xPress chain": (1, 4),
    }
    ends = {text.get_text(): text.xy for text in top.texts}
    assert ends.keys() == names.keys()
    for name, (x, y) in names.items():
        assert ends[name] == (pytest.approx(x, rel=0.1), y)
    assert "plain decoding" in {text.get_text() for text in fig.axes[2].texts}
    assert [t.get_text() for t in fig.axes[2].get_xticklabels()] == ["16", "64"]
    levels = [line.get_ydata()[0] for line in top.lines if len(line.get_xdata()) == 2
              and line.get_xdata()[0] == 0]  # fmt: skip
    assert levels[-2:] == [3.0, 4.0]


def test_bars_of_both_stand_beside_the_product():
    lines = pd.DataFrame(
        [
            {"temperature": 0.0, "budget": b, "measure": m, "who": w, "ratio": r,
             "low": r - 0.1, "high": r + 0.1}
            for b in (16, 32)
            for m in ("tau", "tokens a second")
            for w, r in ((REFINED, 1.2), (PLANTED, 1.5), (BOTH, 1.7), (PRODUCT, 1.8))
        ]
    )  # fmt: skip
    fig = budgets.together_bars(lines)
    assert len(fig.axes) == 2
    ax = fig.axes[0]
    assert [bar.get_height() for bar in ax.patches] == [1.2] * 2 + [1.5] * 2 + [1.7] * 2
    marks = [c for c in ax.collections if c.get_label() == PRODUCT]
    assert {segment[0][1] for segment in marks[0].get_segments()} == {1.8}


def test_caught_curves_are_named_at_their_ends():
    shares = pd.DataFrame({"dFlash": [0.2, 0.4], "xPress": [0.3, 0.6]}, index=[2, 3])
    fig = budgets.caught_curves(shares, {"dFlash": "dflash", "xPress": "xpress"})
    drawn = [line.get_ydata().tolist() for line in fig.axes[0].lines]
    assert drawn == [[0.2, 0.4], [0.3, 0.6]]
    assert texts(fig) == ["dFlash", "xPress"]


def test_depth_curves_leave_plain_decoding_out():
    arms = {"ar": 1.0, "dflash": 3.0, "xpress K=6": 4.0}
    both = [lines_of(arms, drafter_layers=d) for d in (1, 2)]
    fig = budgets.depth_curves(pd.concat(both))
    assert len(fig.axes) == 4
    assert set(texts(fig)) == {"dFlash", "xPress K=6"}
    first = fig.axes[0].containers[0].lines[0]
    assert first.get_xdata().tolist() == [1, 2] and first.get_ydata().tolist() == [3, 3]


# the paper's scale -----------------------------------------------------------


def test_memory_bars_stack_the_parts_and_mark_the_cards():
    parts = list(scaling.PART_COLOURS)
    one = pd.DataFrame({"part": parts, "gigabytes": [16.0, 2, 0.5, 1, 0.5]})
    fig = scaling.memory_bars({"batch 1": one, "batch 8": one}, {"24 GB card": 24})
    ax = fig.axes[0]
    assert [bar.get_width() for bar in ax.patches[::2]] == [16, 2, 0.5, 1, 0.5]
    cases = [label.get_text() for label in ax.get_yticklabels()]
    assert cases == ["batch 1\n20.0 GB", "batch 8\n20.0 GB"]
    assert texts(fig) == [" 24 GB card"]
    assert [line.get_xdata()[0] for line in ax.lines] == [24]


def test_implied_costs_show_what_rounding_leaves_open():
    costs = pd.DataFrame(
        [
            {"benchmark": b, "method": m, "implied_cost": c, "low": c - 0.1,
             "high": c + 0.2}
            for b, c in (("GSM8K", 1.3), ("MBPP", 1.2))
            for m in ("dflash", "xpress")
        ]
    )  # fmt: skip
    fig = scaling.implied_costs(costs, floor=1.22)
    assert [line.get_ydata()[0] for line in fig.axes[0].lines[-2:]] == [1, 1.22]
    assert texts(fig) == ["a plain step", "weights that\nxPress must read"]
    points = [c.lines[0].get_ydata().tolist() for c in fig.axes[0].containers]
    assert points == [[1.3, 1.2], [1.3, 1.2]]
    ends = fig.axes[0].containers[0].lines[2][0].get_segments()[0][:, 1]
    assert ends.tolist() == pytest.approx([1.2, 1.5])


def test_sizes_are_one_dot_a_part_and_tier():
    counts = {"target": 2_000_000, "drafter": 700_000, "refiner": 300_000}
    large = {"target": 8_000_000_000, "drafter": 1_000_000, "refiner": 1_000_000}
    (ax,) = scaling.size_dots({"pocket": counts, "paper": large}).axes
    assert [list(line.get_xdata()) for line in ax.lines][0] == [2e6, 8e9]
    said = {text.get_text() for text in ax.texts}
    assert {"2.0 M", "0.7 M", "8.00 B"} <= said and ax.get_xscale() == "log"


def test_layouts_differ_in_what_the_anchor_s_slot_drafts():
    fill_in, anchor_first = scaling.block_layouts(slots=3).axes
    said = [[t.get_text() for t in ax.texts] for ax in (fill_in, anchor_first)]
    assert [t for t in said[0] if t.startswith(("t+", "no"))] == [
        "nothing",
        "t+1",
        "t+2",
    ]
    assert [t for t in said[1] if t.startswith(("t+", "no"))] == ["t+1", "t+2", "t+3"]
    assert "3 drafts" in anchor_first.get_title("left")


def test_decoding_hours_are_the_plain_ones_over_the_speed_up():
    costs = pd.DataFrame(
        {"benchmark": ["a", "a", "b", "b"], "method": ["dflash", "xpress"] * 2,
         "speedup": [2.0, 4.0, 1.0, 8.0]}
    )  # fmt: skip
    (ax,) = scaling.decoding_hours(costs, 720_000, plain_rate=100.0).axes
    assert [bar.get_height() for bar in ax.patches] == [1.0, 2.0, 0.5, 0.25]
    assert ax.lines[0].get_ydata()[0] == 2.0


def test_hours_of_training_are_written_at_their_bars():
    estimate = pd.DataFrame({"part": ["drafter", "together"], "hours": [1.5, 4.0]})
    (ax,) = scaling.hour_bars(estimate).axes
    assert [t.get_text() for t in ax.texts] == ["  1.5 h", "  4.0 h"]
