"""The loop emits the target's own greedy text, whatever is drafted.

In float64 on a random Qwen3 (nothing trained, nothing to be lucky with):

* every method and block size equals ``model.generate`` (pitfall 8);
* drafts scripted to force each accept count leave both caches as if they had been
  built in one go (pitfalls 10, 11), at the right positions (12), from prompts of
  one and two tokens (14);
* stop ids and the budget cut exactly (15); counts and sums agree (26);
* embedding and head are the target's own storage (19);
* bf16 differs only at near-ties, and huge activations stay finite (8, 9).
"""

import itertools

import pytest
import torch
import toys
from torch.testing import assert_close
from toys import PROMPT, Scripted, make_method
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    MistralConfig,
    Qwen3Config,
)

from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.methods import PlainDecoding
from xpress_lab.pocket.tokenizer import build_tokenizer
from xpress_lab.sampling import Sampling
from xpress_lab.target import FAMILIES, Target, refuse_unless_croppable

NAMES = ["dflash", "markov", "markov-gated", "markov-rnn", "xpress"]
BLOCKS = range(2, 18)
ROUNDING = {"rtol": 1e-4, "atol": 1e-4}  # transformers' norms are float32


def greedy(target, method, prompt=PROMPT, count=40, **how):
    return decode(target, method, prompt, max_new_tokens=count, **how)


# --- greedy identity ----------------------------------------------------------


def test_plain_loop_is_generate(target, untied_target):
    for each in (target, untied_target):
        out = greedy(each, PlainDecoding())
        assert out.tokens == toys.generate(each, PROMPT, 40)
        assert out.tau == 1 and len(out.rounds) == 39


@pytest.mark.parametrize("block_size", BLOCKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_and_block_size_is_generate(target, greedy_text, name, block_size):
    out = greedy(target, make_method(name, target, block_size), count=24)
    assert out.tokens == greedy_text[:24]
    assert all(1 <= r.emitted <= block_size for r in out.rounds)


@pytest.mark.parametrize("passes", [0, 1, 5, 6, 40, None])
@pytest.mark.parametrize("tap_norm", [False, True])
def test_every_number_of_passes_is_generate(untied_target, passes, tap_norm):
    method = make_method("xpress", untied_target, 7, passes, tap_norm=tap_norm)
    out = greedy(untied_target, method)
    assert out.tokens == toys.generate(untied_target, PROMPT, 40)
    assert all(r.passes <= min(6, 6 if passes is None else passes) for r in out.rounds)


@pytest.mark.parametrize("temperature", [0.0, 9e-6])
def test_temperatures_next_to_zero_are_greedy(target, greedy_text, temperature):
    method = make_method("xpress", target, 5)
    out = greedy(target, method, sampling=Sampling(temperature), seed=3)
    assert out.tokens == greedy_text[:40]


@pytest.mark.parametrize("prompt", [[5], [5, 17], [0, 0], [39]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_one_and_two_tokens(target, name, prompt):
    out = greedy(target, make_method(name, target, 6), prompt, 30)
    assert out.tokens == toys.generate(target, prompt, 30)


@pytest.mark.parametrize("prompt", [toys.PROMPT, toys.PROMPT[:1]], ids=len)
def test_a_request_carries_the_two_newest_tokens_and_the_anchor_s_place(target, prompt):
    """From the first round on, where the token before the anchor is the prompt's."""
    text, seen = prompt + toys.generate(target, prompt, 40), []
    method = Scripted(text, [0, 3, 1, 2], 4)
    propose = method.propose

    def spy(request, *rest):
        seen.append((request.start, int(request.before_anchor), int(request.anchor)))
        return propose(request, *rest)

    method.propose = spy
    greedy(target, method, prompt, 30)
    assert seen[0][0] == len(prompt) and len(seen) > 8
    assert seen == [(start, text[start - 1], text[start]) for start, *_ in seen]


# --- caches after every accept count ------------------------------------------


def counts_to_force(block_size: int) -> list[int]:
    """Each accept count, the large and small ones taking turns."""
    counts = list(range(block_size))
    return [counts.pop(0 if i % 2 else -1) for i in range(block_size)]


class Watch:
    """Looks at the target's cache before and after each call of ``forward``."""

    def __init__(self, target, monkeypatch):
        self.calls, self.target, forward = [], target, target.forward

        def spy(tokens, cache, *args, **kwargs):
            before = cache.length
            out = forward(tokens, cache, *args, **kwargs)
            self.calls.append((before, tokens[0].tolist(), out.logits[0]))
            return out

        monkeypatch.setattr(target, "forward", spy)


@pytest.mark.parametrize("block_size", BLOCKS)
def test_forced_accept_counts_leave_the_target_s_cache_right(
    target, greedy_text, block_size, monkeypatch
):
    """Cache length = committed length, and logits = those of a fresh prefill."""
    text = PROMPT + greedy_text
    schedule = counts_to_force(block_size)
    new = sum(a + 1 for a in schedule) + 1
    watch = Watch(target, monkeypatch)
    out = greedy(target, Scripted(text, schedule, block_size), count=new)
    assert out.tokens == greedy_text[:new]
    assert [r.accepted for r in out.rounds] == schedule
    assert [r.emitted for r in out.rounds] == [a + 1 for a in schedule]

    committed = len(PROMPT)
    for round_, (before, block, logits) in zip(
        out.rounds, watch.calls[1:], strict=True
    ):
        assert before == committed
        assert block == round_.block and block[0] == text[committed]
        fresh = toys.full_logits(target, text[:committed] + block)
        assert_close(logits, fresh[committed:], **ROUNDING)
        committed += round_.accepted + 1


@pytest.mark.parametrize("block_size", BLOCKS)
def test_forced_accept_counts_leave_the_drafter_s_cache_right(
    target, greedy_text, block_size
):
    """Its keys equal those of one call on all committed taps; no block key is left.

    The hidden states equal that call's too; with the block one position late they
    do not, so that the comparison would see a shift.
    """
    text = PROMPT + greedy_text
    taps = all_taps(target, text, (0, 2))
    inner = make_method("dflash", target, block_size)
    drafter = inner.drafter
    schedule = counts_to_force(block_size)
    method = Scripted(text, schedule, block_size, inner)
    rounds = []

    def compare(request, drafting, hidden):
        start, cache = request.start, drafting.cache
        rounds.append(start)
        assert cache.length == start
        assert_close(request.taps, taps[:, start - request.taps.shape[1] : start])
        ids = torch.tensor([[text[start]] + [toys.MASK_ID] * (block_size - 1)])
        fresh = drafter.new_cache(1, start + block_size)
        positions = torch.arange(start + block_size)[None]
        case = target.embed(ids), drafter.project(taps[:, :start])
        expected = drafter(*case, positions, cache=fresh)
        for ours, theirs in zip(
            cache.keys + cache.values, fresh.keys + fresh.values, strict=True
        ):
            assert_close(ours[:, :, :start], theirs[:, :, :start], **ROUNDING)
        assert_close(hidden, expected, **ROUNDING)
        late = positions + (positions >= start)
        assert (drafter(*case, late) - expected).abs().max() > 100 * ROUNDING["atol"]

    method.after_draft = compare
    new = sum(a + 1 for a in schedule) + 1
    out = greedy(target, method, count=new)
    assert out.tokens == greedy_text[:new] and len(rounds) == block_size


def all_taps(target, text, tap_ids) -> torch.Tensor:
    """transformers' own hidden states after layers ``tap_ids``, side by side."""
    with torch.no_grad():
        out = target.model(
            input_ids=torch.tensor([text]), use_cache=False, output_hidden_states=True
        )
    return torch.cat([out.hidden_states[i + 1] for i in tap_ids], dim=-1)


def test_tap_is_the_output_of_its_layer(target):
    cache = target.new_cache(1, 8)
    ids = torch.tensor([PROMPT])
    out = target.forward(ids, cache, (0, 1, 2))
    assert_close(out.taps, all_taps(target, PROMPT, (0, 1, 2)), **ROUNDING)


@pytest.mark.parametrize("block_size", [2, 5, 16])
def test_random_accept_counts(target, greedy_text, block_size):
    generator = torch.Generator().manual_seed(block_size)
    counts = torch.randint(block_size, (40,), generator=generator).tolist()
    method = Scripted(PROMPT + greedy_text, counts, block_size)
    assert greedy(target, method, count=120).tokens == greedy_text[:120]


# --- stopping -----------------------------------------------------------------


def until(tokens: list[int], stops) -> list[int]:
    end = next((i for i, t in enumerate(tokens) if t in stops), len(tokens) - 1)
    return tokens[: end + 1]


def place_of_stop(out) -> str:
    last = out.rounds[-1] if out.rounds else None
    if last is None:
        return "prefill"
    if last.emitted <= last.accepted:
        return f"draft {last.emitted}"
    return "bonus" if last.accepted == len(last.block) - 1 else "correction"


def test_stop_ids_at_every_place_of_a_block(target, greedy_text):
    """As draft at each offset, correction or bonus; the text equals plain decoding's.

    Drafts that will be rejected are stop ids too: they must stop nothing.
    """
    block_size, seen = 5, set()
    firsts = [t for i, t in enumerate(greedy_text[:30]) if t not in greedy_text[:i]]
    for accept, stop in itertools.product(range(block_size), firsts):
        method = Scripted(PROMPT + greedy_text, [accept], block_size, wrong=stop)
        out = greedy(target, method, stop_ids=[stop])
        assert out.tokens == until(greedy_text[:40], {stop})
        assert sum(r.emitted for r in out.rounds) + 1 == len(out.tokens)
        seen.add(place_of_stop(out))
    drafts = {f"draft {offset}" for offset in range(1, block_size)}
    assert seen == {"prefill", "correction", "bonus"} | drafts


@pytest.mark.parametrize("stops", [(), (19,), (12, 30), (38, 4, 1)], ids=str)
@pytest.mark.parametrize("name", ["ar", *NAMES])
def test_no_one_or_several_stop_ids(target, greedy_text, name, stops):
    method = PlainDecoding() if name == "ar" else make_method(name, target, 6)
    out = greedy(target, method, count=60, stop_ids=stops)
    assert out.tokens == until(greedy_text[:60], stops)


@pytest.mark.parametrize("eos", [None, 13, [29, 13]], ids=str)
def test_stop_ids_come_from_the_generation_config(
    target, greedy_text, eos, monkeypatch
):
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", eos)
    stops = () if eos is None else (eos,) if isinstance(eos, int) else tuple(eos)
    assert target.stop_ids == stops
    out = greedy(target, make_method("xpress", target, 6))
    assert out.tokens == until(greedy_text[:40], stops)


@pytest.mark.parametrize("new", range(1, 41))
def test_budget_is_exact(target, greedy_text, new):
    method = Scripted(PROMPT + greedy_text, [3, 0, 6, 1], 7)
    out = greedy(target, method, count=new)
    assert out.tokens == greedy_text[:new]
    assert sum(r.emitted for r in out.rounds) + 1 == new
    assert not out.rounds or 1 <= out.tau <= 7


def test_a_text_fills_the_target_s_positions(target, greedy_text):
    """The last block is written up to the cache's end, and not beyond."""
    longest, block_size = target.config.max_position_embeddings, 16
    new = longest - len(PROMPT) - block_size
    out = greedy(target, make_method("dflash", target, block_size), count=new)
    assert len(out.tokens) == new and out.tokens[:170] == greedy_text


# --- counts, sums, streaming --------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["ar", *NAMES])
def test_counts_and_sums_agree(target, name, temperature, monkeypatch):
    """One target call a round plus the prefill: nothing falls back silently."""
    method = PlainDecoding() if name == "ar" else make_method(name, target, 6)
    watch, drafted, streamed = Watch(target, monkeypatch), [], []
    if name != "ar":
        method.drafter.register_forward_hook(lambda *_: drafted.append(1))
    out = greedy(
        target,
        method,
        sampling=Sampling(temperature),
        on_tokens=streamed.append,
        keep_trace=True,
    )
    assert len(watch.calls) == len(out.rounds) + 1
    assert len(drafted) == (0 if name == "ar" else len(out.rounds))
    assert sum(streamed, []) == out.tokens and len(streamed) == len(out.rounds) + 1
    assert sum(r.emitted for r in out.rounds) + 1 == len(out.tokens) == 40
    assert out.tau == pytest.approx(39 / len(out.rounds))
    assert 1 <= out.tau <= method.block_size == out.block_size
    width = {"dflash": 1, "xpress": 4}.get(name, 0)
    for r in out.rounds:
        assert len(r.block) == method.block_size
        assert 0 <= r.accepted < method.block_size
        assert len(r.trace) <= width  # the seed and at most three passes
        if r.trace:
            assert r.trace[-1] == r.block[1:]


def test_tau_of_a_text_without_rounds_is_nan(target):
    out = greedy(target, PlainDecoding(), count=1)
    assert len(out.tokens) == 1 and not out.rounds
    assert out.tau != out.tau


def test_perfect_drafts_reach_tau_b(target, greedy_text):
    out = greedy(target, Scripted(PROMPT + greedy_text, [7], 8), count=8 * 6 + 1)
    assert out.tau == 8 and len(out.rounds) == 6


# --- wiring -------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_are_the_target_s_own(tied, target, untied_target):
    each = target if tied else untied_target
    inputs = each.model.get_input_embeddings().weight
    outputs = each.model.get_output_embeddings().weight
    assert (inputs.data_ptr() == outputs.data_ptr()) == tied
    method = make_method("xpress", each, 4)
    pointers = {p.data_ptr() for p in method.drafter.parameters()}
    assert not pointers & {inputs.data_ptr(), outputs.data_ptr()}
    with torch.no_grad():
        row = inputs[5].clone()
        inputs[5] += 1
        assert torch.equal(each.embed(torch.tensor([5]))[0], inputs[5])
        inputs[5] = row
        hidden = torch.ones(1, toys.HIDDEN, dtype=torch.float64)
        assert_close(each.head(hidden)[0], outputs.sum(1))


def test_mask_rows_are_the_embedding_of_the_mask_token(target):
    method = make_method("dflash", target, 4)
    row = target.model.get_input_embeddings().weight[toys.MASK_ID]
    assert torch.equal(method.mask_embeddings, row.expand(3, -1))


# --- refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 8, "prompt is empty"),
        ([3, toys.VOCAB], 8, "must lie in 0..39"),
        ([-1], 8, "must lie in 0..39"),
        ([3], 0, "max_new_tokens must be 1 or more"),
        ([3] * 240, 16, "do not fit the target's 256 positions"),
    ],
)
def test_impossible_requests_are_refused_before_any_model_runs(
    target, prompt, new, message, monkeypatch
):
    watch = Watch(target, monkeypatch)
    with pytest.raises(LabError, match=message):
        greedy(target, PlainDecoding(), prompt, new)
    assert not watch.calls


def test_targets_whose_cache_cannot_roll_back_are_refused():
    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "intermediate_size": 16,
    }
    kinds = ["sliding_attention", "full_attention"]
    config = Qwen3Config(**sizes, layer_types=kinds, sliding_window=8)
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(LabError, match="'qwen3'.*sliding_attention"):
        Target(model)
    linear = Qwen3Config(**sizes)
    linear.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(LabError, match="linear_attention"):
        refuse_unless_croppable(linear)


SMALL = {
    "vocab_size": toys.VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def small_model(family: str, seed: int = 1, **more):
    config = AutoConfig.for_model(family, **SMALL, **more)
    model = AutoModelForCausalLM.from_config(config)
    toys.fill(model, seed, gain=2.0)
    return model.float() if "moe" in family else model.double()  # as experts allow


def varied_target(family: str, **more) -> tuple[Target, list[int]]:
    """The first random model that does not repeat itself, and its greedy text."""
    for seed in range(40):
        target = Target(small_model(family, seed, **more))
        text = toys.generate(target, toys.PROMPT, 24)
        if len(set(text)) > 5:
            return target, text
    raise AssertionError(f"every random {family} repeats itself")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_its_greedy_text(family):
    window = {"sliding_window": None} if family == "mistral" else {}
    experts = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
    target, text = varied_target(
        family, **window, **(experts if "moe" in family else {})
    )
    method = toys.make_method("xpress", target, 4)
    out = decode(target, method, toys.PROMPT, max_new_tokens=24)
    assert out.tokens == text


def test_a_target_in_shards_is_read_whole(tmp_path):
    target, text = varied_target("llama")
    target.model.save_pretrained(tmp_path, max_shard_size="20KB")
    build_tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2
    read = Target.load(tmp_path, dtype=torch.float64)
    assert decode(read, PlainDecoding(), toys.PROMPT, max_new_tokens=24).tokens == text


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "opt", "cohere", "gemma"])
def test_other_families_are_refused_by_name(family):
    """Some have other parts; Cohere's logits are scaled after the head, unseen here."""
    with pytest.raises(LabError, match=f"'{family}' is not of the Llama and Qwen"):
        Target(small_model(family))


def test_sliding_windows_without_layer_types_are_refused_too():
    """Mistral's config names a window, and no kinds of layers."""
    with pytest.raises(LabError, match="'mistral'"):
        refuse_unless_croppable(MistralConfig(sliding_window=8))
    refuse_unless_croppable(MistralConfig(sliding_window=None))


# --- rounding and range -------------------------------------------------------

ULPS = 4


def assert_same_but_for_near_ties(target, prompt, texts):
    """At the first difference the two best logits lie a few roundings apart."""
    split = next(
        (i for i, ids in enumerate(zip(*texts, strict=True)) if len(set(ids)) > 1), None
    )
    if split is None:
        return
    logits = toys.full_logits(target, prompt + texts[0][:split])[-1].float()
    best = logits.topk(2)
    exponent = best.values[0].abs().log2().floor().item()
    ulp = 2.0**exponent * torch.finfo(target.dtype).eps
    assert (best.values[0] - best.values[1]).item() <= ULPS * ulp
    assert {text[split] for text in texts} == set(best.indices.tolist())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_differs_from_plain_decoding_only_at_a_near_tie(name, dtype):
    """Also from plain decoding through forwards of as many rows as a block has.

    A product of B rows rounds unlike one of 1 row: that is all a difference may be.
    """
    target = toys.tiny_target(dtype=dtype)
    method = make_method(name, target, 8)
    for first in range(4):
        prompt = [first, 14, 15]
        ours = greedy(target, method, prompt).tokens
        plain = greedy(target, PlainDecoding(), prompt).tokens
        plain_in_blocks = greedy(target, Scripted([], [0], 8), prompt).tokens
        assert_same_but_for_near_ties(target, prompt, (plain, ours))
        assert_same_but_for_near_ties(target, prompt, (plain_in_blocks, ours))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("name", NAMES)
def test_huge_activations_at_the_first_token_stay_finite(name, dtype, monkeypatch):
    """Small Llama-like models reach 2.5e4 there (untied: else logits would, too)."""
    target = toys.tiny_target(tied=False, dtype=dtype)
    with torch.no_grad():
        target.model.get_input_embeddings().weight[PROMPT[0], 4] = 2.5e4
    method = make_method(name, target, 6)
    hiddens = []
    method.drafter.register_forward_hook(lambda _m, _i, out: hiddens.append(out))
    watch = Watch(target, monkeypatch)
    for temperature in (0.0, 1.0):
        out = greedy(target, method, sampling=Sampling(temperature), count=20)
        assert len(out.tokens) == 20
    assert all_taps(target, PROMPT, (0,)).abs().max() > 2e4
    for tensor in hiddens + [logits for *_, logits in watch.calls]:
        assert tensor.isfinite().all()
