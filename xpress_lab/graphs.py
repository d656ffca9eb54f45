"""Work of fixed shapes, which CUDA records once and then replays at a single launch.

A round is hundreds of small kernels, and launching them one by one from Python takes
longer than running them. A recording launches them all, with the host out of the way;
what it reads and writes must stay where it was, and keep its shape. So inputs are
copied into buffers, a cache is written at a place that lies on the device, and caches
are lent again and again, together with the recordings that know them.

Elsewhere than on CUDA the same work simply runs, so that it can be tested anywhere.
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from copy import copy

import torch
from torch.testing import assert_close

from xpress_lab.cache import KVCache

WARM_UPS = 3  # before a recording, so that nothing is compiled or allocated inside it
STEP = 256  # tokens by which capacities are rounded up, so that caches fit again

Outputs = Sequence[torch.Tensor | None]


class Graph:
    """Work on buffers, recorded on CUDA.

    A recording is compared with the work itself before it is trusted; where it cannot
    be made or does not agree, a warning says so and the work is run as it is.

    Args:
        work: from tensors to tensors, the same shapes in every call; it must not look
            at a value on the host.
        inputs: those of the first call. Making a recording runs the work several times,
            so what it writes must be what that call writes.
    """

    def __init__(self, work: Callable[..., Outputs], *inputs: torch.Tensor):
        self.work = work
        self.inputs = [value.clone() for value in inputs]
        self.outputs: Outputs = ()
        self.replay: Callable[[], None] = self.run
        if inputs[0].device.type == "cuda":
            with torch.cuda.device(inputs[0].device):
                self.replay = self._recorded()

    @torch.inference_mode()
    def __call__(self, *inputs: torch.Tensor | int) -> Outputs:
        """The outputs; the next call overwrites them."""
        for buffer, value in zip(self.inputs, inputs, strict=True):
            fill = buffer.fill_ if isinstance(value, int) else buffer.copy_
            fill(value)
        self.replay()
        return self.outputs

    def run(self) -> None:
        with torch.cuda.device_of(self.inputs[0]):  # where kernels are launched
            self.outputs = self.work(*self.inputs)

    @torch.inference_mode()
    def _recorded(self) -> Callable[[], None]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        expected, graph = self.outputs, torch.cuda.CUDAGraph()
        here = torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph):
                self.run()
            graph.replay()
            assert_close(list(self.outputs), list(expected))
        except (RuntimeError, AssertionError) as error:
            torch.cuda.set_stream(here)  # a broken recording leaves its own behind
            warnings.warn(f"No CUDA graph, work is launched: {error}", stacklevel=2)
            return self.run
        return graph.replay


class PlacedCache:
    """A cache of one row as recorded work writes it: from ``start`` ``[1]`` on, a
    number on the device. Attention is given the whole buffers, and a mask."""

    is_compileable = False  # asked by transformers: this is not a StaticCache

    def __init__(self, cache: KVCache):
        self.keys, self.values = cache.keys, cache.values
        self.places = torch.arange(cache.capacity, device=cache.keys[0].device)
        self.start = self.places[:1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions and masks are given, so nothing depends on it

    def update(self, keys, values, layer_idx: int, **_):
        """Write ``[1, heads, T, head_dim]`` at ``start``; return the whole buffers."""
        places = self.start + self.places[: keys.shape[2]]
        stored = self.keys[layer_idx], self.values[layer_idx]
        for buffer, new in zip(stored, (keys, values), strict=True):
            buffer.index_copy_(2, places, new)
        return stored

    def advance(self, count: int) -> None:
        """The cache itself counts, on the host."""


class LentCache(KVCache):
    """A cache of one row that comes back to its pool; ``graphs`` are the recordings
    that read and write its buffers."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.graphs: dict[tuple, Graph] = {}

    def graph(self, key: tuple, make: Callable[[], Graph]) -> Graph:
        """The recording of this name, made when it is first asked for."""
        if key not in self.graphs:
            self.graphs[key] = make()
        return self.graphs[key]


class CachePool:
    """Caches by capacity. One that is lent returns when nobody holds it any more."""

    def __init__(self, make: Callable[[int], LentCache]):
        self.make = make
        self.free: dict[int, list[LentCache]] = {}

    def lend(self, capacity: int) -> LentCache:
        """An empty cache of at least this capacity."""
        capacity = rounded(capacity)
        free = self.free.setdefault(capacity, [])
        with torch.inference_mode(False):  # buffers that any later caller may write
            owned = free.pop() if free else self.make(capacity)
        for values in owned.values:  # whole buffers are read: a nan would stay
            values.zero_()
        lent = copy(owned)
        lent.crop(0)
        weakref.finalize(lent, free.append, owned).atexit = False
        return lent


def rounded(capacity: int) -> int:
    """The capacity that a cache is made with, in tokens."""
    return -(-capacity // STEP) * STEP
