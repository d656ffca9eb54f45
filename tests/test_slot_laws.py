"""Three laws of a slot: what the solver saw, what the target says, the inspector."""

from dataclasses import replace

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch
from toys import PROMPT, full_logits, make_method

from xpress_lab.benchmarks.slot_laws import distance, most_telling, slot_laws
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.viz.block_inspector import BlockInspector
from xpress_lab.viz.slot_laws import LEAST, contenders, slot_picture, slot_sentence

BLOCK = 6
WORDS = [f" w{n}" for n in range(40)]


pytestmark = pytest.mark.usefixtures("house_style")


@pytest.fixture(scope="module")
def method(target):
    return make_method("xpress", target, BLOCK, passes=4)


@pytest.fixture(scope="module")
def text(target, method):
    return decode(target, method, PROMPT, max_new_tokens=24, keep_trace=True)


@pytest.fixture(scope="module")
def every(target, method, text):
    return [slot_laws(target, method, text, n) for n in range(len(text.rounds))]


def test_the_laws_favourites_are_the_drafts_of_every_pass(text, every):
    for laws, one in zip(every, text.rounds, strict=True):
        assert laws.marginal.argmax(-1).tolist() == one.trace[0]
        assert laws.refined.argmax(-1).tolist() == one.trace[1:]
        assert (laws.slots, laws.passes) == (BLOCK - 1, one.passes)
        assert laws.anchor == one.block[0]


def test_every_law_sums_to_one(every):
    for law in (part for laws in every for part in laws[:3]):
        torch.testing.assert_close(law.sum(-1), torch.ones(law.shape[:-1]))


def test_the_targets_law_is_given_the_drafts_that_the_pass_read(target, text, every):
    ids = PROMPT + text.tokens
    start = len(PROMPT)
    for laws, one in zip(every, text.rounds, strict=True):
        for step in range(1, laws.passes + 1):
            for slot in range(1, laws.slots + 1):
                given = laws.given(slot, step)
                assert given == [ids[start], *one.trace[step - 1][: slot - 1]]
                logits = full_logits(target, ids[:start] + given)[-1]
                own = laws.target[step - 1, slot - 1]
                torch.testing.assert_close(own, logits.float().softmax(-1))
        start += one.emitted


def test_only_refined_blocks_with_a_trace_have_laws(target, method, text):
    bare = make_method("dflash", target, BLOCK)
    with pytest.raises(LabError, match="round 0 of this text by dflash has none"):
        slot_laws(target, bare, text, 0)
    forgot = replace(text, rounds=[replace(text.rounds[0], trace=[])])
    with pytest.raises(LabError, match="keep_trace=True"):
        slot_laws(target, method, forgot, 0)


def test_distance_is_total_variation():
    assert distance(torch.tensor([1.0, 0, 0]), torch.tensor([0, 0.5, 0.5])) == 1
    assert distance(torch.tensor([0.5, 0.5]), torch.tensor([0.25, 0.75])) == 0.25


def test_most_telling_is_where_refining_helped_most(every):
    for laws in every:
        slot, step = most_telling(laws)
        gains = [
            distance(laws.marginal[k], laws.target[p, k])
            - distance(laws.refined[p, k], laws.target[p, k])
            for p in range(laws.passes)
            for k in range(laws.slots)
        ]
        best = gains[(step - 1) * laws.slots + slot - 1]
        assert best == pytest.approx(max(gains), abs=1e-6)


# picture -------------------------------------------------------------------------


def test_contenders_have_a_hope_in_one_law_and_the_targets_order(every):
    laws = every[0]
    tokens = contenders(laws, 2, 1)
    three = torch.stack([laws.marginal[1], laws.refined[0, 1], laws.target[0, 1]])
    assert len(set(tokens)) == len(tokens) <= 8
    assert all(three[:, t].max() >= LEAST for t in tokens)
    assert {int(law.argmax()) for law in three} <= set(tokens)
    shares = [round(float(three[2, t]), 2) for t in tokens]
    assert shares == sorted(shares, reverse=True)


def test_picture_has_three_bars_a_token_and_both_rows_of_the_block(every):
    laws = every[0]
    fig = slot_picture(laws, WORDS, slot=2, step=1)
    strip, bars = fig.axes
    tokens = contenders(laws, 2, 1)
    widths = [bar.get_width() for group in bars.containers for bar in group]
    laws_of = (laws.marginal[1], laws.refined[0, 1], laws.target[0, 1])
    expected = [float(law[t]) for law in laws_of for t in tokens]
    assert widths == pytest.approx(expected)
    found = [t.get_text() for t in strip.texts]
    assert {"draft", "pass 1"} <= set(found)
    for token in laws.trace[0] + laws.trace[1]:
        assert WORDS[token].strip() in found
    names = [label.get_text() for label in bars.get_yticklabels()]
    assert names == [WORDS[t].strip() for t in tokens]


@pytest.mark.parametrize(("slot", "step"), [(0, 1), (BLOCK, 1), (1, 0), (1, 99)])
def test_slots_and_passes_that_are_not_there(every, slot, step):
    with pytest.raises(LabError, match="There is no (slot|pass) .*: choose 1 to"):
        slot_picture(every[0], WORDS, slot, step)


def test_sentence_names_three_favourites_and_both_distances(every):
    laws = every[0]
    said = slot_sentence(laws, WORDS, 1, 1)
    for law in (laws.marginal[0], laws.refined[0, 0], laws.target[0, 0]):
        assert f"“w{int(law.argmax())}”" in said
    before = distance(laws.marginal[0], laws.target[0, 0])
    assert f"{before:.2f} before" in said


# the inspector -------------------------------------------------------------------


def test_inspector_follows_its_controls(target, method, text):
    inspector = BlockInspector(target, method, {"one": text, "two": text}, WORDS)
    assert (inspector.slot.value, inspector.step.value) == most_telling(inspector.laws)
    assert inspector.slot.max == BLOCK - 1
    before = inspector.picture.value
    inspector.slot.value = inspector.slot.value % (BLOCK - 1) + 1
    assert inspector.picture.value != before
    assert inspector.sentence.value.startswith(f"Slot {inspector.slot.value}:")
    inspector.text.value = "two"
    for _, number in inspector.block.options:
        inspector.block.value = number
        assert inspector.step.max == text.rounds[number].passes
        slot, step = inspector.slot.value, inspector.step.value
        assert inspector.sentence.value == slot_sentence(
            inspector.laws, WORDS, slot, step
        )
    assert not plt.get_fignums()


def test_words_that_look_like_tags_are_shown(target, method, text):
    words = ["<|end|>"] * len(WORDS)
    inspector = BlockInspector(target, method, {"one": text}, words)
    assert "favourite is “&lt;end&gt;”" in inspector.sentence.value
