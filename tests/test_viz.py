"""Figures: the grid's truth table, every figure from made-up frames, stable bytes."""

import base64
import itertools
import json

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb, to_rgba

from xpress_lab.benchmarks.convergence import final_pass, read_pass
from xpress_lab.decoding import Generation, Round
from xpress_lab.presets import METHODS
from xpress_lab.viz import acceptance, style, widgets
from xpress_lab.viz.jacobi_grid import (
    ACCEPTED,
    CHANGED,
    FROZEN,
    KEPT,
    REJECTED,
    SEED,
    UNREAD,
    classify,
    gain,
    jacobi_grid,
    right_so_far,
    show_word,
)
from xpress_lab.viz.rounds_grid import rounds_grid
from xpress_lab.viz.throughput import schedule_curves, throughput_curves
from xpress_lab.viz.widgets import JacobiStepper

WORDS = [" Anna", " lives", " in", " Paris", ".", "\n", "    ", " carpenter", " $", ""]


pytestmark = pytest.mark.usefixtures("house_style")


def a_round(accepted: int = 2, passes: int = 3) -> Round:
    trace = [[9, 8, 2, 7], [0, 8, 2, 3], [0, 1, 2, 4], [0, 1, 2, 3]][: passes + 1]
    return Round(accepted, accepted + 1, passes, [6, *trace[-1]], 5, trace)


# classify ------------------------------------------------------------------------


def test_classify_truth_table():
    states, verdict = classify([[1, 2, 3, 4], [1, 9, 3, 5], [1, 9, 3, 5]], accepted=1)
    assert states == [
        [SEED, SEED, SEED, SEED],
        [FROZEN, CHANGED, KEPT, CHANGED],
        [FROZEN, FROZEN, FROZEN, FROZEN],
    ]
    assert verdict == [ACCEPTED, REJECTED, UNREAD, UNREAD]


@pytest.mark.parametrize("accepted", range(4))
def test_verdict_has_one_rejection_unless_all_are_kept(accepted):
    _, verdict = classify([[1, 2, 3]], accepted)
    assert len(verdict) == 3
    assert verdict.count(ACCEPTED) == accepted
    assert verdict.count(REJECTED) == (accepted < 3)
    assert verdict == sorted(verdict)  # accepted < rejected < unread


def test_frozen_cells_of_a_causal_map_never_change_again():
    """For every function of the token to the left, frozen really means final."""
    seeds = list(itertools.product(range(2), repeat=3))
    for table in itertools.product(range(2), repeat=6):  # slot k, previous token
        for seed in seeds:
            trace = [list(seed)]
            for _ in range(4):
                previous = [0, *trace[-1][:-1]]
                trace.append([table[2 * k + t] for k, t in enumerate(previous)])
            states, _ = classify(trace, accepted=0)
            for p, k in itertools.product(range(1, 5), range(3)):
                if states[p][k] == FROZEN:
                    assert {row[k] for row in trace[p:]} == {trace[p][k]}
                assert trace[p][: min(p, 3)] == trace[-1][: min(p, 3)]  # the theorem
                assert states[p].count(FROZEN) >= min(p - 1, 3)


def test_classify_takes_a_bare_seed():
    states, verdict = classify([[4, 4]], accepted=2)
    assert states == [[SEED, SEED]]
    assert verdict == [ACCEPTED, ACCEPTED]


@pytest.mark.parametrize(
    ("drafts", "emitted", "count"),
    [([1, 2, 3], [1, 2, 9], 2), ([1, 2], [1, 2, 3], 2), ([5], [1], 0), ([], [1], 0)],
)
def test_right_so_far(drafts, emitted, count):
    assert right_so_far(drafts, emitted) == count


def test_gain_and_passes_of_a_round():
    trace = [[9, 8, 2, 7], [0, 8, 2, 3], [0, 1, 2, 4], [0, 1, 2, 3]]
    kept_two = Round(2, 3, 3, [6, *trace[-1]], 5, trace)
    assert gain(kept_two) == 2  # none of 9, 8 was right, 0 and 1 are
    assert final_pass(kept_two) == 3
    assert read_pass(kept_two) == 2  # slots 1..3 hold their last tokens
    kept_all = Round(4, 5, 3, [6, *trace[-1]], 5, trace)
    assert read_pass(kept_all) == final_pass(kept_all) == 3
    kept_none = Round(0, 1, 3, [6, *trace[-1]], 5, trace)
    assert (gain(kept_none), read_pass(kept_none)) == (0, 1)


def test_show_word_makes_white_space_visible():
    shown = [show_word(word) for word in WORDS]
    assert all(text.strip() for text in shown)
    assert show_word(" Anna") == "Anna"
    assert show_word("<|end|>") == "<end>"


# the grid ------------------------------------------------------------------------


def texts(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def test_grid_writes_every_token_and_the_targets_word():
    found = texts(jacobi_grid(a_round(), WORDS))
    assert {"Anna", "lives", "in", "Paris", r"\$", "✓"} <= set(found)
    assert found.count("✓") == 2
    assert "✗\n⏎" in found
    assert {"pass 0: draft", "pass 3", "target"} <= set(found)


def test_grid_shows_the_bonus_when_all_are_kept():
    found = texts(jacobi_grid(a_round(accepted=4), WORDS.__getitem__))
    assert "✓ bonus\n⏎" in found
    assert not [text for text in found if text.startswith("✗")]


def test_grid_upto_hides_later_passes_and_the_verdict():
    found = texts(jacobi_grid(a_round(), WORDS, upto=1))
    assert "pass 1" in found
    assert not {"pass 2", "target", "✓"} & set(found)


def test_grid_draws_on_given_axes_and_without_a_trace():
    fig, ax = plt.subplots()
    assert jacobi_grid(Round(1, 2, 0, [6, 0, 1], 5), WORDS, ax=ax) is fig
    assert "drafts" in texts(fig)


# a whole text --------------------------------------------------------------------


def a_text() -> Generation:
    rounds = [a_round(accepted=2), a_round(accepted=4), a_round(accepted=0)]
    return Generation([1], [0, 1, 5], rounds, block_size=5)


def test_rounds_grid_shows_the_targets_word_above_the_draft_it_replaces():
    found = texts(rounds_grid(a_text(), WORDS, "xpress"))
    assert {"round 1", "round 2", "round 3"} <= set(found)
    assert found.count("⏎") == 3  # the target's own word, once a round
    assert "round 3" not in texts(rounds_grid(a_text(), WORDS, "xpress", most=2))


def test_rounds_grid_emits_nothing_behind_the_end():
    text = a_text()
    text.rounds = [Round(3, 2, 0, [6, 0, 1, 2, 3], 5)]  # a stop id was kept second
    assert "⏎" not in texts(rounds_grid(text, WORDS, "dflash"))


# the stepper ---------------------------------------------------------------------


def test_stepper_draws_what_its_slider_says():
    stepper = JacobiStepper(lambda *_: a_text(), ["one", "two"], WORDS)
    assert stepper.step.max == 3 and stepper.step.value == 0
    assert stepper.sentence.value == "The bare draft: its first 0 tokens are right."
    before = stepper.picture.value
    stepper.step.value = 2
    assert stepper.picture.value != before
    assert stepper.sentence.value.startswith("Pass 2 changed 2 tokens and found 1")
    stepper.block.value = 2  # another block begins at its draft
    assert stepper.step.value == 0
    stepper.prompt.value = "two"
    assert len(stepper.block.options) == 3
    assert not plt.get_fignums()


def test_stepper_asks_for_the_text_of_prompt_temperature_and_seed_once():
    asked = []

    def draft(prompt, temperature, seed):
        asked.append((prompt, temperature, seed))
        return a_text()

    stepper = JacobiStepper(draft, ["one", "two"], WORDS)
    assert asked == [("one", 0.0, 0)] and stepper.seed.disabled
    stepper.temperature.value = 1.0
    assert not stepper.seed.disabled
    stepper.seed.value = 7
    stepper.prompt.value = "two"
    stepper.temperature.value = 0.0  # greedy texts are the same for every seed
    wanted = [("one", 1.0, 0), ("one", 1.0, 7), ("two", 1.0, 7), ("two", 0.0, 0)]
    assert asked[1:] == wanted
    stepper.temperature.value = 1.0
    assert asked[1:] == wanted


def test_stepper_has_a_picture_and_a_sentence_for_pages_without_a_kernel(monkeypatch):
    shown = []
    monkeypatch.setattr(widgets, "display", lambda data, raw: shown.append((data, raw)))
    JacobiStepper(lambda *_: a_text(), ["one"], WORDS).show()
    ((faces, raw),) = shown
    assert raw
    assert "application/vnd.jupyter.widget-view+json" in faces
    assert base64.b64decode(faces["image/png"]).startswith(b"\x89PNG")
    assert faces["text/plain"].endswith("The target keeps 4.")


# figures from frames -------------------------------------------------------------

ARMS = ("ar", "dflash", "markov", "xpress K=6")


def made_up_lines(arms=ARMS, temperatures=(0.0, 1.0)) -> pd.DataFrame:
    rows = itertools.product(temperatures, ("all", "chat", "code"), enumerate(arms, 1))
    return pd.DataFrame(
        [
            {
                "temperature": temperature,
                "benchmark": benchmark,
                "arm": arm,
                "tau": 1.0 * tau,
                "tau_low": tau - 0.2,
                "tau_high": tau + 0.3,
                "speedup": tau / 2,
                "speedup_low": tau / 2 - 0.1,
                "speedup_high": tau / 2 + 0.1,
            }
            for temperature, benchmark, (tau, arm) in rows
        ]
    )


def made_up_rows(slots: int = 3) -> pd.DataFrame:
    reached = [18, 12, 6][:slots]
    return pd.DataFrame(
        [
            {
                "method": method,
                "passes": passes,
                "rescoring": "",
                "budget": 0 if method == "ar" else slots,
                "confidence": 0.0,
                "temperature": temperature,
                "block_size": 1 if method == "ar" else slots + 1,
                "verify_steps": 20,
                "accepted_per_slot": json.dumps([] if method == "ar" else reached),
            }
            for temperature in (0.0, 1.0)
            for method, passes in (("ar", ""), ("dflash", ""), ("xpress", "6"))
        ]
    )


def made_up_costs() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "temperature": temperature,
                "arm": arm,
                "draft_ms": 0.4,
                "refine_ms": 0.1,
                "tree_ms": 0.0,
                "verify_ms": 1.0,
                "accept_ms": 0.05,
                "round_ms": 1.55,
                "ar_step_ms": 0.5,
                "tau": 5.0,
            }
            for temperature in (0.0, 1.0)
            for arm in ARMS
        ]
    )


def made_up_batches(temperatures=(0.0, 1.0)) -> pd.DataFrame:
    cases = itertools.product(temperatures, (1, 4, 16, 32), enumerate(ARMS, 1))
    return pd.DataFrame(
        [
            {
                "temperature": temperature,
                "batch_size": size,
                "arm": arm,
                **{f"tokens_per_second{end}": 100 * k * size for end in ENDS},
                **{f"speedup{end}": float(k) for end in ENDS},
            }
            for temperature, size, (k, arm) in cases
        ]
    )


ENDS = ("", "_low", "_high")


def all_figures() -> dict:
    passes = made_up_lines([f"xpress K={k}" for k in range(6)] + ["xpress fixed point"])
    blocks = pd.DataFrame({"final_pass": [0, 1, 1, 2, 4]})
    rows = made_up_rows()
    return {
        "grid": jacobi_grid(a_round(), WORDS),
        "rounds": rounds_grid(a_text(), WORDS, "dflash"),
        "tau": acceptance.tau_bars(made_up_lines()),
        "speed": acceptance.speed_bars(made_up_lines()),
        "passes": acceptance.tau_by_passes(passes, made_up_lines()),
        "passes alone": acceptance.tau_by_passes(passes[passes.temperature == 0]),
        "slots": acceptance.slot_curves(rows),
        "slots conditional": acceptance.slot_curves(rows, conditional=True),
        "convergence": acceptance.convergence_curve(blocks, slots=15),
        "convergence alone": acceptance.convergence_curve(blocks),
        "stages": acceptance.stage_bars(made_up_costs()),
        "batches": throughput_curves(made_up_batches()),
    }


def test_every_figure_draws_and_writes_a_png(tmp_path):
    for name, fig in all_figures().items():
        path = style.save_figure(fig, tmp_path / "new folder" / f"{name}.png")
        assert path.read_bytes().startswith(b"\x89PNG"), name
    assert not plt.get_fignums()  # saved figures are closed


def test_png_bytes_depend_on_the_picture_alone(tmp_path):
    first, second = (
        style.save_figure(jacobi_grid(a_round(), WORDS), tmp_path / name).read_bytes()
        for name in ("a.png", "b.png")
    )
    assert first == second
    assert b"Software" not in first and b"Date" not in first


def test_bars_leave_plain_decoding_out_and_say_all_values():
    fig = acceptance.tau_bars(made_up_lines())
    assert [text.get_text() for text in fig.legends[0].get_texts()] == [
        "dFlash",
        "Markov",
        "xPress K=6",
    ]
    assert texts(fig).count("4.00") == 6  # two panels of three benchmarks


def test_tau_by_passes_draws_numbered_passes_and_named_levels():
    lines = made_up_lines([f"xpress K={k}" for k in (0, 1, 4)] + ["xpress fixed point"])
    fig = acceptance.tau_by_passes(lines, made_up_lines())
    assert list(fig.axes[0].lines[0].get_xdata()) == [0, 1, 4]
    assert {"xPress", "dFlash", "Markov"} <= set(texts(fig))


def test_conditional_acceptance_divides_by_the_slot_before():
    fig = acceptance.slot_curves(made_up_rows(), conditional=True)
    drawn = fig.axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(drawn[:2], [0.9, 12 / 18])
    assert np.isnan(drawn[2])  # twelve blocks are too few for a share


def test_convergence_draws_the_part_that_is_read_too():
    blocks = pd.DataFrame({"final_pass": [3, 2], "read_pass": [0, 1]})
    fig = acceptance.convergence_curve(blocks, slots=3)
    read, whole = (line.get_ydata() for line in fig.axes[0].lines[:2])
    np.testing.assert_allclose(read, [0.5, 1, 1, 1])
    np.testing.assert_allclose(whole, [0, 0, 0.5, 1])


def test_convergence_counts_blocks_final_by_each_pass():
    blocks = pd.DataFrame({"final_pass": [0, 1, 1, 2]})
    fig = acceptance.convergence_curve(blocks, slots=3)
    np.testing.assert_allclose(fig.axes[0].lines[0].get_ydata(), [0.25, 0.75, 1, 1])


def test_batches_are_drawn_by_arm_beside_their_speed_up():
    fig = throughput_curves(made_up_batches((0.0,)))
    speed, over = fig.axes
    for k, (line, ratio) in enumerate(zip(speed.lines, over.lines, strict=True), 1):
        assert line.get_xdata().tolist() == [1, 4, 16, 32]
        assert line.get_ydata().tolist() == [100 * k, 400 * k, 1600 * k, 3200 * k]
        assert set(ratio.get_ydata()) == {k}
    names = [text.get_text() for text in speed.texts]
    assert names == [style.label_of(arm) for arm in ARMS]
    assert [tick.get_text() for tick in over.get_xticklabels()] == "1 4 16 32".split()
    without_plain = made_up_batches((0.0,)).assign(speedup=float("nan"))
    assert not throughput_curves(without_plain).axes[1].texts


def test_scheduled_arms_are_drawn_strong_beside_their_own_uncut_lines():
    whole = made_up_batches((0.0,))
    cut = whole[whole["arm"] == "xpress K=6"].assign(arm="xpress K=6 scheduled")
    cut[["speedup", "speedup_low", "speedup_high"]] *= 3
    (ax,) = schedule_curves(pd.concat([whole, cut])).axes
    k = whole.loc[whole["arm"] == "xpress K=6", "speedup"].iloc[0]
    drawn = [set(line.get_ydata()) for line in ax.lines]
    assert drawn == [{3 * k}, {k}, {1}]
    assert [text.get_text() for text in ax.texts] == ["xPress"]


def test_end_labels_keep_their_distance():
    fig, ax = plt.subplots()
    ax.set_ylim(0, 1)
    acceptance.name_ends(ax, [(0.5, "a", "k"), (0.51, "b", "k"), (0.99, "c", "k")])
    heights = sorted(text.get_position()[1] for text in ax.texts)
    assert min(np.diff(heights)) > 0.07
    assert max(heights) <= 1


def test_end_labels_can_lead_to_where_their_lines_end():
    fig, ax = plt.subplots()
    ax.set(xlim=(0, 10), ylim=(0, 1))
    acceptance.name_ends(ax, [(0.5, "a", "k"), (0.5, "b", "r")], leave=[8, None])
    a, b = ax.texts
    assert (a.xy, b.xy) == ((8, 0.5), (1, 0.5))
    assert a.xycoords == ("data", "data") and b.xycoords[0] == "axes fraction"
    assert b.get_position()[1] - a.get_position()[1] > 0.07
    assert b.arrow_patch.get_edgecolor() == to_rgba("r")


# style ---------------------------------------------------------------------------


def test_style_covers_every_method_and_tells_them_apart():
    assert set(METHODS) <= set(style.LOOKS)
    for part in ("label", "colour", "marker", "line"):
        values = [getattr(look, part) for look in style.LOOKS.values()]
        assert len(set(values)) == len(values), part


def test_stages_are_greys_apart_and_no_methods_colour():
    """In a chart whose rows are methods, a method's hue on a stage misleads."""
    colours = style.STAGE_COLOURS.values()
    assert not set(colours) & {look.colour for look in style.LOOKS.values()}
    shades = sorted(sum(to_rgb(colour)) / 3 for colour in colours)
    assert np.diff(shades).min() > 0.12  # apart without any sense of colour
    assert all(np.ptp(to_rgb(colour)) < 0.1 for colour in colours)


def test_arms_share_their_methods_look():
    assert style.look_of("xpress K=4") is style.LOOKS["xpress"]
    assert style.label_of("xpress fixed point") == "xPress fixed point"
    assert style.label_of("dflash") == "dFlash"
    assert style.passes_of("xpress K=12") == 12
    assert style.passes_of("markov") is None
    shuffled = ["xpress K=12", "markov", "new", "xpress K=4", "dflash", "markov"]
    ordered = ["dflash", "markov", "xpress K=4", "xpress K=12", "new"]
    assert style.in_order(shuffled) == ordered
    assert style.look_of("another method").label == "another"
