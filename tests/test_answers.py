"""Answers in batches: every row is what it would be alone, and brings its states.

* A greedy answer is plain decoding's, whatever its neighbours do and wherever they
  end; the cache keeps only rows that go on.
* Saved states are those of a fresh run over the finished text.
* A sampled answer follows the target's law.
* Shards survive an interruption and are not made twice.
"""

import pytest
import torch
import toys
from torch.testing import assert_close

from xpress_lab.decoding import decode
from xpress_lab.methods import PlainDecoding
from xpress_lab.presets import ResponseRecipe
from xpress_lab.sampling import Sampling
from xpress_lab.training import responses as responses_module
from xpress_lab.training.answers import answer
from xpress_lab.training.responses import write_responses
from xpress_lab.training.states import StateFolder, StateStore, target_states
from xpress_lab.training.texts import TextSet

TAPS, GREEDY = (0, 2), Sampling(0.0)


@pytest.fixture
def wide_talker(talker):
    """In float64, so that batching cannot move an argmax."""
    talker.model.double()
    return talker


@pytest.fixture
def prompts(wide_talker):
    vocab = wide_talker.vocab_size
    return [[(7 * i + 3 * j) % vocab for j in range(2 + 5 * i % 7)] for i in range(12)]


def test_greedy_answers_are_plain_decoding_s(wide_talker, prompts):
    done = answer(wide_talker, prompts, TAPS, GREEDY, 24, seed=0)
    lengths = set()
    for prompt, (same, response) in zip(prompts, done.pairs, strict=True):
        alone = decode(wide_talker, PlainDecoding(), prompt, max_new_tokens=24)
        assert same == prompt
        assert response == alone.tokens
        lengths.add(len(response))
    assert len(lengths) > 3  # rows leave at several moments
    assert max(lengths) == 24


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_states_are_those_of_a_fresh_run(wide_talker, prompts, temperature):
    done = answer(wide_talker, prompts, TAPS, Sampling(temperature), 24, seed=3)
    texts = TextSet.of(done.pairs, wide_talker.pad_id)
    fresh = target_states(wide_talker, texts, TAPS)
    start = 0
    for row, length in enumerate(texts.lengths.tolist()):
        states, lse = done.states[start:], done.lse[start : start + length]
        both = torch.cat([fresh.taps[row], fresh.last[row]], dim=-1)
        assert_close(
            states[: length - 1].double(), both[: length - 1], rtol=1e-2, atol=1e-2
        )
        assert not states[length - 1].any()
        assert_close(lse, fresh.lse[row, :length].float(), equal_nan=True)
        start += length
    assert start == len(done.states) == len(done.lse)


def test_sampled_answers_follow_the_target(target):
    """The second token of many rows, against the law that the logits give."""
    rows, sampling = 4000, Sampling(1.5)
    done = answer(target, [toys.PROMPT] * rows, TAPS, sampling, 2, seed=1)
    drawn = torch.tensor([response[1:] for _, response in done.pairs])
    every = torch.arange(toys.VOCAB)
    texts = torch.tensor([[*toys.PROMPT, token] for token in every])
    cache = target.new_cache(len(texts), texts.shape[1])
    logits = target.forward(texts, cache).logits

    def law(sampling):
        first, second = (sampling.probabilities(logits[:, i]) for i in (-2, -1))
        return first[0] @ second

    assert toys.chi_square(drawn, law(sampling), toys.VOCAB) > 1e-4
    assert toys.chi_square(drawn, law(Sampling(1.0)), toys.VOCAB) < 1e-6


# --- shards -------------------------------------------------------------------

RECIPE = ResponseRecipe(max_new_tokens=6, batch=4)
ASKED = [f"Tom has {i} apples ." for i in range(14)]


def test_shards_survive_an_interruption(talker, tmp_path, monkeypatch):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return answer(*arguments)

    folder = StateFolder(talker, TAPS, tmp_path / "states")
    whole = write_responses(ASKED, RECIPE, tmp_path / "whole", folder, 5)
    monkeypatch.setattr(responses_module, "answer", counted)
    cut = StateFolder(talker, TAPS, tmp_path / "cut_states")
    with pytest.raises(KeyboardInterrupt):
        write_responses(ASKED, RECIPE, tmp_path / "cut", cut, 5)
    again = write_responses(ASKED, RECIPE, tmp_path / "cut", cut, 5)
    assert len(calls) == 3 + 2  # four shards: two made, one cut off, two more
    assert torch.equal(again.tokens, whole.tokens)
    ours, theirs = (StateStore(f, whole, RECIPE.batch) for f in (folder, cut))
    rows = torch.tensor([0, 5, 13])
    for a, b in zip(ours.read(rows), theirs.read(rows), strict=True):
        assert_close(a, b, equal_nan=True)


def test_a_store_reads_what_was_saved_and_computes_what_was_not(
    talker, tmp_path, monkeypatch
):
    folder = StateFolder(talker, TAPS, tmp_path / "states")
    texts = write_responses(ASKED, RECIPE, tmp_path / "texts", folder)
    saved = StateStore(folder, texts, RECIPE.batch).read(torch.arange(14))
    shards = []
    monkeypatch.setattr(
        StateFolder, "compute", lambda _, shard, __: shards.append(shard)
    )
    StateStore(folder, texts, RECIPE.batch)
    assert shards == []
    monkeypatch.undo()
    folder.file(2).unlink()
    computed = StateStore(folder, texts, RECIPE.batch).read(torch.arange(14))
    lived = torch.arange(texts.tokens.shape[1]) < texts.lengths[:, None] - 1
    for a, b in zip(saved[:2], computed[:2], strict=True):
        assert_close(a[lived], b[lived], rtol=2e-2, atol=2e-2)
    assert_close(saved.lse, computed.lse, rtol=1e-4, atol=1e-4, equal_nan=True)
