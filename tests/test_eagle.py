"""EAGLE-3: a serial drafter behind the same loop.

* Training unrolls what drafting does: states agree column by column.
* A column sees nothing to its right; keys from own states never outlive a round.
* Greedy texts and laws at T > 0 are the target's (pitfalls 1, 3, 8, 11).
* DeepSpec's folders are read as they are, and what does not fit is refused.
"""

import re

import foreign
import pytest
import torch
import toys
from torch.testing import assert_close

from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm, export_arm, load_arm, save_arm
from xpress_lab.decoding import decode
from xpress_lab.drafters.eagle import EagleConfig, EagleDrafter
from xpress_lab.eagle_method import EagleDrafting, EagleMethod
from xpress_lab.errors import LabError
from xpress_lab.sampling import Sampling
from xpress_lab.training.eagle_loss import eagle_loss, unrolled
from xpress_lab.training.states import target_states
from xpress_lab.training.texts import TextSet

TAPS = (0, 2)
FEW = torch.arange(0, toys.VOCAB, 2)  # a draft vocabulary


def tiny_eagle(target, chain=4, hidden=toys.HIDDEN, vocab=toys.VOCAB, taps=TAPS):
    drafter = EagleDrafter(
        EagleConfig(
            hidden_size=hidden,
            intermediate_size=24,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            vocab_size=vocab,
            num_target_layers=toys.LAYERS,
            target_layer_ids=taps,
            chain=chain,
        )
    ).to(target.dtype)
    toys.fill(drafter, seed=7)
    return drafter.eval()


@pytest.fixture
def one(greedy_text) -> TextSet:
    return TextSet.of([(toys.PROMPT, greedy_text[:20])], pad_id=0)


def test_unrolled_training_states_are_those_of_drafting(target, one):
    """Column i of step s: the chain that drafting grows from column i, given the
    true tokens."""
    drafter, borrowed = tiny_eagle(target), Borrowed(target)
    states = target_states(target, one, TAPS)
    tokens, width = one.tokens, one.tokens.shape[1]
    hidden, past, trained = drafter.project(states.taps), [], []
    for step in range(4):
        count = width - 2 - step
        embedded = borrowed.embed(tokens[:, 1 + step : 1 + step + count])
        hidden = unrolled(drafter, embedded, hidden[:, :count], step, past)
        trained.append(hidden)
    for column in (0, 6, 15):
        cache = drafter.new_cache(1, width)
        places = torch.arange(column + 1)
        out = drafter(
            borrowed.embed(tokens[:, 1 : column + 2]),
            drafter.project(states.taps[:, : column + 1]),
            places[None],
            cache,
            (places <= places[:, None])[None, None],
        )
        cache.advance(column + 1)
        assert_close(out, trained[0][:, : column + 1])
        state = out[:, -1:]
        for step in range(1, 4):
            place = torch.tensor([[column + step]])
            token = tokens[:, column + 1 + step, None]
            state = drafter(borrowed.embed(token), state, place, cache)
            cache.advance(1)
            assert_close(state[:, 0], trained[step][:, column])


def test_unrolled_steps_lie_where_the_drafter_does():
    """The meta device stands in for a GPU: it refuses numbers from elsewhere."""
    drafter, past = tiny_eagle(toys.tiny_target()).to("meta"), []
    states = torch.zeros(2, 6, toys.HIDDEN, dtype=torch.float64, device="meta")
    for step in range(3):
        found = unrolled(
            drafter, states[:, : 6 - step], states[:, : 6 - step], step, past
        )
        assert found.device.type == "meta"


def test_no_column_sees_the_future(target, one):
    drafter, borrowed = tiny_eagle(target), Borrowed(target)
    states = target_states(target, one, TAPS)
    embedded = borrowed.embed(one.tokens[:, 1:])
    count = embedded.shape[1]

    def first(taps):
        return unrolled(drafter, embedded, drafter.project(taps)[:, :count], 0, [])

    before = first(states.taps)
    changed = states.taps.clone()
    changed[:, 9] += 1
    moved = (first(changed) != before).any(-1)[0]
    assert not moved[:9].any() and moved[9:].all()


def test_the_loss_reaches_every_parameter_and_can_be_learnt(target, one):
    drafter, borrowed = tiny_eagle(target), Borrowed(target)
    states = target_states(target, one, TAPS)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss, parts = eagle_loss(drafter, borrowed, one, states, steps=3)
        assert set(parts) == {"step 0", "step 1", "step 2"}
        assert loss.item() == pytest.approx(
            sum(0.8**s * v for s, v in enumerate(parts.values()))
        )
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad.abs().max() > 0 for p in drafter.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("chain", [1, 2, 4, 7])
def test_greedy_text_is_the_target_s(target, greedy_text, chain):
    method = EagleMethod(target, tiny_eagle(target, chain))
    out = decode(target, method, toys.PROMPT, max_new_tokens=50)
    assert out.tokens == greedy_text[:50]
    assert out.block_size == chain + 1


def test_a_draft_vocabulary_limits_the_drafts_alone(target, greedy_text):
    """Whatever it leaves out, the text stays; and all of it is no limit."""
    drafter = tiny_eagle(target)
    out = decode(
        target, EagleMethod(target, drafter, FEW), toys.PROMPT, max_new_tokens=50
    )
    assert out.tokens == greedy_text[:50]
    drafted = {token for r in out.rounds for token in r.block[1:]}
    assert drafted <= set(FEW.tolist())
    whole = EagleMethod(target, drafter, torch.arange(toys.VOCAB))
    free = EagleMethod(target, drafter)
    texts = [decode(target, m, toys.PROMPT, max_new_tokens=50) for m in (whole, free)]
    assert [r.block for r in texts[0].rounds] == [r.block for r in texts[1].rounds]


def test_the_loss_over_all_tokens_is_the_loss(target, one):
    drafter, states = tiny_eagle(target), target_states(target, one, TAPS)
    whole = torch.arange(toys.VOCAB)
    free, _ = eagle_loss(drafter, Borrowed(target), one, states, steps=2)
    same, _ = eagle_loss(drafter, Borrowed(target, whole), one, states, steps=2)
    few, _ = eagle_loss(drafter, Borrowed(target, FEW), one, states, steps=2)
    assert_close(free, same)
    assert few < free  # a part of the probabilities, and fewer tokens to share q


@pytest.mark.parametrize("prompt", [[3], [3, 14]])
def test_short_prompts(target, prompt):
    method = EagleMethod(target, tiny_eagle(target))
    out = decode(target, method, prompt, max_new_tokens=20)
    assert out.tokens == toys.generate(target, prompt, 20)


@pytest.mark.parametrize("accepted", range(5))
def test_the_cache_after_a_round_is_built_from_the_target_s_taps(
    target, greedy_text, accepted
):
    """As if all verified tokens had been read in one go (pitfall 11)."""
    text, kept = toys.PROMPT + greedy_text, {}

    class Forced(EagleDrafting):
        """Drafts its chain, then proposes what the script says."""

        script = toys.Scripted(text, [accepted], 5).begin(0)

        def propose(self, *arguments):
            super().propose(*arguments)
            length = self.cache.length
            kept[length] = self.cache.keys[0][:, :, :length].clone()
            return self.script.propose(*arguments)

    method = EagleMethod(target, tiny_eagle(target))
    method.begin = lambda capacity: Forced(method, capacity)
    decode(target, method, toys.PROMPT, max_new_tokens=12)
    assert len(kept) == -(-11 // (accepted + 1))
    drafter, borrowed = method.drafter, method.borrowed
    for length, keys in kept.items():
        ids = torch.tensor([text[: length + 1]])
        cache = target.new_cache(1, length)
        taps = target.forward(ids[:, :length], cache, TAPS).taps
        fresh = drafter.new_cache(1, length)
        places = torch.arange(length)
        causal = (places <= places[:, None])[None, None]
        drafter(
            borrowed.embed(ids[:, 1:]),
            drafter.project(taps),
            places[None],
            fresh,
            causal,
        )
        assert_close(keys, fresh.keys[0][:, :, :length])


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_p=0.9)])
def test_sampled_texts_keep_the_law(sampling, few):
    toy = toys.EnumerableTarget()
    drafter = tiny_eagle(toy, 3, toy.hidden, toy.vocab_size, (0,))
    ids = torch.arange(0, toy.vocab_size, 2) if few else None
    method = EagleMethod(toy, drafter, ids)
    texts = [text.tokens for text in toys.sampled(toy, method, sampling, 2_000, 3)]
    law = toys.exact_law(sampling.probabilities(toy.logits), 1, 2, 3)
    assert toys.chi_square(torch.tensor(texts), law, 3) > 1e-4


# --- on disk -------------------------------------------------------------------


def same_weights(one, other) -> bool:
    expected, found = one.state_dict(), other.state_dict()
    assert expected.keys() == found.keys()
    return all(torch.equal(expected[key], found[key]) for key in expected)


@pytest.mark.parametrize("copies", [True, False])
def test_a_folder_of_deepspec_is_read_exactly(target, greedy_text, tmp_path, copies):
    drafter = tiny_eagle(target)
    foreign.deepspec_eagle(tmp_path, drafter, target, copies=copies)
    back = load_arm(tmp_path, target)
    assert back.kind == "eagle" and back.drafter.config == drafter.config
    assert same_weights(drafter, back.drafter) and back.draft_ids is None
    method = EagleMethod(target, back.drafter)
    out = decode(target, method, toys.PROMPT, max_new_tokens=30)
    assert out.tokens == greedy_text[:30]


def test_ours_is_read_back_exactly_in_both_ways(target, tmp_path):
    arm = Arm("eagle", tiny_eagle(target, chain=5), draft_ids=FEW)
    save_arm(arm, tmp_path / "ours")
    back = load_arm(tmp_path / "ours", target)
    assert back.drafter.config == arm.drafter.config
    assert same_weights(arm.drafter, back.drafter)
    assert torch.equal(back.draft_ids, FEW)
    arm.drafter.save_pretrained(tmp_path / "bare")
    for bare in (
        EagleDrafter.from_pretrained(tmp_path / "bare"),
        load_arm(tmp_path / "bare", target).drafter,
    ):
        assert bare.config == arm.drafter.config and same_weights(arm.drafter, bare)


@pytest.mark.parametrize("to", ["vllm", "speculators"])
def test_engines_that_do_not_read_it_get_none(target, tmp_path, to):
    with pytest.raises(LabError, match="DeepSpec's layout, .* export to folder"):
        export_arm(Arm("eagle", tiny_eagle(target)), tmp_path, to, target, "tiny")
    arm, folder = Arm("eagle", tiny_eagle(target)), tmp_path / "out"
    assert "load_arm" in export_arm(arm, folder, "folder", target, "tiny")
    assert same_weights(arm.drafter, load_arm(folder, target).drafter)


REFUSALS = {
    "another architecture": (
        {"architectures": ["Gemma4Eagle3Model"]},
        None,
        "unknown architecture 'Gemma4Eagle3Model'",
    ),
    "two layers": ({"num_hidden_layers": 2}, None, "num_hidden_layers is 2: .* 1"),
    "hidden size": ({"hidden_size": 16}, None, "hidden_size is 16, the target's is 32"),
    "vocabulary": ({"vocab_size": 9}, None, "vocab_size is 9, the target's is"),
    "depth of the target": ({"num_target_layers": 9}, None, "is 9, the target's is"),
    "taps unsorted": ({"target_layer_ids": [2, 0]}, None, r"\[2, 0\]"),
    "a tap too many": ({"target_layer_ids": [0, 1, 2]}, None, "fc.weight .* not"),
    "no taps": ({"target_layer_ids": None}, None, "does not say 'target_layer_ids'"),
    "no chain": ({"ttt_length": None}, None, "does not say 'ttt_length'"),
    "a chain of none": ({"ttt_length": 0}, None, "ttt_length is 0, but must be 1"),
    "EAGLE-3.1's norm": ({"fc_norm": True}, None, "fc_norm True is not supported"),
    "stretched positions": (
        {"rope_scaling": {"rope_type": "yarn"}},
        None,
        "rope_scaling .* is not supported",
    ),
    "a missing tensor": ({}, lambda t: t.pop("norm.weight"), "missing: norm.weight"),
    "an extra tensor": (
        {},
        lambda t: t.update(bias=torch.ones(2)),
        "unexpected: bias",
    ),
    "another target's head": (
        {},
        lambda t: t["lm_head.weight"].add_(1),
        "lm_head.weight differs from the target's own .* another target",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_refused_in_one_sentence(target, tmp_path, case):
    changes, edit, message = REFUSALS[case]
    foreign.deepspec_eagle(tmp_path, tiny_eagle(target), target, changes)
    if edit is not None:
        foreign.edit_tensors(tmp_path, edit)
    with pytest.raises(LabError) as caught:
        load_arm(tmp_path, target)
    said = str(caught.value)
    assert re.search(message, said), said
    assert "\n" not in said
