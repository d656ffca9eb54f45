"""Training blocks see what drafting sees, and runs can be interrupted.

* A block's loss does not move with target states at or after its anchor, nor with
  other blocks; the loss of many blocks is the weighted mean of the single ones
  (pitfall 24).
* Labels, layout and positions are those of the loop: an arm that has learnt one text
  by heart drafts it with tau near B, and no longer with positions one off
  (pitfalls 12, 23).
* A resumed run equals an uninterrupted one, bit by bit.
"""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import toys
from torch import nn
from torch.testing import assert_close

from xpress_lab.block_method import BlockMethod
from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm, new_confidence
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.presets import ArmRecipe
from xpress_lab.target import Target
from xpress_lab.training import arms
from xpress_lab.training import states as states_module
from xpress_lab.training.blocks import make_blocks, sample_anchors
from xpress_lab.training.losses import (
    arm_loss,
    block_distance,
    confidence_loss,
    draft_hidden,
    slot_weights,
)
from xpress_lab.training.monitoring import online_tau
from xpress_lab.training.states import StateFolder, StateStore, target_states
from xpress_lab.training.texts import TextSet
from xpress_lab.training.trainer import Monitor, Schedule, fit

BLOCK, TAPS = 5, (0, 2)
KINDS = ["dflash", "markov", "markov-gated", "markov-rnn", "xpress"]
RECIPE = ArmRecipe(block_size=BLOCK)


def new_arm(kind: str, target, block_size: int = BLOCK) -> Arm:
    head = None
    if kind != "dflash":
        head = toys.strong_head(kind, block_size, dtype=target.dtype)
    arm = Arm(kind, toys.tiny_drafter(target, block_size, TAPS), head)
    for module in (arm.drafter, arm.head):
        if module is not None:
            module.requires_grad_(True)
    return arm


@pytest.fixture(scope="module")
def texts(greedy_text) -> TextSet:
    """Two texts: prompt 5 with 20 tokens, prompt 3 with 11, padded to one length."""
    pairs = [(toys.PROMPT, greedy_text[:20]), (greedy_text[30:33], greedy_text[33:44])]
    return TextSet.of(pairs, pad_id=0)


def blocks_at(target, texts, anchors, kept=None):
    anchors = torch.tensor(anchors)
    kept = torch.ones_like(anchors, dtype=torch.bool) if kept is None else kept
    states = target_states(target, texts, TAPS)
    borrowed = Borrowed(target)
    return make_blocks(borrowed, texts, states, anchors, kept, BLOCK, toys.MASK_ID)


def loss_of_arm(arm, target, batch, recipe=RECIPE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return arm_loss(arm, Borrowed(target), batch, recipe, generator)


# --- where it is computed -----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_and_losses_lie_where_the_target_does(texts, kind):
    """Texts and states are read from disk. The meta device stands in for a GPU: it
    refuses numbers from elsewhere as one would."""
    target = toys.tiny_target()
    states = target_states(target, texts, TAPS)
    target.model.to("meta")
    arm, borrowed = new_arm(kind, target), Borrowed(target)
    for module in arm.modules():
        module.to("meta")
    anchors, kept = sample_anchors(texts, 3, torch.Generator().manual_seed(0))
    batch = make_blocks(borrowed, texts, states, anchors, kept, BLOCK, toys.MASK_ID)
    assert {part.device.type for part in vars(batch).values()} == {"meta"}
    hidden = draft_hidden(arm, borrowed, batch)
    logits = borrowed.logits(hidden[:, 1:])
    if arm.head is not None:
        logits = logits + arm.head(hidden, batch.previous)
    loss = block_distance(logits, batch, RECIPE)
    arm.confidence = new_confidence(arm).to("meta")
    sure = confidence_loss(arm, hidden, logits, batch, RECIPE)
    assert loss.device.type == sure.device.type == "meta"
    recipe = replace(RECIPE, confidence_weight=1.0)
    anew = arms.new_arm(kind, Arm("dflash", arm.drafter), recipe, 0)
    where = {p.device.type for part in anew.modules() for p in part.parameters()}
    assert where == {"meta"}


# --- what a block may see -----------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_target_states_from_the_anchor_on_do_not_reach_a_block(target, texts, kind):
    """Each token before the anchor does, each from the anchor on does not."""
    arm, one = new_arm(kind, target), texts.select(torch.tensor([0]))
    anchor = 12
    batch = blocks_at(target, one, [[anchor]])
    loss = loss_of_arm(arm, target, batch)[0]
    taps = batch.taps.clone()
    for place in range(taps.shape[1]):
        batch.taps = taps.clone()
        batch.taps[:, place] += 1
        moved = loss_of_arm(arm, target, batch)[0] != loss
        assert bool(moved) == (place < anchor)


@pytest.mark.parametrize("kind", KINDS)
def test_other_blocks_do_not_reach_a_block(target, texts, kind):
    """Neither their anchors' places, nor their ids, nor their order."""
    arm = new_arm(kind, target)
    alone = draft_hidden(arm, target, blocks_at(target, texts, [[9], [5]]))
    for others in ([[9, 14], [5, 7]], [[9, 10], [5, 4]], [[9, 20], [5, 5]]):
        batch = blocks_at(target, texts, others)
        assert_close(draft_hidden(arm, target, batch)[[0, 2]], alone)
        batch.block_ids[:, BLOCK:] = 17
        assert_close(draft_hidden(arm, target, batch)[[0, 2]], alone)
    swapped = draft_hidden(arm, target, blocks_at(target, texts, [[14, 9], [7, 5]]))
    assert_close(swapped[[1, 3]], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_of_many_blocks_is_the_weighted_mean_of_single_ones(target, texts, kind):
    arm, one = new_arm(kind, target), texts.select(torch.tensor([0]))
    anchors = [6, 11, 17, 22]  # the last one's block runs out of the text
    whole = loss_of_arm(arm, target, blocks_at(target, one, [anchors]))[0]
    total = weight = 0.0
    for anchor in anchors:
        batch = blocks_at(target, one, [[anchor]])
        share = (slot_weights(BLOCK - 1, RECIPE.gamma) * batch.valid).sum()
        total += share * loss_of_arm(arm, target, batch)[0]
        weight += share
    assert_close(whole, total / weight)


def test_dropped_anchors_and_padding_weigh_nothing(target, texts):
    arm = new_arm("xpress", target)
    alone = blocks_at(target, texts, [[9], [5]])
    padded = blocks_at(
        target, texts, [[9, 2], [5, 13]], torch.tensor([[True, False], [True, False]])
    )
    assert_close(*(loss_of_arm(arm, target, b)[0] for b in (alone, padded)))
    end = blocks_at(target, texts, [[9], [12]])  # text 1 ends after place 13
    assert end.valid[1].tolist() == [True, False, False, False]
    before = loss_of_arm(arm, target, end)[0]
    end.labels[1, 1:], end.target_probs[1, 1:] = 3, 0.5
    assert loss_of_arm(arm, target, end)[0] == before


def test_blocks_hold_what_the_loop_will_have(target, texts):
    """Labels, previous tokens, positions and target rows, spelt out for one block."""
    one = texts.select(torch.tensor([0]))
    ids, anchor = one.tokens[0].tolist(), 8
    batch = blocks_at(target, one, [[anchor]])
    mask = toys.MASK_ID
    assert batch.block_ids[0].tolist() == [ids[anchor]] + [mask] * (BLOCK - 1)
    assert batch.labels[0].tolist() == ids[anchor + 1 : anchor + BLOCK]
    assert batch.previous[0].tolist() == ids[anchor - 1 : anchor + BLOCK - 1]
    length = len(ids)
    expected = [*range(length), *range(anchor, anchor + BLOCK)]
    assert batch.positions[0].tolist() == expected
    rows = toys.full_logits(target, ids)[anchor : anchor + BLOCK - 1].softmax(-1)
    assert_close(batch.target_probs[0], rows, rtol=1e-4, atol=1e-4)
    first = blocks_at(target, one, [[0]])  # nothing before: the anchor itself
    assert first.previous[0, :2].tolist() == [ids[0], ids[0]]


def test_training_hidden_states_are_the_loop_s(target, texts, greedy_text):
    arm = new_arm("dflash", target)
    one = texts.select(torch.tensor([0]))
    anchors = [5, 9, 16]
    hidden = draft_hidden(arm, target, blocks_at(target, one, [anchors]))
    method = BlockMethod("dflash", target, arm.drafter)
    text = toys.PROMPT + greedy_text
    scripted = toys.Scripted(text, [3, 4, 2, 4], BLOCK, method)
    drafted = {}

    def keep(request, _drafting, states):
        drafted[request.start] = states[0]

    scripted.after_draft = keep
    decode(target, scripted, toys.PROMPT, max_new_tokens=16)
    assert set(anchors) - {16} <= set(drafted)
    for row, anchor in enumerate(anchors):
        if anchor in drafted:
            assert_close(hidden[row], drafted[anchor], rtol=1e-4, atol=1e-4)


def test_anchors_lie_in_the_response_and_are_not_drawn_twice(texts):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        anchors, kept = sample_anchors(texts, 12, generator)
        for row in range(2):
            first, last = int(texts.prompt_lengths[row]), int(texts.lengths[row]) - 2
            chosen = anchors[row][kept[row]].tolist()
            assert len(set(chosen)) == len(chosen) == min(12, last - first + 1)
            assert all(first <= anchor <= last for anchor in chosen)


# --- the loss -----------------------------------------------------------------


def test_slot_weights_decay_from_one():
    """exp(-(k - 1) / gamma) for slots k = 1..S."""
    expected = torch.tensor([1.0, 0.8668779, 0.7514773, 0.6514391])
    assert_close(slot_weights(4, gamma=7.0), expected)


def test_block_distance_by_hand(target, texts):
    batch = blocks_at(target, texts, [[9], [12]])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(
        batch.target_probs.shape, generator=generator, dtype=torch.float64
    )
    total = weight = 0.0
    for row in range(2):
        for slot in range(BLOCK - 1):
            if not batch.valid[row, slot]:
                continue
            p, q = batch.target_probs[row, slot], logits[row, slot].softmax(-1)
            distance = -0.1 * q[batch.labels[row, slot]].log()
            distance = distance + 0.9 * (p - q).abs().sum()
            w = torch.exp(torch.tensor(-slot / RECIPE.gamma))
            total, weight = total + w * distance, weight + w
    assert_close(block_distance(logits, batch, RECIPE), total / weight)


def test_the_distance_knows_its_own_gradient(target, texts):
    batch = blocks_at(target, texts, [[9], [12]])
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(
        batch.target_probs.shape, generator=generator, dtype=torch.float64
    ).requires_grad_()
    distance = lambda x: 0.7 * block_distance(x, batch, RECIPE)  # noqa: E731
    assert torch.autograd.gradcheck(distance, (logits,))


def test_consistency_feeds_the_argmax_of_the_pass_before(target, texts):
    """The term is the distance after one of three passes, each drawn equally often.

    Pass 1 is fed with the drafter's argmax, pass p with that of pass p - 1.  Fed
    tokens carry no gradient: it equals that of a head given the same tokens.
    """
    arm = new_arm("xpress", target)
    batch = blocks_at(target, texts, [[6, 9], [4, 5]])
    hidden = draft_hidden(arm, target, batch)
    base, prepared = target.head(hidden[:, 1:]), arm.head.prepare(hidden)
    logits, distances = base, []
    for _ in range(RECIPE.consistency_passes):
        tokens = logits.argmax(-1)
        previous = torch.cat([batch.previous[:, :2], tokens[:, :-1]], dim=1)
        logits = base + arm.head.bias(prepared, previous)
        distances.append(block_distance(logits, batch, RECIPE))

    drawn = []
    for seed in range(90):
        _, parts = loss_of_arm(arm, target, batch, seed=seed)
        part = parts["consistency"] / RECIPE.consistency_weight
        near = [abs(part - distance.item()) < 1e-9 for distance in distances]
        assert sum(near) == 1
        drawn.append(near.index(True))
    assert min(drawn.count(p) for p in range(RECIPE.consistency_passes)) > 15

    only = replace(RECIPE, anchor_weight=0.0)
    forced = replace(only, consistency_weight=0.0)
    parameters = [*arm.drafter.parameters(), *arm.head.parameters()]
    whole = loss_of_arm(arm, target, batch, only)[0]
    whole = whole - loss_of_arm(arm, target, batch, forced)[0]
    expected = RECIPE.consistency_weight * distances[drawn[0]]
    for ours, theirs in zip(
        torch.autograd.grad(whole, parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        assert_close(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_the_loss_add_up_and_reach_every_parameter(target, texts, kind):
    arm = new_arm(kind, target)
    batch = blocks_at(target, texts, [[6, 9], [4, 5]])
    loss, parts = loss_of_arm(arm, target, batch)
    names = {"dflash": set(), "xpress": {"forced", "anchor", "consistency"}}
    assert set(parts) == names.get(kind, {"forced", "anchor"})
    if parts:
        assert loss.item() == pytest.approx(sum(parts.values()))
    loss.backward()
    for module in (arm.drafter, arm.head):
        for parameter in () if module is None else module.parameters():
            assert parameter.grad.abs().max() > 0
    assert all(p.grad is None for p in target.model.parameters())


# --- states on disk -----------------------------------------------------------


def new_store(target, texts, where, dtype=torch.bfloat16, shard=50) -> StateStore:
    return StateStore(StateFolder(target, TAPS, where, dtype), texts, shard)


def test_stored_states_are_those_of_a_fresh_run(target, texts, tmp_path):
    """Row by row, whatever the padding; probabilities come out normalised."""
    store = new_store(target, texts, tmp_path, torch.float64)
    for rows in ([0, 1], [1], [1, 0]):
        rows = torch.tensor(rows)
        read = store.read(rows)
        fresh = target_states(target, texts.select(rows), TAPS)
        for row, length in enumerate(texts.lengths[rows].tolist()):
            assert_close(read.taps[row, :length], fresh.taps[row, :length])
            assert_close(read.last[row, :length], fresh.last[row, :length])
            told = ~fresh.lse[row].isnan()
            assert_close(
                read.lse[row, told], fresh.lse[row, told].float(), check_dtype=False
            )
            logits = target.head(fresh.last[row, told])
            assert_close(fresh.lse[row, told], logits.logsumexp(-1))
    asked = texts.in_response()[:, 1:]
    assert torch.equal(~target_states(target, texts, TAPS).lse.isnan()[:, :-1], asked)


@pytest.mark.parametrize("multiple", [1, 4, 1000])
def test_few_widths_change_no_text(multiple, target, tmp_path):
    """Texts and states are as wide as each other: a multiple, if there is room."""
    pairs = [(toys.PROMPT, [i % 9] * (1 + i)) for i in range(9)]
    many = TextSet.of(pairs, 0)
    store = new_store(target, many, tmp_path)
    for rows in map(torch.tensor, ([0, 1], [3], [8, 2])):
        longest, room = int(many.lengths[rows].max()), many.tokens.shape[1]
        wide, tight = many.select(rows, multiple), many.select(rows)
        width = min(room, -(-longest // multiple) * multiple)
        assert wide.tokens.shape[1] == width
        assert torch.equal(wide.tokens[:, :longest], tight.tokens)
        read, plain = store.read(rows, multiple), store.read(rows)
        for padded, own in zip(read, plain, strict=True):
            assert padded.shape[1] == width
            assert_close(padded[:, :longest], own, equal_nan=True)


def test_a_store_interrupted_goes_on_and_is_not_built_twice(
    target, texts, tmp_path, monkeypatch
):
    calls = []

    def counted(*arguments):
        calls.append(len(arguments[1]))
        if len(calls) == 60:
            raise KeyboardInterrupt
        return target_states(*arguments)

    many = TextSet.of([(toys.PROMPT, [i % 9] * (3 + i % 4)) for i in range(130)], 0)
    monkeypatch.setattr(states_module, "target_states", counted)
    monkeypatch.setattr(states_module, "ROWS", 2)
    with pytest.raises(KeyboardInterrupt):
        new_store(target, many, tmp_path)
    new_store(target, many, tmp_path)
    assert len(calls) == 60 + 15  # of 65 batches, two shards of 25 had been kept
    store = new_store(target, many, tmp_path)
    assert len(calls) == 75
    fresh = target_states(target, many.select(torch.tensor([129])), TAPS)
    read = store.read(torch.tensor([129]))
    assert_close(read.last, fresh.last, rtol=1e-2, atol=1e-2)
    new_store(target, texts, tmp_path)  # other texts: made anew
    assert len(calls) == 76


def test_states_of_another_target_or_of_other_taps_are_not_read(target, tmp_path):
    other = toys.tiny_target(seed=8)
    paths = {
        StateFolder(target, TAPS, tmp_path).path,
        StateFolder(other, TAPS, tmp_path).path,
        StateFolder(target, (0, 1), tmp_path).path,
        StateFolder(target, TAPS, tmp_path, torch.float32).path,
    }
    assert len(paths) == 4


def test_a_disk_too_small_for_the_states_is_one_clear_sentence(
    target, texts, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(states_module, "save_file", full)
    with pytest.raises(LabError, match="GB more are needed"):
        new_store(target, texts, tmp_path)


def test_a_damaged_shard_of_states_is_named(target, texts, tmp_path):
    path = new_store(target, texts, tmp_path).folder.file(0)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(LabError, match="0000.safetensors is damaged"):
        new_store(target, texts, tmp_path)


# --- draft vocabulary ---------------------------------------------------------


def test_blocks_end_before_the_first_token_that_the_drafter_cannot_say(target, texts):
    """Labels and previous tokens are draft ids; probabilities keep their size."""
    said = texts.tokens[0, 5:25]
    lacking = int(said[7])
    ids = torch.tensor([i for i in range(toys.VOCAB) if i != lacking])
    one = texts.select(torch.tensor([0]))
    states = target_states(target, one, TAPS)
    anchors = torch.tensor([[10]])
    kept = torch.ones_like(anchors, dtype=torch.bool)

    def cut(borrowed):
        return make_blocks(borrowed, one, states, anchors, kept, BLOCK, toys.MASK_ID)

    whole, some = cut(Borrowed(target)), cut(Borrowed(target, ids))
    assert whole.labels[0, 1] == lacking and some.valid.tolist() == [
        [True] + [False] * 3
    ]
    assert some.previous[0, 3] == len(ids)
    assert_close(some.target_probs, whole.target_probs[..., ids])
    borrowed = Borrowed(target, ids)
    keep = whole.labels[0] != lacking
    assert torch.equal(borrowed.to_target(some.labels)[0, keep], whole.labels[0, keep])


# --- learning one text by heart -----------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_learnt_by_heart_is_drafted_with_tau_near_b(kind, tmp_path):
    """Loss near zero with tau near 1 would mean shifted labels or layout."""
    target = toys.tiny_target(dtype=torch.float32)
    answer = toys.generate(target, toys.PROMPT, 46)
    one = TextSet.of([(toys.PROMPT, answer)], pad_id=0)
    arm = new_arm(kind, target)
    recipe = ArmRecipe(block_size=BLOCK, ce_weight=1.0, l1_weight=0.0)
    borrowed, states = Borrowed(target), target_states(target, one, TAPS)

    def loss_of(generator):
        anchors, kept = sample_anchors(one, 40, generator)
        batch = make_blocks(borrowed, one, states, anchors, kept, BLOCK, toys.MASK_ID)
        return arm_loss(arm, borrowed, batch, recipe, generator)

    parts = nn.ModuleList([m for m in (arm.drafter, arm.head) if m is not None])
    log = fit(kind, parts, loss_of, Schedule(300, 3e-3), tmp_path).log
    assert log.loss.iloc[-1] < 0.05 < 1 < log.loss.iloc[0]

    def tau(shift: int) -> float:
        arm.drafter.forward = lambda block, context, positions, *how: type(
            arm.drafter
        ).forward(
            arm.drafter,
            block,
            context,
            positions + shift * (torch.arange(positions.shape[1]) >= context.shape[1]),
            *how,
        )
        head = None if arm.head is None else arm.head.fold()
        method = BlockMethod(kind, target, arm.drafter, head, BLOCK - 1)
        out = decode(target, method, toys.PROMPT, max_new_tokens=46)
        assert out.tokens == answer
        return out.tau

    assert tau(shift=0) > 0.95 * BLOCK
    assert tau(shift=1) < 0.8 * BLOCK


# --- interruptions ------------------------------------------------------------


class Crash(Exception):
    pass


def toy_run(folder, steps=12, crash_at=None, seed=0, accumulate=1):
    """A small regression whose data come from the generator alone."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()

    def loss_of(generator):
        x = torch.randn(16, 4, generator=generator, dtype=torch.float64)
        loss = (module(x) - x.sum(1, keepdim=True).sin()).square().mean()
        return loss, {"double": 2 * loss.item()}

    def on_step(step, _row):
        if step == crash_at:
            raise Crash

    schedule = Schedule(steps, 1e-2, 0.2, 0.01, save_every=3, accumulate=accumulate)
    log = fit("toy", module, loss_of, schedule, Path(folder), seed, on_step).log
    return module, log


@pytest.mark.parametrize("crash_at", [0, 2, 3, 7, 11])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, crash_at):
    whole, log = toy_run(tmp_path / "whole")
    with pytest.raises(Crash):
        toy_run(tmp_path / "cut", crash_at=crash_at)
    resumed, log_again = toy_run(tmp_path / "cut")
    for ours, theirs in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert log.equals(log_again)
    assert log.step.tolist() == list(range(12))
    assert not resumed.training


def test_two_interruptions_and_a_finished_run(tmp_path):
    whole, _ = toy_run(tmp_path / "whole")
    for crash_at in (4, 8):
        with pytest.raises(Crash):
            toy_run(tmp_path / "cut", crash_at=crash_at)
    toy_run(tmp_path / "cut")
    again, log = toy_run(tmp_path / "cut")  # nothing left to do
    for ours, theirs in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert len(log) == 12


def test_seed_decides_the_run(tmp_path):
    losses = [
        toy_run(tmp_path / str(i), seed=i // 2)[1].loss.iloc[-1] for i in range(3)
    ]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a state", "cut", "foreign"])
def test_a_damaged_state_is_named_and_kept(tmp_path, content):
    toy_run(tmp_path)
    path = tmp_path / "state.pt"
    if content == "cut":
        path.write_bytes(path.read_bytes()[:700])
    elif content == "foreign":
        torch.save({"module": {}}, path)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    with pytest.raises(LabError, match="(?s)Cannot resume from .*state.pt.*delete it"):
        toy_run(tmp_path)
    assert path.read_bytes() == before


def test_a_state_of_a_longer_run_is_refused(tmp_path):
    toy_run(tmp_path)
    with pytest.raises(LabError, match="holds more than 5 steps"):
        toy_run(tmp_path, steps=5)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    module = nn.Linear(1, 1)
    before = module.weight.clone()

    def loss_of(_generator):
        return module(torch.ones(1, 1)).sum() * float("nan"), {}

    with pytest.raises(LabError, match="loss is nan at step 0"):
        fit("toy", module, loss_of, Schedule(3, 1e-2), tmp_path)
    assert torch.equal(module.weight, before)
    assert not (tmp_path / "state.pt").exists()


def test_schedule_warms_up_and_ends_near_zero():
    schedule = Schedule(100, 1.0, warmup=0.1)
    factors = [schedule.factor(step) for step in range(100)]
    assert factors[:10] == pytest.approx([0.1 * k for k in range(1, 11)])
    assert factors[10] == 1 and factors[-1] < 1e-3
    assert factors[10:] == sorted(factors[10:], reverse=True)
    assert all(factor > 0 for factor in factors)


# --- larger batches, the best weights -----------------------------------------

TWO_WORKERS = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from test_training import toy_run
module, log = toy_run(sys.argv[2], accumulate=int(sys.argv[3]))
from xpress_lab.training.workers import Workers
torch.save(module.state_dict(), f"{sys.argv[2]}/end-{Workers().rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_are_one_with_batches_twice_as_large(tmp_path):
    """Two processes, as `accelerate launch` starts them, take the steps of one that
    accumulates."""
    script = tmp_path / "run.py"
    script.write_text(TWO_WORKERS, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launch += ["--nproc-per-node", "2"]  # on CPUs `accelerate launch` would need MPI
    here = str(Path(__file__).parent)
    subprocess.run(
        [*launch, str(script), here, str(tmp_path), "1"],
        check=True,
    )
    alone, _ = toy_run(tmp_path / "alone", accumulate=2)
    for rank in range(2):
        end = torch.load(tmp_path / f"end-{rank}.pt", weights_only=True)
        for name, value in alone.state_dict().items():
            assert_close(end[name], value)


def test_accumulated_batches_count_as_one_larger_batch(tmp_path):
    weight = nn.Parameter(torch.zeros(1))
    module = nn.Module()
    module.weight = weight
    seen = []

    def loss_of(generator):
        seen.append(torch.rand(1, generator=generator))
        return (weight * seen[-1]).sum() + 0 * weight.sum(), {}

    fit("toy", module, loss_of, Schedule(1, 1e-2, accumulate=3), tmp_path)
    assert len(seen) == 3 and len({s.item() for s in seen}) == 3
    assert_close(weight.grad, torch.stack(seen).mean(0))


def test_the_weights_that_score_best_are_kept(tmp_path):
    scores, kept = iter([1.0, 3.0, 2.0]), {}
    module = nn.Linear(2, 1)

    def score():
        value = next(scores)
        kept[value] = module.weight.detach().clone()
        assert not module.training
        return value

    def loss_of(generator):
        return module(torch.rand(4, 2, generator=generator)).square().sum(), {}

    monitor = Monitor("tau", score, every=4)
    schedule = Schedule(10, 1e-1)
    log = fit("toy", module, loss_of, schedule, tmp_path, monitor=monitor).log
    assert log.tau.dropna().tolist() == [1.0, 3.0, 2.0]  # after 4, 8 and the last
    assert torch.equal(module.weight, kept[3.0])
    assert not torch.equal(kept[2.0], kept[3.0])


def test_online_tau_is_the_loop_s(target, texts):
    arm = new_arm("xpress", target)

    class Words:
        def decode(self, *_, **__):
            return ""

    speaking = Target(target.model, Words())
    speaking.encode = lambda _: toys.PROMPT
    tau = online_tau(arm, speaking, ["a", "b"], max_new_tokens=30)
    method = BlockMethod("xpress", target, arm.drafter, arm.head.fold(), 6)
    rounds = decode(target, method, toys.PROMPT, max_new_tokens=30).rounds
    assert tau == pytest.approx(sum(r.emitted for r in rounds) / len(rounds))
