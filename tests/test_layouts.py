"""The two block layouts both decode losslessly, and are not interchangeable.

Fill-in: slot j predicts anchor + j, B - 1 drafts. Anchor-first: slot j predicts
anchor + j + 1, B drafts (methods 1.2, pitfall 16).
"""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import toys
from torch.testing import assert_close

from xpress_lab.block_method import BlockMethod
from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import MARKOV_TYPES, Arm, load_arm, save_arm
from xpress_lab.decoding import decode
from xpress_lab.drafters.dflash import DFlashDrafter
from xpress_lab.methods import Request
from xpress_lab.sampling import Sampling, Streams
from xpress_lab.training.blocks import make_blocks
from xpress_lab.training.states import target_states
from xpress_lab.training.texts import TextSet

KINDS = ["dflash", *MARKOV_TYPES]  # xPress refines the fill-in layout alone


@pytest.mark.parametrize("block_size", [2, 3, 5, 7, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_anchor_first_blocks_are_lossless(target, greedy_text, kind, block_size):
    method = toys.make_method(kind, target, block_size, anchor_first=True)
    out = decode(target, method, toys.PROMPT, max_new_tokens=40)
    assert out.tokens == greedy_text[:40]
    assert {len(r.block) for r in out.rounds} == {block_size + 1}
    assert out.block_size == method.block_size == block_size + 1
    assert "anchor-first" in method.describe()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("kind", ["dflash", "markov", "markov-rnn"])
def test_anchor_first_blocks_keep_the_law(kind, temperature):
    toy, sampling = toys.EnumerableTarget(vocab=3), Sampling(temperature)
    method = toy.method(kind, 3, 0, anchor_first=True)
    texts = [text.tokens for text in toys.sampled(toy, method, sampling, 2_000, 3)]
    law = toys.exact_law(sampling.probabilities(toy.logits), 1, 2, 3)
    assert toys.chi_square(torch.tensor(texts), law, 3) > 1e-4


@pytest.mark.parametrize("anchor_first", [False, True])
def test_which_slots_are_read(target, anchor_first):
    """Draft j comes from slot j in one layout and from slot j + 1 in the other."""
    method = toys.make_method("markov-gated", target, 5, anchor_first=anchor_first)
    generator = torch.Generator().manual_seed(9)
    taps = torch.randn(1, 6, 64, generator=generator, dtype=torch.float64)
    one, before = torch.tensor([7]), torch.tensor([4])
    request = Request(one, before, taps, 6, one[None])
    hidden = method.begin(32).hidden_states(request)
    first = 0 if anchor_first else 1
    stream = Streams(0).draft
    found = method.begin(32).propose(request, Sampling(1.0), stream, Silent(), False)
    assert found.tokens.shape == (1, 5 - first)
    previous = torch.tensor([7])
    for draft, slot in enumerate(range(first, 5)):
        u = method.head.markov_w1.weight[previous]
        features = torch.cat([hidden[:, slot], u], dim=-1)
        u = torch.sigmoid(method.head.gate_proj(features)) * u
        logits = target.head(hidden[:, slot]) + method.head.markov_w2(u)
        assert_close(found.q.table[:, draft], logits.softmax(-1))
        previous = found.tokens[:, draft]


class Silent:
    def lap(self, _stage):
        pass


# --- one loaded as the other --------------------------------------------------

BLOCK = 4


def by_heart(target, text: list[int], anchor_first: bool) -> DFlashDrafter:
    """A drafter trained until it knows one text, in either layout.

    The labels are taken from the text itself, not from the package's training.
    """
    drafter = toys.tiny_drafter(target, BLOCK, anchor_first=anchor_first).float()
    drafter.train().requires_grad_(True)
    texts = TextSet.of([(text[:5], text[5:])], pad_id=0)
    anchors = torch.arange(5, len(text) - BLOCK - 1)[None]
    states = target_states(target, texts, (0, 2))
    kept = torch.ones_like(anchors, dtype=torch.bool)
    batch = make_blocks(
        Borrowed(target), texts, states, anchors, kept, BLOCK, toys.MASK_ID
    )
    first = 0 if anchor_first else 1
    places = anchors[0][:, None] + torch.arange(1, BLOCK + 1 - first)
    labels = torch.tensor(text)[places]
    optimizer = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    block = target.embed(batch.block_ids).float()
    for _ in range(250):
        context = drafter.project(batch.taps.float())
        hidden = drafter(block, context, batch.positions, batch.mask)
        hidden = hidden.view(len(labels), BLOCK, -1)[:, first:]
        logits = F.linear(hidden, target.head_rows(torch.arange(toys.VOCAB))[0].float())
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    return drafter.to(target.dtype).eval().requires_grad_(False)


@pytest.mark.parametrize("anchor_first", [False, True])
def test_the_wrong_layout_gives_tau_near_one(
    target, greedy_text, tmp_path, anchor_first
):
    """Same weights, same speed, same text; only tau tells. The config decides."""
    text = toys.PROMPT + greedy_text[:60]
    drafter = by_heart(target, text, anchor_first)
    save_arm(Arm("dflash", drafter), tmp_path)
    path, taus = tmp_path / "config.json", {}
    for declared in (False, True):
        config = json.loads(path.read_text("utf-8")) | {"sample_from_anchor": declared}
        path.write_text(json.dumps(config), encoding="utf-8")
        arm = load_arm(tmp_path, target)
        assert arm.drafter.config == replace(
            drafter.config, sample_from_anchor=declared
        )
        method = BlockMethod("dflash", target, arm.drafter)
        out = decode(target, method, toys.PROMPT, max_new_tokens=49)
        assert out.tokens == greedy_text[:49]
        taus[declared] = out.tau
    assert taus[anchor_first] > 0.9 * (BLOCK + anchor_first)
    assert taus[not anchor_first] < 1.3


def test_the_network_is_the_same_in_both_layouts(target):
    """Only what is read differs, so that weights alone cannot tell."""
    one = toys.tiny_drafter(target, BLOCK)
    other = toys.tiny_drafter(target, BLOCK, anchor_first=True)
    assert one.state_dict().keys() == other.state_dict().keys()
    block = torch.ones(1, BLOCK, toys.HIDDEN, dtype=torch.float64)
    case = block, block[:, :2], torch.arange(BLOCK + 2)[None]
    assert_close(one(*case), other(*case))
    assert (one.config.drafts, other.config.drafts) == (BLOCK - 1, BLOCK)
