"""The 3-gram that PRESTO consults: counted right, normalised, read back strictly."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from xpress_lab import load_lab
from xpress_lab.errors import LabError
from xpress_lab.ngram import DISCOUNT, load_ngram, save_ngram
from xpress_lab.presets import get_tier
from xpress_lab.training.ngram_counting import count_ngrams
from xpress_lab.training.texts import TextSet

VOCAB = 5
PAIRS = [
    ([0, 1, 2], [3, 1, 2, 3, 4]),
    ([2], [1, 2, 0, 1, 2, 3, 4]),
    ([4, 4, 0, 1], [2, 4]),
]


def texts(pairs=PAIRS) -> TextSet:
    return TextSet.of(pairs, pad_id=0)


def by_hand(pairs, order: int) -> Counter:
    """n-grams that end in a response."""
    found = Counter()
    for prompt, response in pairs:
        whole = prompt + response
        for end in range(max(len(prompt), order - 1), len(whole)):
            found[tuple(whole[end - order + 1 : end + 1])] += 1
    return found


def law_by_hand(pairs, context: tuple[int, ...]) -> list[float]:
    """The docstring's formula, one count at a time."""
    shorter = [1 / VOCAB] * VOCAB
    for length in range(len(context) + 1):
        seen = {
            gram[-1]: count
            for gram, count in by_hand(pairs, length + 1).items()
            if gram[:-1] == context[len(context) - length :]
        }
        if seen:
            total = sum(seen.values())
            freed = DISCOUNT * len(seen) / total
            shorter = [
                max(seen.get(w, 0) - DISCOUNT, 0) / total + freed * shorter[w]
                for w in range(VOCAB)
            ]
    return shorter


def test_counts_are_those_of_responses():
    """Prompts give context and are never predicted; padding is neither."""
    for order, (grams, counts) in enumerate(count_ngrams(texts(), VOCAB).tables, 1):
        found = dict(zip(map(tuple, grams.tolist()), counts.tolist(), strict=True))
        assert found == by_hand(PAIRS, order)
        assert grams.tolist() == sorted(grams.tolist())


TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=8)
PROMPTS = st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=8)


@given(pairs=st.lists(st.tuples(PROMPTS, TOKENS), min_size=1, max_size=4))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_every_law_is_the_formula_s_and_sums_to_one(pairs):
    ngram = count_ngrams(texts(pairs), VOCAB)
    contexts = torch.tensor(list(itertools.product(range(VOCAB), repeat=2)))
    laws = ngram.log_probs(contexts).exp()
    assert_close(laws.sum(-1), torch.ones(len(contexts)))
    assert (laws > 0).all() and (laws <= 1).all()
    for context, law in zip(contexts.tolist(), laws, strict=True):
        assert_close(law, torch.tensor(law_by_hand(pairs, tuple(context))))


def test_the_last_two_tokens_matter_and_no_others():
    ngram = count_ngrams(texts(), VOCAB)
    long = torch.tensor([[4, 4, 1, 2], [0, 3, 1, 2], [1, 2, 2, 1]])
    rows = ngram.log_probs(long)
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])
    assert torch.equal(rows, ngram.log_probs(long[:, -2:]))


def test_a_limit_keeps_the_most_frequent():
    whole, few = count_ngrams(texts(), VOCAB), count_ngrams(texts(), VOCAB, most=4)
    for (_, all_counts), (grams, counts) in zip(whole.tables, few.tables, strict=True):
        assert len(grams) == 4
        assert sorted(counts.tolist()) == sorted(all_counts.tolist())[-4:]
    assert_close(few.log_probs(torch.tensor([[1, 2]])).exp().sum(), torch.tensor(1.0))


def test_counts_come_back_from_disk(tmp_path):
    ngram = count_ngrams(texts(), VOCAB)
    save_ngram(ngram, tmp_path)
    back = load_ngram(tmp_path, VOCAB)
    contexts = torch.tensor([[1, 2], [2, 3], [4, 0], [3, 3]])
    assert torch.equal(back.log_probs(contexts), ngram.log_probs(contexts))


def change(name: str, value):
    return lambda tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t.pop("counts.2"), "counts.3, grams.1"),
        (change("extra", torch.ones(1)), "extra"),
        (change("vocab_size", torch.tensor([7])), "vocab_size is 7, the target's is 5"),
        (change("grams.1", torch.tensor([[9]])), "1-grams of shape"),
        (change("grams.2", torch.zeros(3)), "2-grams of shape"),
        (change("counts.3", torch.zeros(0)), "3-grams of shape"),
        (lambda t: t["grams.3"].fill_(5), "ids in 0..4 .* found 5..5"),
        (lambda t: t["grams.3"].fill_(-1), "found -1..-1"),
        (lambda t: t["counts.3"].fill_(0), "and 0"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, damage, says):
    save_ngram(count_ngrams(texts(), VOCAB), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    damage(tensors)
    save_file(tensors, path)
    with pytest.raises(LabError, match=says):
        load_ngram(tmp_path, VOCAB)


def test_no_file_and_a_broken_one_are_refused(tmp_path):
    with pytest.raises(LabError, match="No 3-gram counts at .*train --only ngram"):
        load_ngram(tmp_path, VOCAB)
    (tmp_path / "model.safetensors").write_bytes(b"half a fi")
    with pytest.raises(LabError, match="corrupt"):
        load_ngram(tmp_path, VOCAB)


def test_the_shipped_counts_are_small_and_know_the_target_s_words():
    """On the target's own greedy text it is surer than its 1-grams by far."""
    path = get_tier("pocket").folder() / "ngram" / "model.safetensors"
    assert path.stat().st_size < 2**20
    lab = load_lab("pocket", device="cpu")
    ngram = lab.ngram()
    text = lab.generate("Anna has 3 apples and Ben has 4.", "ar", max_new_tokens=60)
    ids = torch.tensor(text.prompt + text.tokens)
    rows = ngram.log_probs(ids.unfold(0, 2, 1)[:-1])
    given_two = rows.gather(1, ids[2:, None])[-len(text.tokens) :].mean()
    alone = ngram.probabilities(()).log()[ids[2:]][-len(text.tokens) :].mean()
    assert given_two > alone + 1.5
