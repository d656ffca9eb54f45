"""The cache that forgets in O(1) equals one made of lists.

Random programs of writes and roll-backs, rows of different lengths included: after
each write every row reads back exactly its committed tokens and the new ones, and
whatever a roll-back left behind is never read (pitfall 10).
"""

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from xpress_lab.cache import KVCache
from xpress_lab.errors import LabError

LAYERS, HEADS, DIM, CAPACITY = 2, 3, 4, 24


class ListCache:
    """Per row and layer, a list of the tokens' keys and values; nothing clever."""

    def __init__(self, rows: int):
        self.rows = [[[] for _ in range(LAYERS)] for _ in range(rows)]

    def write(self, written) -> None:
        """``written[layer]``: (keys, values), each ``[rows, heads, T, dim]``."""
        for row, layers in enumerate(self.rows):
            for layer, stored in enumerate(layers):
                keys, values = written[layer]
                for t in range(keys.shape[2]):
                    stored.append((keys[row, :, t], values[row, :, t]))

    def crop(self, lengths: list[int]) -> None:
        for layers, length in zip(self.rows, lengths, strict=True):
            for stored in layers:
                del stored[length:]


def fresh(rows: int, new: int, generator: torch.Generator):
    shape = (rows, HEADS, new, DIM)
    return [
        tuple(torch.randn(shape, generator=generator) for _ in range(2))
        for _ in range(LAYERS)
    ]


@given(
    rows=st.integers(1, 3),
    steps=st.lists(
        st.tuples(
            st.integers(1, 6), st.lists(st.integers(0, 6), min_size=3, max_size=3)
        ),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, derandomize=True, max_examples=150)
def test_any_program_of_writes_and_crops_equals_lists(rows, steps, seed):
    """Each step writes some tokens, then forgets some, as many as each row likes."""
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache(LAYERS, rows, HEADS, CAPACITY, DIM)
    lists = ListCache(rows)
    for new, forget in steps:
        if cache.length + new > CAPACITY:
            break
        written = fresh(rows, new, generator)
        lists.write(written)
        lengths = [length + new for length in cache.lengths]
        for layer, (keys, values) in enumerate(written):
            read = cache.update(keys, values, layer)
            for row, length in enumerate(lengths):
                for tensor, part in zip(read, (0, 1), strict=True):
                    stored = [pair[part] for pair in lists.rows[row][layer]]
                    assert_close(tensor[row, :, :length], torch.stack(stored, dim=1))
                    assert tensor.shape[2] == max(lengths)
        cache.advance(new)
        assert cache.lengths == lengths
        kept = [max(0, n - f) for n, f in zip(lengths, forget, strict=False)]
        cache.crop(kept)
        lists.crop(kept)
        assert cache.lengths == kept and cache.length == max(kept)
        assert cache.ragged == (len(set(kept)) > 1)
        assert cache.get_seq_length() == max(kept)


def test_crop_copies_nothing_and_takes_one_length_for_all_rows():
    cache = KVCache(1, 2, 1, 8, 1)
    ones = torch.ones(2, 1, 5, 1)
    cache.update(ones, ones, 0)
    cache.advance(5)
    before = cache.keys[0].data_ptr()
    cache.crop(3)
    assert cache.lengths == [3, 3]
    assert cache.keys[0].data_ptr() == before
    assert (cache.keys[0][:, :, 3:5] == 1).all()  # forgotten by counting, not erased


def test_uncounted_tokens_are_overwritten():
    """A drafter's block keys: written behind the context, never counted."""
    cache = KVCache(1, 1, 1, 8, 1)
    context_and_block = torch.arange(5.0).view(1, 1, 5, 1)
    cache.update(context_and_block, context_and_block, 0)
    cache.advance(2)
    again = torch.full((1, 1, 3, 1), 9.0)
    keys, _ = cache.update(again, again, 0)
    assert keys.flatten().tolist() == [0, 1, 9, 9, 9]


@pytest.mark.parametrize("lengths", [[3, 3], [1, 3]], ids=["even", "ragged"])
def test_a_full_cache_says_so_and_stays_as_it_was(lengths):
    cache = KVCache(1, 2, 1, 4, 1)
    ones = torch.ones(2, 1, 3, 1)
    cache.update(ones, ones, 0)
    cache.advance(3)
    cache.crop(lengths)
    with pytest.raises(LabError, match="Cache of 4 tokens is full: 5 needed"):
        cache.update(torch.zeros(2, 1, 2, 1), torch.zeros(2, 1, 2, 1), 0)
    assert cache.lengths == lengths
    assert (cache.keys[0][:, :, :3] == 1).all()


@pytest.mark.parametrize("lengths", [4, -1, [3, 4], [-1, 2]])
def test_rolling_forward_or_below_zero_is_refused(lengths):
    cache = KVCache(1, 2, 1, 8, 1)
    cache.advance(3)
    with pytest.raises(LabError, match="Cannot roll a cache of 3 tokens back"):
        cache.crop(lengths)
    assert cache.lengths == [3, 3]


def test_lengths_are_the_cache_s_own():
    """A caller's list that is changed later must not move the cache."""
    cache, wanted = KVCache(1, 2, 1, 8, 1), [1, 2]
    cache.advance(3)
    cache.crop(wanted)
    wanted[0] = 3
    assert cache.lengths == [1, 2]


@given(
    start=st.integers(0, 6),
    new=st.integers(1, 9),
    chosen=st.sets(st.integers(0, 8)),
    rows=st.integers(1, 2),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_kept_places_move_together_and_nothing_else_does(start, new, chosen, rows):
    places = sorted(place for place in chosen if place < new)
    cache = KVCache(LAYERS, rows, HEADS, CAPACITY, DIM)
    generator = torch.Generator().manual_seed(new)
    for layer, (keys, values) in enumerate(fresh(rows, start + new, generator)):
        cache.update(keys, values, layer)
    cache.advance(start + new)
    buffers = cache.keys + cache.values
    before, where = [b.clone() for b in buffers], [b.data_ptr() for b in buffers]
    cache.keep(start, places)
    end = start + len(places)
    assert cache.lengths == [end] * rows
    assert where == [b.data_ptr() for b in cache.keys + cache.values]
    for ours, old in zip(buffers, before, strict=True):
        assert torch.equal(ours[:, :, :start], old[:, :, :start])
        assert torch.equal(ours[:, :, end:], old[:, :, end:])
        for k, place in enumerate(places):
            assert torch.equal(ours[:, :, start + k], old[:, :, start + place])


@pytest.mark.parametrize("places", [[0, 3], [1, 1], [2, 1], [-1, 0]], ids=str)
def test_places_that_do_not_rise_or_do_not_exist_are_refused(places):
    cache = KVCache(1, 1, 1, 8, 1)
    cache.advance(5)
    with pytest.raises(LabError, match="Cannot keep places"):
        cache.keep(2, places)
    assert cache.lengths == [5]


def test_rows_of_different_length_cannot_be_kept_alike():
    cache = KVCache(1, 2, 1, 8, 1)
    cache.advance(5)
    cache.crop([5, 4])
    with pytest.raises(LabError, match="rows be of one length"):
        cache.keep(2, [0])


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    leaving=st.sets(st.integers(0, 5)),
    shuffled=st.randoms(use_true_random=False),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_rows_that_are_kept_hold_what_they_held(lengths, leaving, shuffled):
    """Each stays or moves into a place that is given up; then life goes on."""
    count, generator = len(lengths), torch.Generator().manual_seed(1)
    cache = KVCache(LAYERS, count, HEADS, CAPACITY, DIM)
    lists = ListCache(count)
    written = fresh(count, 6, generator)
    lists.write(written)
    for layer, (keys, values) in enumerate(written):
        cache.update(keys, values, layer)
    cache.advance(6)
    cache.crop(lengths)
    lists.crop(lengths)

    left = [row for row in range(count) if row not in leaving]
    late = [row for row in left if row >= len(left)]
    shuffled.shuffle(late)
    rows = [place if place in left else late.pop() for place in range(len(left))]
    cache.keep_rows(rows)
    assert cache.lengths == [lengths[row] for row in rows]
    if not rows:
        return
    lists.rows = [lists.rows[row] for row in rows]
    written = fresh(len(rows), 2, generator)
    lists.write(written)
    for layer, (keys, values) in enumerate(written):
        read = cache.update(keys, values, layer)
        for row, length in enumerate(cache.lengths):
            for tensor, part in zip(read, (0, 1), strict=True):
                stored = [pair[part] for pair in lists.rows[row][layer]]
                assert torch.equal(tensor[row, :, : length + 2], torch.stack(stored, 1))


@pytest.mark.parametrize(
    "rows", [[1, 0], [1, 2], [0, 0], [2, 2], [0, 3], [-1]], ids=str
)
def test_rows_that_would_overwrite_each_other_are_refused(rows):
    cache = KVCache(1, 3, 1, 8, 1)
    with pytest.raises(LabError, match="Cannot keep rows"):
        cache.keep_rows(rows)
    assert len(cache.lengths) == len(cache.keys[0]) == 3


@pytest.mark.parametrize("lengths", [[3, 5], [5, 2]])
def test_ragged_rows_of_a_target_read_as_if_each_were_alone(target, lengths):
    """Two texts of different length in one batch: logits as from separate passes."""
    texts = [[3, 14, 15, 9, 26], [1, 2, 3, 4, 5]]
    block = torch.tensor([[7, 8, 9], [10, 11, 12]])
    cache = target.new_cache(2, 16)
    target.forward(torch.tensor(texts), cache)
    cache.crop(lengths)
    out = target.forward(block, cache, (1,))
    for row, length in enumerate(lengths):
        whole = texts[row][:length] + block[row].tolist()
        expected = toys.full_logits(target, whole)[length:]
        assert_close(out.logits[row], expected, rtol=1e-4, atol=1e-4)
    assert cache.lengths == [length + 3 for length in lengths]
