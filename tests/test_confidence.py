"""Proposals that the confidence head cuts lose nothing but length.

* Greedy text and the law at T > 0 stay the target's at any threshold; a cut that
  looks at the very draft that it cuts does not keep the law, and is seen.
* 0 disables; a threshold that no slot reaches gives plain steps.
* Training: cross-entropy with the acceptance probability, no gradient elsewhere; a
  trained head knows good slots from bad ones.
"""

import math

import pytest
import torch
import toys
from torch.testing import assert_close

from xpress_lab.block_method import BlockMethod
from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import MARKOV_TYPES, Arm
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.presets import ArmRecipe
from xpress_lab.refiners.confidence import leading_sure
from xpress_lab.sampling import Sampling
from xpress_lab.training.blocks import make_blocks
from xpress_lab.training.losses import arm_loss, slot_weights
from xpress_lab.training.states import target_states
from xpress_lab.training.texts import TextSet

KINDS = ["dflash", *MARKOV_TYPES, "xpress"]
BLOCK = 6


def cut_method(kind, target, threshold, anchor_first=False, passes=3) -> BlockMethod:
    drafter = toys.tiny_drafter(target, BLOCK, anchor_first=anchor_first)
    head = None
    if kind != "dflash":
        head = toys.strong_head(kind, BLOCK, dtype=target.dtype).fold()
    rank = head.rank if kind in MARKOV_TYPES else 0
    confidence = toys.sharp_confidence(toys.HIDDEN, rank)
    return BlockMethod(kind, target, drafter, head, passes, None, confidence, threshold)


def lengths(out) -> set[int]:
    return {len(r.block) - 1 for r in out.rounds}


# --- nothing is lost ----------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.0, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_at_any_threshold(target, greedy_text, kind, threshold):
    method = cut_method(kind, target, threshold)
    out = decode(target, method, toys.PROMPT, max_new_tokens=60)
    assert out.tokens == greedy_text[:60]
    if threshold == 0:
        assert lengths(out) == {BLOCK - 1}
    elif threshold == 1:  # a sigmoid never reaches it: plain steps
        assert lengths(out) == {0} and out.tau == 1
    else:
        assert len(lengths(out)) > 1
    for r in out.rounds:
        assert all(len(step) == len(r.block) - 1 for step in r.trace)


@pytest.mark.parametrize("threshold", [0.55, 0.7])
@pytest.mark.parametrize("kind", ["dflash", "markov", "markov-rnn", "xpress"])
def test_sampled_texts_keep_the_law(kind, threshold):
    toy = toys.EnumerableTarget(vocab=3)
    method = toy.method(kind, 4, 2, threshold=threshold)
    assert p_value(toy, toys.sampled(toy, method, Sampling(1.0), 2_000, 3)) > 1e-4


def p_value(toy, texts) -> float:
    cut = {length for text in texts for length in lengths(text)}
    assert len(cut) > 1  # some proposals were cut, and not all alike
    law = toys.exact_law(Sampling(1.0).probabilities(toy.logits), 1, 2, 3)
    return toys.chi_square(torch.tensor([text.tokens for text in texts]), law, 3)


def test_a_cut_that_looks_at_the_draft_itself_is_seen():
    """Dropping a draft because of what it is shifts the law."""

    class Peeking:
        def __init__(self, method):
            self.method, self.name = method, "peeking"
            self.block_size, self.tap_ids = method.block_size, method.tap_ids
            self.budget = method.budget

        def begin(self, capacity):
            self.drafting = self.method.begin(capacity)
            return self

        def propose(self, *request):
            found = self.drafting.propose(*request)
            likely = found.q.of(found.tokens) > 0.4
            kept = int(likely.long().cumprod(1).sum())
            return found._replace(tokens=found.tokens[:, :kept])

    toy = toys.EnumerableTarget(vocab=3)
    method = Peeking(toy.method("xpress", 4, 2))
    how = {"sampling": Sampling(1.0), "max_new_tokens": 3}
    texts = [decode(toy, method, [1, 2], seed=seed, **how) for seed in range(2_000)]
    assert p_value(toy, texts) < 1e-6


@pytest.mark.parametrize(
    ("logits", "threshold", "kept"),
    [
        ([[3.0, 1.0, -1.0, 4.0]], 0.5, [2]),
        ([[-1.0, 5.0, 5.0, 5.0]], 0.5, [0]),
        ([[1.0, 1.0, 1.0, 1.0]], 0.7, [4]),
        ([[0.0, 9.0]], 0.5, [2]),  # at the threshold is enough
        ([[3.0, -1.0, 3.0], [3.0, 3.0, -1.0]], 0.5, [1, 2]),  # each row for itself
    ],
)
def test_the_first_unsure_slot_cuts(logits, threshold, kept):
    assert leading_sure(torch.tensor(logits), threshold) == kept


def test_the_cut_sees_the_slot_and_the_token_before_it(target):
    """Recomputed from the drafted block alone: same place in every round."""
    method, seen = cut_method("markov-gated", target, 0.5), []
    drafting = method.begin(128)
    hidden_states = drafting.hidden_states
    drafting.hidden_states = lambda r: seen.append(hidden_states(r)) or seen[-1]
    method.begin = lambda capacity: drafting
    out = decode(target, method, toys.PROMPT, max_new_tokens=40)
    for r, hidden in zip(out.rounds, seen, strict=True):
        kept = len(r.block) - 1
        w1 = method.head.markov_w1.weight[torch.tensor(r.block)]
        features = torch.cat([hidden[0, 1 : kept + 2], w1[: BLOCK - 1]], dim=-1)
        sure = torch.sigmoid(method.confidence.proj(features)[:, 0])
        assert (sure[:kept] >= 0.5).all()
        if kept < BLOCK - 1:
            assert sure[kept] < 0.5


@pytest.mark.parametrize("threshold", [-0.1, 1.01, float("nan")])
def test_thresholds_are_probabilities(target, threshold):
    with pytest.raises(LabError, match="must lie in 0..1"):
        cut_method("markov", target, threshold)


def test_a_threshold_without_a_head_is_refused(target):
    with pytest.raises(LabError, match="needs a confidence head"):
        BlockMethod("dflash", target, toys.tiny_drafter(target, 4), threshold=0.3)


# --- training -----------------------------------------------------------------

RECIPE = ArmRecipe(block_size=BLOCK, confidence_weight=1.0)


@pytest.fixture(scope="module")
def batch(target, greedy_text):
    pairs = [(toys.PROMPT, greedy_text[:20]), (greedy_text[30:33], greedy_text[33:48])]
    texts = TextSet.of(pairs, pad_id=0)
    anchors = torch.tensor([[6, 9], [4, 12]])
    states = target_states(target, texts, (0, 2))
    kept = torch.ones_like(anchors, dtype=torch.bool)
    borrowed = Borrowed(target)
    return make_blocks(borrowed, texts, states, anchors, kept, BLOCK, toys.MASK_ID)


def trainable(kind, target) -> Arm:
    method = cut_method(kind, target, 0.0)
    head = None
    if kind != "dflash":
        head = toys.strong_head(kind, BLOCK)
    arm = Arm(kind, method.drafter, head, None, method.confidence)
    for module in arm.modules():
        module.requires_grad_(True)
    return arm


def loss_of(arm, target, batch, recipe=RECIPE):
    generator = torch.Generator().manual_seed(0)
    return arm_loss(arm, Borrowed(target), batch, recipe, generator)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_written_out(target, batch, kind):
    """Binary cross-entropy with 1 - TV of the teacher-forced draft distribution."""
    arm = trainable(kind, target)
    drafter = arm.drafter
    context = drafter.project(batch.taps)
    block = target.embed(batch.block_ids)
    hidden = drafter(block, context, batch.positions, batch.mask)
    hidden = hidden.reshape(4, BLOCK, -1)
    logits = target.head(hidden[:, 1:])
    if arm.head is not None:
        logits = logits + arm.head(hidden, batch.previous)
    total = weight = 0.0
    slots = slot_weights(BLOCK - 1, RECIPE.gamma)
    for row in range(4):
        for k in range(BLOCK - 1):
            if not batch.valid[row, k]:
                continue
            p, q = batch.target_probs[row, k], logits[row, k].softmax(-1)
            kept = 1 - 0.5 * (p - q).abs().sum()
            x = hidden[row, k + 1]
            if kind in MARKOV_TYPES:
                u = arm.head.markov_w1.weight[batch.previous[row, k + 1]]
                x = torch.cat([x, u])
            said = torch.sigmoid(arm.confidence.proj(x))[0]
            each = -(kept * said.log() + (1 - kept) * (1 - said).log())
            total, weight = total + slots[k] * each, weight + slots[k]
    parts = loss_of(arm, target, batch)[1]
    assert parts["confidence"] == pytest.approx((total / weight).item(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_moves_the_confidence_head_alone(target, batch, kind):
    """Gradients of drafter and head are those of the loss without the term."""
    arm = trainable(kind, target)
    plain = Arm(kind, arm.drafter, arm.head)
    others = [p for module in plain.modules() for p in module.parameters()]
    ours = torch.autograd.grad(loss_of(arm, target, batch)[0], others)
    theirs = torch.autograd.grad(loss_of(plain, target, batch)[0], others)
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)
    own = torch.autograd.grad(
        loss_of(arm, target, batch)[0], arm.confidence.parameters()
    )
    assert all(g.abs().max() > 0 for g in own)


def test_a_draft_vocabulary_counts_what_it_can_say(target, batch):
    """p over draft ids alone sums to less than one: acceptance is sum min(p, q)."""
    arm = trainable("dflash", target)
    halved = batch.target_probs / 2
    before, batch.target_probs = batch.target_probs, halved
    with torch.no_grad():
        arm.confidence.proj.weight.zero_()
        arm.confidence.proj.bias.fill_(2.0)
    drafted = loss_of(arm, target, batch)[1]["confidence"]
    batch.target_probs = before
    sure = torch.sigmoid(torch.tensor(2.0)).item()
    hidden = arm.drafter(
        target.embed(batch.block_ids),
        arm.drafter.project(batch.taps),
        batch.positions,
        batch.mask,
    ).reshape(4, BLOCK, -1)
    q = target.head(hidden[:, 1:]).softmax(-1)
    kept = torch.minimum(q, halved).sum(-1)
    weight = slot_weights(BLOCK - 1, RECIPE.gamma) * batch.valid
    mean = ((weight * kept).sum() / weight.sum()).item()
    assert drafted == pytest.approx(
        -(mean * math.log(sure) + (1 - mean) * math.log(1 - sure))
    )


def test_a_fitted_head_ranks_slots_by_their_acceptance(target, batch):
    """After a few steps on one batch its answers follow the true probabilities."""
    arm = trainable("markov", target)
    optimizer = torch.optim.Adam(arm.confidence.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        total, parts = loss_of(arm, target, batch)
        grads = torch.autograd.grad(total, list(arm.confidence.parameters()))
        for parameter, grad in zip(arm.confidence.parameters(), grads, strict=True):
            parameter.grad = grad
        optimizer.step()
        losses.append(parts["confidence"])
    assert losses[-1] < 0.5 * losses[0]
