"""A key/value cache that forgets in O(1).

Speculation writes keys for a whole block and then takes most of them back.
Buffers are allocated once; each row has a length; rolling back lowers a number.
The class offers the few methods through which transformers' attention layers
talk to a cache, so one cache serves the target and the drafter.
"""

from collections.abc import Sequence

import torch

from xpress_lab.errors import LabError


class KVCache:
    """Keys and values of every layer for N rows that may differ in length.

    Args:
        layers, rows, heads, capacity, head_dim: buffer sizes; ``heads`` counts
            key/value heads.
        device, dtype: where and how keys and values are kept.

    Attributes:
        lengths: committed length of each row, in tokens.
    """

    is_compileable = False  # asked by transformers: this is not a StaticCache

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        capacity: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        shape = (rows, heads, capacity, head_dim)
        options = {"device": device, "dtype": dtype}
        self.keys = [torch.zeros(shape, **options) for _ in range(layers)]
        self.values = [torch.zeros(shape, **options) for _ in range(layers)]
        self.capacity = capacity
        self.lengths = [0] * rows

    @property
    def length(self) -> int:
        """Longest row, in tokens."""
        return max(self.lengths)

    @property
    def ragged(self) -> bool:
        return min(self.lengths) != max(self.lengths)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def update(self, keys, values, layer_idx: int, **_):
        """Write ``[N, heads, T, head_dim]`` after each row's length; return all so far.

        Lengths do not move here: every layer writes at the same place, and
        :meth:`advance` moves them once per forward pass.
        """
        new = keys.shape[2]
        end = self.length + new
        self.check_room(new)
        stored_keys, stored_values = self.keys[layer_idx], self.values[layer_idx]
        if self.ragged:
            rows, places = self._places(new)
            stored_keys[rows, :, places] = keys.transpose(1, 2)
            stored_values[rows, :, places] = values.transpose(1, 2)
        else:
            stored_keys[:, :, self.length : end] = keys
            stored_values[:, :, self.length : end] = values
        return stored_keys[:, :, :end], stored_values[:, :, :end]

    def check_room(self, new: int) -> None:
        """Raise unless so many more tokens fit behind the longest row."""
        end = self.length + new
        if end > self.capacity:
            raise LabError(f"Cache of {self.capacity} tokens is full: {end} needed.")

    def advance(self, count: int) -> None:
        """Count ``count`` freshly written tokens as present, in every row."""
        self.lengths = [length + count for length in self.lengths]

    def crop(self, lengths: int | Sequence[int]) -> None:
        """Roll rows back to the given absolute lengths, without copying."""
        wanted = [lengths] * len(self.lengths) if isinstance(lengths, int) else lengths
        for now, new in zip(self.lengths, wanted, strict=True):
            if not 0 <= new <= now:
                raise LabError(f"Cannot roll a cache of {now} tokens back to {new}.")
        self.lengths = list(wanted)

    def keep(self, start: int, places: Sequence[int]) -> None:
        """Of the tokens from ``start`` on, keep those at ``start + places`` alone.

        They move together behind ``start``, in every row; what lies before is not
        touched, and neither are places that need not move. For a token tree: the
        accepted path out of all nodes.

        Args:
            places: strictly increasing, counted from ``start``.
        """
        rising = all(a < b for a, b in zip([-1, *places], places, strict=False))
        if self.ragged or not rising or start + max(places, default=-1) >= self.length:
            raise LabError(
                f"Cannot keep places {list(places)} from {start} on in a cache of "
                f"{self.lengths} tokens: they must rise, and rows be of one length."
            )
        still = next((i for i, p in enumerate(places) if i != p), len(places))
        end = start + len(places)
        if still < len(places):
            moved = torch.tensor(places[still:], device=self.keys[0].device) + start
            for stored in (*self.keys, *self.values):
                stored[:, :, start + still : end] = stored[:, :, moved]
        self.crop(end)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows alone, in this order; the others' places are given up.

        A row stays in its place or moves into one that is given up, which copies
        what it holds. So a row that leaves costs one other row's copy at most, and
        those that are left lie together.
        """
        count, there = len(rows), range(len(self.lengths))
        late = [row for place, row in enumerate(rows) if row != place]
        known = set(rows) <= set(there) and len(set(rows)) == count
        if not known or any(row < count for row in late):
            raise LabError(
                f"Cannot keep rows {list(rows)} of {len(there)}: each must stay in its "
                f"place or come, once, from behind the first {count}."
            )
        for place, row in enumerate(rows):
            if row != place:
                held = self.lengths[row]
                for stored in (*self.keys, *self.values):
                    stored[place, :, :held] = stored[row, :, :held]
        self.lengths = [self.lengths[row] for row in rows]
        self.keys = [keys[:count] for keys in self.keys]
        self.values = [values[:count] for values in self.values]

    def _places(self, new: int):
        device = self.keys[0].device
        lengths = torch.tensor(self.lengths, device=device)
        places = lengths[:, None] + torch.arange(new, device=device)
        return torch.arange(len(lengths), device=device)[:, None], places
