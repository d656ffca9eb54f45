"""Target and drafter whose calls are replayed from recordings, as CUDA wants them.

Batch 1: a verification, a drafter's pass and its head's passes are one recording each
(:mod:`xpress_lab.graphs`), so a round is three launches and one transfer to the host,
which asks how many drafts were accepted (and one more after each pass, where passes go
on to the fixed point). Whatever has no fixed shape, or comes once a text (the prompt,
trees, batches that shrink, filters at T > 0), runs as usual, on the same caches.

At T > 0 noise is counted, not stored: a block draws a key, and
:mod:`xpress_lab.kernels.noise` makes the same numbers of it in every pass. Nor is q
stored, only the drafts' own chances (:class:`xpress_lab.draft_laws.ReadOut`).
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from xpress_lab.block_method import BlockDrafting, BlockMethod
from xpress_lab.draft_laws import DraftLaw, ReadOut
from xpress_lab.graphs import CachePool, Graph, LentCache, PlacedCache
from xpress_lab.jacobi import Solution, pass_limit
from xpress_lab.kernels.noise import Noise, gumbel
from xpress_lab.kernels.runner import (
    Solved,
    ToFixedPoint,
    choosing,
    kernels_for,
    parallel,
    recorded,
    serial,
)
from xpress_lab.methods import Request
from xpress_lab.refiners.markov import MarkovHead
from xpress_lab.sampling import Sampling, Stream
from xpress_lab.target import Target, TargetOutput

MOST_TOKENS = 32  # new tokens of a call that is worth a recording
MOST_TEMPERATURES = 8  # of one method; each has buffers of its own


class ReplayedTarget(Target):
    """A target that replays verifications of single texts."""

    def __init__(self, model, tokenizer=None):
        super().__init__(model, tokenizer)
        self.pool = CachePool(partial(super().new_cache, 1, kind=LentCache))

    def new_cache(self, rows: int, capacity: int, **kind):
        if rows == 1 and not kind:
            return self.pool.lend(capacity)
        return super().new_cache(rows, capacity, **kind)

    def forward(self, tokens, cache, tap_ids=(), **how) -> TargetOutput:
        new = tokens.shape[1]
        if how or not isinstance(cache, LentCache) or new > MOST_TOKENS:
            return super().forward(tokens, cache, tap_ids, **how)
        cache.check_room(new)
        key = new, tap_ids
        graph = cache.graph(key, partial(self._record_call, cache, tap_ids, tokens))
        out = graph(tokens, cache.length)
        cache.advance(new)
        # Copies, for the cache and with it the recording may serve another text soon.
        return TargetOutput(*(None if part is None else part.clone() for part in out))

    def _record_call(self, cache: LentCache, tap_ids, tokens: torch.Tensor) -> Graph:
        placed, call = PlacedCache(cache), super().forward

        def work(tokens: torch.Tensor, start: torch.Tensor) -> TargetOutput:
            placed.start = start
            positions = (start + placed.places[: tokens.shape[1]])[None]
            visible = placed.places <= positions[:, :, None]
            return call(tokens, placed, tap_ids, positions=positions, visible=visible)

        return Graph(work, tokens, placed.places[cache.length : cache.length + 1])


class ReplayedMethod(BlockMethod):
    """A block method that replays the drafts of single texts."""

    def __init__(self, *block, **how):
        super().__init__(*block, **how)
        self.pool = CachePool(partial(self.drafter.new_cache, 1, kind=LentCache))
        self.solving: dict[float, Graph | ToFixedPoint] = {}  # by temperature

    def begin(self, capacity: int, rows: int = 1) -> BlockDrafting:
        kind = ReplayedDrafting if rows == 1 else BlockDrafting
        return kind(self, capacity, rows)

    @property
    def serial(self) -> bool:
        return self.head is not None and self.head.sequential

    @property
    def evaluations(self) -> int:
        """How often a recorded solver asks the head."""
        if self.head is None:
            return 0
        return self.budget if self.serial else pass_limit(self.passes, self.budget)

    @property
    def recordable(self) -> bool:
        """Other serial heads carry more than the last token from slot to slot."""
        return not self.serial or type(self.head) is MarkovHead

    def solver(self, temperature: float, base, hidden) -> Graph | ToFixedPoint:
        """From a block's hidden states and logits to tokens: the recording of this
        temperature, made when it is first asked for."""
        if temperature not in self.solving:
            if len(self.solving) == MOST_TEMPERATURES:
                del self.solving[next(iter(self.solving))]  # the oldest
            self.solving[temperature] = self._record(temperature, base, hidden)
        return self.solving[temperature]

    def _record(self, temperature: float, base, hidden) -> Graph | ToFixedPoint:
        head, candidates = self.head, self.candidates
        if head is not None and not self.serial and self.passes is None:
            return ToFixedPoint(head, base, hidden, temperature, candidates=candidates)
        if head is None:
            solver = choosing(temperature)
        elif self.serial:
            solver = serial(head, temperature)
        else:
            passes = self.evaluations
            solver = parallel(head, passes, temperature, candidates=candidates)
        return recorded(solver, base, hidden)


@dataclass
class ReadSolution(Solution):
    """law: what the drafts were drawn from at T > 0; there are no scores."""

    law: DraftLaw | None = None


class ReplayedDrafting(BlockDrafting):
    """Proposals of one text. New context is padded to a block, the most that a round
    can add; the padding's keys lie where the mask leaves them out."""

    def new_cache(self, rows: int, capacity: int) -> LentCache:
        return self.method.pool.lend(capacity + self.method.drafter.config.block_size)

    def draft(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        block, new = self.method.drafter.config.block_size, request.taps.shape[1]
        if new > block:
            return super().draft(request)
        self.cache.check_room(2 * block)
        taps = F.pad(request.taps, (0, 0, 0, block - new))
        graph = self.cache.graph(
            ("draft",), partial(record_drafter, self.method, self.cache, request, taps)
        )
        drafted = graph(taps, request.anchor, self.cache.length, *request.starts)
        self.cache.advance(new)
        return drafted

    def noise(self, base, sampling: Sampling, stream: Stream):
        """A key where the method's solver is recorded, else noise as usual."""
        filtered = sampling.top_k or sampling.top_p < 1
        usual = sampling.greedy_draft or filtered or isinstance(stream, Sequence)
        if usual or not self.method.recordable:
            return super().noise(base, sampling, stream)
        key = torch.randint(2**62, (1,), generator=stream, device=base.device)
        return Noise(key, sampling.temperature)

    def _solve(self, hidden, base, request, scale, noise, keep_trace, **how):
        counted = isinstance(noise, Noise)
        temperature = noise.temperature if counted else 0.0
        stored = noise is not None and not counted
        traced = keep_trace and not self.method.serial
        if stored or traced or not self.method.recordable:
            noise = gumbel(noise.key, base.shape) if counted else noise
            return super()._solve(
                hidden, base, request, scale, noise, keep_trace, **how
            )
        to_draft = self.method.borrowed.to_draft
        block = hidden, base, to_draft(request.anchor), to_draft(request.before_anchor)
        solver = self.method.solver(temperature, base, hidden)
        solved = Solved(*solver(*block, noise.key if counted else 0))
        looked, slots = isinstance(solver, ToFixedPoint), solved.tokens.shape[1]
        passes = solver.passes if looked else self.method.evaluations
        return ReadSolution(
            solved.tokens,
            None,
            passes,
            looked or passes >= slots,
            law=self._read(solved, base, temperature) if counted else None,
        )

    def _read(self, solved: Solved, base, temperature: float) -> ReadOut:
        w2 = None if self.method.head is None else self.method.head.w2
        how = self.method.borrowed, kernels_for(base), temperature
        return ReadOut(*how, solved.log_q, base, w2, solved.z)

    def law(self, solution: Solution) -> DraftLaw:
        read = isinstance(solution, ReadSolution)
        return solution.law if read else super().law(solution)


def record_drafter(
    method: BlockMethod, cache: LentCache, request: Request, taps: torch.Tensor
) -> Graph:
    """A drafter's pass on a cache: its block's hidden states and logits."""
    method = weakref.proxy(method)  # whose pool will hold the recording
    placed, slots = PlacedCache(cache), method.drafter.config.block_size

    def work(taps, anchor, held, start):
        placed.start = held
        behind = placed.places - held - slots  # the block's keys follow the padding
        visible = (placed.places < start) | ((behind >= 0) & (behind < slots))
        context, block = held + placed.places[:slots], start + placed.places[:slots]
        positions = torch.cat([context, block])[None]
        hidden = method.drafter_pass(
            taps, anchor, positions, visible[None, None, None], placed
        )
        return hidden, method.base_logits(hidden)

    held, start = (placed.places[n : n + 1] for n in (cache.length, *request.starts))
    return Graph(work, taps, request.anchor, held, start)
