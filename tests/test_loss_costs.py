"""Arms by loss: rows that count what they say, summaries by hand, live figures."""

import matplotlib

matplotlib.use("Agg")

from dataclasses import fields, replace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
import toys

from xpress_lab.benchmarks.convergence import final_pass, read_pass
from xpress_lab.benchmarks.loss_costs import WHOLE, loss_costs, measure_arms
from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.lab import arm_method
from xpress_lab.presets import ArmRecipe
from xpress_lab.training.blocks import make_blocks
from xpress_lab.training.loss_sweep import OFF, read_losses, recipe_of
from xpress_lab.training.losses import arm_loss
from xpress_lab.training.states import target_states
from xpress_lab.training.texts import TextSet
from xpress_lab.viz import learning

BLOCK, TAPS = 5, (0, 2)


@pytest.fixture(scope="module")
def arm(target) -> Arm:
    head = toys.strong_head("xpress", BLOCK, dtype=target.dtype)
    return Arm("xpress", toys.tiny_drafter(target, BLOCK, TAPS), head)


def batch_of(target, greedy_text):
    texts = TextSet.of([(toys.PROMPT, greedy_text[:30])], pad_id=0)
    states = target_states(target, texts, TAPS)
    anchors = torch.tensor([[7, 15, 22]])
    kept = torch.ones_like(anchors, dtype=torch.bool)
    sizes = BLOCK, toys.MASK_ID
    return make_blocks(Borrowed(target), texts, states, anchors, kept, *sizes)


# the losses ---------------------------------------------------------------------


@pytest.mark.parametrize("loss", OFF)
def test_a_loss_lacks_its_own_term_and_no_other(loss):
    whole, own = ArmRecipe(), recipe_of(loss, ArmRecipe())
    differ = {
        f.name for f in fields(whole) if getattr(whole, f.name) != getattr(own, f.name)
    }
    assert differ == ({OFF[loss]} if OFF[loss] else set())
    assert all(getattr(own, name) == 0 for name in differ)


def test_a_loss_that_nobody_knows_is_refused():
    with pytest.raises(LabError, match="Unknown loss 'no luck'.*no anchor"):
        recipe_of("no luck", ArmRecipe())


def test_what_is_off_does_not_count(target, arm, greedy_text):
    batch = batch_of(target, greedy_text)

    def loss_of(name):
        generator = torch.Generator().manual_seed(0)
        recipe = recipe_of(name, ArmRecipe(block_size=BLOCK))
        return arm_loss(arm, Borrowed(target), batch, recipe, generator)

    whole, parts = loss_of(WHOLE)
    without, left = loss_of("no anchor")
    assert left["anchor"] == 0 and parts["anchor"] > 0
    assert (whole - without).item() == pytest.approx(parts["anchor"])
    without, left = loss_of("no consistency")
    assert "consistency" not in left
    assert (whole - without).item() == pytest.approx(parts["consistency"])
    both = loss_of("no L1")[0] + loss_of("no cross-entropy")[0]
    assert whole.item() == pytest.approx(both.item())  # CE and L1, everywhere


# the measurement -----------------------------------------------------------------


class Words:
    """The toy target under a tokenizer that reads prompts as numbers."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        return getattr(self.target, name)

    def encode(self, prompt: str) -> list[int]:
        return [int(word) for word in prompt.split()]


def test_rows_are_counts_of_the_rounds(target, arm):
    prompts = {"math": ["1 2 3", "4 5 6 7"], "chat": ["9 8"]}
    target = Words(target)
    rows = measure_arms(target, {"a": arm}, prompts, (0, 2), 7, max_new_tokens=20)
    assert len(rows) == 3 * 3 and set(rows["seed"]) == {7}
    assert list(rows["passes"].unique()) == ["0", "2", "fixed"]
    for row in rows.itertuples():
        passes = None if row.passes == "fixed" else int(row.passes)
        ids = target.encode(prompts[row.benchmark][row.prompt_id])
        method = arm_method(arm, target.target, passes)
        options = {"max_new_tokens": 20, "keep_trace": True}
        text = decode(target.target, method, ids, **options)
        assert row.new_tokens == len(text.tokens)
        assert row.verify_steps == len(text.rounds)
        assert row.read_passes == sum(map(read_pass, text.rounds))
        assert row.final_passes == sum(map(final_pass, text.rounds))
    alone = rows[rows["passes"] == "0"]
    assert (alone["final_passes"] == 0).all()
    assert rows[rows["passes"] == "fixed"]["final_passes"].sum() > 0
    texts = rows.groupby(["benchmark", "prompt_id"])["token_hash"].nunique()
    assert (texts == 1).all()  # greedy: the target's text, whatever drafted it


def made_up() -> pd.DataFrame:
    """Two losses, two seeds, two texts: 4 and 5 verifications, and 8 and 20."""
    lines = []
    for loss, steps in ((WHOLE, 4), ("no L1", 8)):
        for seed in (0, 1):
            for prompt in (0, 1):
                more = seed * (12 if loss == "no L1" else 1)
                line = {"loss": loss, "passes": "6", "benchmark": "math"}
                line |= {"prompt_id": prompt, "seed": seed, "new_tokens": 41}
                line |= {"verify_steps": steps + more, "read_passes": 2 * steps}
                lines.append(line | {"final_passes": 3 * steps, "token_hash": "x"})
    return pd.DataFrame(lines)


def test_costs_by_hand():
    whole, other = loss_costs(made_up()).to_dict("records")
    assert (whole["loss"], other["loss"]) == (WHOLE, "no L1")
    assert whole["tau"] == pytest.approx(160 / 18)
    assert whole["share"] == whole["share_low"] == whole["share_highest_seed"] == 1
    assert other["tau"] == pytest.approx(160 / 56)
    assert other["share"] == pytest.approx(18 / 56)
    assert other["share_low"] <= other["share"] <= other["share_high"] < 1
    assert other["share_lowest_seed"] == pytest.approx(5 / 20)
    assert other["share_highest_seed"] == pytest.approx(4 / 8)
    assert whole["read"] == pytest.approx(32 / 18)
    assert other["read"] == pytest.approx(64 / 56)
    assert whole["whole"] == pytest.approx(48 / 18)
    assert whole["texts"] == 4 and whole["seeds"] == 2


def test_passes_stay_words_in_a_file(tmp_path):
    rows = made_up()
    rows.to_csv(tmp_path / "losses.csv", index=False)
    pd.testing.assert_frame_equal(read_losses(tmp_path / "losses.csv"), rows)


# the figures ----------------------------------------------------------------------


def test_live_training_draws_in_place(monkeypatch):
    shown = []

    class Handle:
        def update(self, fig):
            shown.append(("again", fig))

    def display(fig, display_id):
        shown.append(("new", fig))
        return Handle()

    monkeypatch.setattr(learning, "display", display)
    score = iter((1.5, 2.0, 2.5, 3.0))
    recipe = replace(ArmRecipe(), anchor_weight=0.5)
    live = learning.LiveTraining(25, recipe, lambda: next(score), every=10)
    for step in range(25):
        live(step, {"loss": 3.0, "forced": 2.0 - step / 25, "anchor": 1.0})
    assert [how for how, _ in shown] == ["new", "again", "again", "again"]
    assert live.scores == {1: 1.5, 10: 2.0, 20: 2.5, 25: 3.0}
    left, right = shown[-1][1].axes
    forced, _, anchor, _ = left.lines  # two parts, raw and smoothed
    assert forced.get_ydata()[0] == 2.0  # its weight is one
    assert set(anchor.get_ydata()) == {2.0}  # 1.0 is half of it
    assert right.lines[0].get_xydata().tolist() == [
        list(p) for p in live.scores.items()
    ]
    assert not plt.get_fignums()  # nothing is left to be shown twice


def test_block_view_shows_the_mask(target, greedy_text):
    batch = batch_of(target, greedy_text)
    fig = learning.block_view(batch)
    image = fig.axes[0].images[0].get_array()
    assert ((image > 0) == batch.mask[0, 0].numpy()).all()
    labels = [t.get_text() for t in fig.axes[0].get_yticklabels()]
    assert labels == ["block 1", "block 2", "block 3"]
    plt.close("all")


def test_term_bars_are_one_a_place_and_refiner():
    terms = {"new": {"forced": 1.0, "anchor": 1.1, "consistency": 1.2}}
    terms["old"] = {"forced": 0.4, "anchor": 0.9, "consistency": 0.8}
    (ax,) = learning.term_bars(terms).axes
    assert [bar.get_height() for bar in ax.patches] == [1.0, 0.4, 1.1, 0.9, 1.2, 0.8]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["new", "old"]
    plt.close("all")


def test_loss_bars_have_a_panel_a_question():
    rows = made_up()
    rows = pd.concat([rows.assign(passes=k) for k in ("0", "6", "fixed")])
    fig = learning.loss_bars(loss_costs(rows), passes=6)
    widths = [[bar.get_width() for bar in ax.patches] for ax in fig.axes]
    assert widths[0] == widths[1] == pytest.approx([160 / 18, 160 / 56])
    assert widths[2] == pytest.approx([32 / 18, 64 / 56])
    told = [[text.get_text() for text in ax.texts] for ax in fig.axes]
    assert told == [["8.89", "2.86"], ["8.89", "2.86"], ["1.78", "1.14"]]
    assert {text.get_position()[0] for text in fig.axes[2].texts} == {1}  # the edge
    plt.close("all")
