"""A drafter that may say only some of the target's tokens loses nothing but tau.

* Ids go to draft ids and back; a restricted head is the target's head, fewer rows.
* Greedy texts and laws at T > 0 stay the target's, whatever tokens are left out.
* The vocabulary travels in the checkpoint, and is checked when it is read.
"""

import json

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from xpress_lab.block_method import BlockMethod
from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm, load_arm, save_arm
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.sampling import Sampling
from xpress_lab.training.draft_vocabulary import choose_draft_vocabulary
from xpress_lab.training.texts import TextSet

KINDS = ["dflash", "markov", "xpress"]
IDS = torch.arange(0, toys.VOCAB - 1, 2)  # every second token; the mask is not in it
BLOCK = 5


def arm_of(kind: str, target, ids=IDS) -> Arm:
    head = None
    if kind != "dflash":
        head = toys.strong_head(
            kind, BLOCK, len(ids), inputs=len(ids) + 1, dtype=target.dtype
        )
        head.float().to(target.dtype)
    drafter = toys.tiny_drafter(target, BLOCK).float().to(target.dtype)
    return Arm(kind, drafter, head, ids)


def method_of(arm: Arm, target, passes=3) -> BlockMethod:
    head = None if arm.head is None else arm.head.fold()
    return BlockMethod(arm.kind, target, arm.drafter, head, passes, arm.draft_ids)


@given(st.sets(st.integers(0, toys.VOCAB - 1), min_size=1))
def test_ids_go_there_and_back(target, chosen):
    ids = torch.tensor(sorted(chosen))
    borrowed, every = Borrowed(target, ids), torch.arange(toys.VOCAB)
    drafts = borrowed.to_draft(every)
    assert torch.equal(borrowed.to_target(drafts[ids]), ids)
    assert (drafts[[i for i in range(toys.VOCAB) if i not in chosen]] == len(ids)).all()
    q = torch.rand(2, 3, len(ids))
    whole = borrowed.spread(q)
    assert_close(whole[..., ids], q)
    assert_close(whole.sum(-1), q.sum(-1))


@pytest.mark.parametrize("tied", [True, False])
def test_restricted_logits_are_rows_of_the_target_s(target, untied_target, tied):
    source = target if tied else untied_target
    hidden = torch.randn(2, 3, toys.HIDDEN, dtype=torch.float64)
    some = Borrowed(source, IDS).logits(hidden)
    assert_close(some, source.head(hidden)[..., IDS])


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_texts_stay_the_target_s(target, greedy_text, kind):
    method = method_of(arm_of(kind, target), target)
    out = decode(target, method, toys.PROMPT, max_new_tokens=60)
    assert out.tokens == greedy_text[:60]
    drafted = {token for r in out.rounds for token in r.block[1:]}
    assert drafted <= set(IDS.tolist())
    assert "draft vocabulary 20" in method.describe()


def test_traces_speak_the_target_s_ids(target):
    method = method_of(arm_of("xpress", target), target)
    out = decode(target, method, toys.PROMPT, max_new_tokens=30, keep_trace=True)
    for r in out.rounds:
        assert r.trace[-1] == r.block[1:]
        assert {t for step in r.trace for t in step} <= set(IDS.tolist())


def test_a_vocabulary_of_everything_drafts_as_none(target):
    """The same drafter and head, once with all ids listed, once without."""
    whole = toys.make_method("xpress", target, BLOCK)
    listed = BlockMethod(
        "xpress", target, whole.drafter, whole.head, 3, torch.arange(toys.VOCAB)
    )
    blocks = [
        [r.block for r in decode(target, m, toys.PROMPT, max_new_tokens=40).rounds]
        for m in (whole, listed)
    ]
    assert blocks[0] == blocks[1]


@pytest.mark.parametrize("passes", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_sampled_texts_keep_the_law(kind, passes):
    """Tokens that are never drafted still come, as often as the target says."""
    toy = toys.EnumerableTarget(vocab=3)
    method = toy.method(kind, 3, passes, draft_ids=torch.tensor([0, 2]))
    sampling = Sampling(1.0)
    texts = [text.tokens for text in toys.sampled(toy, method, sampling, 2_000, 3)]
    law = toys.exact_law(sampling.probabilities(toy.logits), 1, 2, 3)
    assert toys.chi_square(torch.tensor(texts), law, 3) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_comes_back_with_the_arm(target, tmp_path, kind):
    arm = arm_of(kind, target)
    save_arm(arm, tmp_path)
    back = load_arm(tmp_path, target)
    assert torch.equal(back.draft_ids, IDS)
    texts = [
        [r.block for r in decode(target, method_of(a, target), toys.PROMPT).rounds]
        for a in (arm, back)
    ]
    assert texts[0] == texts[1]
    stored = load_file(tmp_path / "model.safetensors")["d2t"]
    assert torch.equal(stored + torch.arange(len(IDS)), IDS)  # EAGLE-3's convention


@pytest.mark.parametrize(
    ("size", "d2t", "says"),
    [
        (21, IDS - torch.arange(20), "is 21, tensor d2t is"),
        (20, None, "d2t is absent"),
        (20, torch.zeros(20).long() - 1, "0..39"),
        (20, torch.zeros(20).long() + 30, "0..39"),
        (20, -torch.arange(20), "rising order"),
        (0, IDS, "must be 1 or more"),
        ("20", IDS, "not of kind int"),
    ],
)
def test_broken_vocabularies_are_refused(target, tmp_path, size, d2t, says):
    save_arm(arm_of("xpress", target), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["d2t"]
    if d2t is not None:
        tensors["d2t"] = d2t
    save_file(tensors, tmp_path / "model.safetensors")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text("utf-8")) | {"draft_vocab_size": size}
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(LabError, match=says):
        load_arm(tmp_path, target)


def test_a_head_of_another_size_is_refused(target, tmp_path):
    save_arm(arm_of("markov", target), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "markov_head.markov_w1.weight"
    tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(LabError, match="do not fit"):
        load_arm(tmp_path, target)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 19), min_size=1), min_size=1, max_size=6),
    st.integers(2, 20),
)
def test_the_most_frequent_tokens_are_chosen(responses, size):
    texts = TextSet.of([([20, 21], response) for response in responses], pad_id=22)
    chosen = choose_draft_vocabulary(texts, size, always=(23,), vocab_size=24)
    ids, flat = chosen.ids.tolist(), [t for r in responses for t in r]
    assert ids == sorted(set(ids)) and len(ids) == size and 23 in ids
    left = [flat.count(t) for t in range(24) if t not in ids]
    kept = [flat.count(t) for t in ids if t != 23]
    assert not kept or not left or min(kept) >= max(left)
    assert chosen.coverage == pytest.approx(sum(kept) / len(flat))
    assert chosen.seen == len(set(flat))


def test_a_vocabulary_of_impossible_size_is_refused():
    texts = TextSet.of([([1], [2, 3])], pad_id=0)
    for size in (0, 9):
        with pytest.raises(LabError, match="not in 1..8"):
            choose_draft_vocabulary(texts, size, (1,), 8)
