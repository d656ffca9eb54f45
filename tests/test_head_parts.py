"""Inside the xPress head: its parts taken out, its ears, its price."""

import math

import pytest
import torch
from toys import HIDDEN, VOCAB, strong_head, tiny_drafter

from xpress_lab.benchmarks.costs import (
    HEAD_PARTS,
    Tally,
    budget,
    head_work,
    paper_sized,
)
from xpress_lab.errors import LabError
from xpress_lab.refiners.ablation import ALL_BUT_TOKENS, PARTS, without
from xpress_lab.refiners.influence import influence
from xpress_lab.refiners.markov import MarkovHead
from xpress_lab.refiners.xpress import XPressHead

B, RANK, ROWS = 6, 5, 7


@pytest.fixture(scope="module")
def head():
    return strong_head("xpress", B, rank=RANK)


@pytest.fixture(scope="module")
def block():
    """hidden ``[N, B, H]`` and previous ``[N, B]``."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(ROWS, B, HIDDEN, generator=generator, dtype=torch.float64)
    # Every row differs from its partner in every place, so all exchanges change.
    start = torch.randint(VOCAB, (B,), generator=generator)
    return hidden, (start + 3 * torch.arange(ROWS)[:, None]) % VOCAB


def other(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


# taking parts out ------------------------------------------------------------


def test_every_part_matters_and_is_taken_out_of_a_copy(head, block):
    before = {name: p.clone() for name, p in head.named_parameters()}
    whole = head(*block)
    for part, tensor in PARTS.items():
        lacking = without(head, part)
        assert (lacking(*block) - whole).abs().max() > 0.1, part
        changed = {
            name
            for name, p in lacking.named_parameters()
            if not torch.equal(p, before[name])
        }
        assert changed == {tensor}
    assert all(torch.equal(p, before[name]) for name, p in head.named_parameters())
    torch.testing.assert_close(without(head)(*block), whole, rtol=0, atol=0)


def test_without_an_input_the_head_is_deaf_to_it(head, block):
    hidden, previous = block
    no_token = without(head, "previous token")
    torch.testing.assert_close(no_token(hidden, other(previous)), no_token(*block))
    no_slot = without(head, "slot's hidden")  # only the mean is heard
    shuffled = hidden.flip(1)
    torch.testing.assert_close(no_slot(shuffled, previous), no_slot(*block))
    assert (head(shuffled, previous) - head(*block)).abs().max() > 0.1
    no_mean, last = without(head, "block mean"), hidden.clone()
    last[:, -1] += 1  # of the last slot alone: the others hear it in the mean only
    early = slice(0, B - 2)
    torch.testing.assert_close(
        no_mean(last, previous)[:, early], no_mean(*block)[:, early]
    )
    assert (head(last, previous) - head(*block))[:, early].abs().max() > 0.1
    no_mixer = without(head, "mixer")  # a slot hears its own inputs alone
    moved = influence(no_mixer, hidden, previous)
    assert (moved[1:].diagonal() > 0).all()
    assert torch.count_nonzero(moved) == B - 1
    no_mlp = without(head, "MLP")  # what is left is linear in w1
    doubled = without(no_mlp, "slot's hidden", "block mean")
    once = doubled(*block)
    with torch.no_grad():
        doubled.fuse.w1.weight *= 2
    torch.testing.assert_close(doubled(*block), 2 * once)


def test_tokens_alone_are_a_markov_head(head, block):
    """Methods 2.2: without hidden inputs, mixer and MLP, DSpark's head is left."""
    left = without(head, *ALL_BUT_TOKENS)
    markov = MarkovHead(VOCAB, RANK).double()
    of_token = head.fuse.in_proj.weight.chunk(3, dim=1)[2]
    with torch.no_grad():
        markov.markov_w1.weight.copy_(head.fuse.w1.weight @ of_token.T)
        markov.markov_w2.weight.copy_(head.read.w2.weight)
    torch.testing.assert_close(left(*block), markov(*block))
    assert (head(*block) - markov(*block)).abs().max() > 0.1
    assert set(ALL_BUT_TOKENS) == set(PARTS) - {"previous token"}


def test_unknown_parts_are_refused(head):
    with pytest.raises(LabError, match="no part 'nose': use slot's hidden, "):
        without(head, "mixer", "nose")


# who hears whom --------------------------------------------------------------


def test_influence_is_a_triangle_and_folding_keeps_it(head, block):
    moved = influence(head, *block)
    assert moved.shape == (B, B - 1)
    for j in range(B):
        for k in range(1, B):
            assert (moved[j, k - 1] > 0) == (j <= k), (j, k)
    torch.testing.assert_close(influence(head.fold(), *block), moved)


def test_influence_by_hand(head, block):
    hidden, previous = block
    moved = influence(head, hidden, previous)
    changed = previous.clone()
    changed[:, 2] = previous.roll(ROWS // 2, 0)[:, 2]
    step = (head(hidden, changed) - head(hidden, previous))[:, 3]  # slot 4
    assert moved[2, 3].item() == pytest.approx(step.square().mean().sqrt().item())


def test_influence_of_a_markov_head_is_its_neighbour(block):
    head = strong_head("markov", B)
    moved = influence(head, *block)
    assert (moved[1:].diagonal() > 0).all() and torch.count_nonzero(moved) == B - 1


def test_influence_sees_a_head_that_is_not_causal(head, block):
    class Leaky:
        prepare = staticmethod(head.prepare)

        @staticmethod
        def bias(prepared, previous):
            return head.bias(prepared, previous.flip(1))

    assert influence(Leaky, *block)[B - 1, 0] > 0


def test_one_block_has_nobody_to_exchange_with(head, block):
    with pytest.raises(LabError, match="two or more, not 1"):
        influence(head, block[0][:1], block[1][:1])


# the price -------------------------------------------------------------------


def test_work_is_counted_as_the_formulas_say(head, block):
    """The raw head also works on slot 0, which the folded one leaves out."""
    hidden, previous = block
    work = head_work(head, hidden, previous)["multiplications"]
    r, slots, width = RANK, B - 1, 2 * RANK
    raw = ROWS * (B * HIDDEN * r + HIDDEN * r + B * r * r + r * r)
    assert work["raw", "once a block"] == raw
    mlp = 3 * r * width + width  # three products, and gate times up
    every = B * r * r + B * B * r + B * mlp + slots * r * VOCAB
    assert work["raw", "every pass"] == ROWS * every
    once = ROWS * ((B + 1) * HIDDEN * r + slots * B * r)
    assert work["folded", "once a block"] == once
    every = slots * B * r + slots * mlp + slots * r * VOCAB
    assert work["folded", "every pass"] == ROWS * every


def test_folding_saves_operations(head, block):
    work = head_work(head, *block)["operations"]
    assert work["folded", "every pass"] < work["raw", "every pass"]


def test_views_are_no_work():
    x = torch.ones(4, 6)
    with Tally() as tally:
        x.view(2, 12).T[:1].unsqueeze(0)
    assert tally.operations == tally.multiplications == 0
    with Tally() as tally:
        x @ x.T + 1
    assert (tally.operations, tally.multiplications) == (2, 4 * 4 * 6)


def test_budget_holds_every_parameter_once(head, target):
    drafter = tiny_drafter(target, B)
    lines = budget(target.model, drafter, head)
    whole = lines.groupby("model")["parameters"].sum()
    for name, module in (("head", head), ("drafter", drafter)):
        assert whole[name] == sum(p.numel() for p in module.parameters())
    assert whole["target"] == target.model.num_parameters()  # a tied head once
    assert list(lines["part"][2:]) == list(HEAD_PARTS)
    of = lines.set_index("part")["parameters"]
    assert of["Mix"] == RANK * B * B and of["w2, read-out"] == VOCAB * RANK


def test_paper_sized_models_have_the_published_numbers_and_no_memory():
    """Methods 2.1: 80.5 M, of which 38.9 M each table, 7.7 % of the drafter."""
    target, drafter, head = paper_sized()
    modules = (target, drafter, head)
    assert all(p.is_meta for module in modules for p in module.parameters())
    lines = budget(*modules).set_index(["model", "part"])["parameters"]
    size = lines.groupby("model").sum() / 1e6
    assert size["head"] == pytest.approx(80.5, abs=0.1)
    assert size["drafter"] == pytest.approx(1050, rel=0.01)
    assert size["target"] == pytest.approx(8190, rel=0.01)
    assert lines["head", "w1, token table"] / 1e6 == pytest.approx(38.9, abs=0.05)
    assert lines["head", "Fuse"] / 1e6 == pytest.approx(2.10 + 0.20, abs=0.01)
    assert lines["head", "Trans"] / 1e6 == pytest.approx(0.39, abs=0.01)
    assert size["head"] / size["drafter"] == pytest.approx(0.077, abs=0.001)
    assert isinstance(head, XPressHead) and math.prod(head.mix.L.shape) == 256**2
