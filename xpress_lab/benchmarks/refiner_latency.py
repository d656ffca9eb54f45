"""Refiner latency: K passes and a serial head, plain and fast, beside the floor.

*plain* is a pass as the formula reads: base logits plus bias over the whole vocabulary,
written out, then argmax; K times. *fast* is the best this device has:

- CPU, large vocabularies: passes among candidate rows and full passes to check (K
  bounds those);
- CPU, small ones: what the loop does by itself, passes that leave out the settled
  prefix and stop at the fixed point;
- CUDA: K exact passes by fused kernels in one graph. Two lines of their own go to the
  fixed point, with a look after each full pass: *xpress+fixed* from the drafter's own
  choice, *xpress+candidates* from the block that settles among candidates.

Markov's S serial steps are measured in both variants too. The *floor* is what reading
w2 once a pass (once a step) must take, at the rate at which this device was seen to
read a table of that size; faster than that only who reads fewer rows.

Blocks are made up: normal logits with a few likely tokens in each slot, and a random
head whose bias is strong enough to choose among those. Times depend on sizes; how many
full passes the candidates take depends on the drafts, so it is reported, and measured
on real ones by :mod:`xpress_lab.benchmarks.certificates`.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import torch

from xpress_lab.argmax import first_argmax
from xpress_lab.candidates import COUNT, WORTHWHILE, solve_by_candidates
from xpress_lab.devices import synchronize
from xpress_lab.jacobi import Solution, solve, solve_sequentially
from xpress_lab.kernels.runner import ToFixedPoint, parallel, recorded, serial
from xpress_lab.provenance import how_made
from xpress_lab.refiners.markov import MarkovHead
from xpress_lab.refiners.xpress import XPressHead
from xpress_lab.screening import screen_for

HIDDEN = {4_096: 576, 49_152: 576, 151_936: 4_096}  # of the targets with these sizes
BLOCKS = 4  # different blocks that a measurement goes through in turn
SAMPLE = 2e-3  # seconds that a sample should last at least
LIKELY, LIFT, BIAS = 8, 10.0, 1.5  # tokens a slot, their logits, the bias's deviation
LEAST_ROUNDS = 3
LARGE = 2**30  # bytes that take a GPU far longer to read than to be told to

Work = Callable[[int], torch.Tensor]  # number of a block -> its tokens [1, S]


class Grid(NamedTuple):
    """What is measured: every combination."""

    vocabularies: tuple[int, ...] = (4_096, 49_152, 151_936)
    ranks: tuple[int, ...] = (64, 128, 256)
    blocks: tuple[int, ...] = (8, 16)
    passes: tuple[int, ...] = tuple(range(1, 9))


class Arm(NamedTuple):
    """One line of the comparison; passes: K, the serial steps of Markov, or the full
    passes that a fixed point takes at least."""

    method: str
    variant: str
    passes: int


FIXED, CERTIFIED = (
    Arm(f"xpress+{name}", "fast", 1) for name in ("fixed", "candidates")
)


class Blocks:
    """Heads of one size and the blocks they refine, on one device."""

    def __init__(self, vocab: int, rank: int, block: int, device, dtype, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)
        hidden_size = HIDDEN.get(vocab, 576)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        self.hidden = normal(BLOCKS, block, hidden_size)
        self.base = normal(BLOCKS, block - 1, vocab)
        likely = torch.randint(vocab, (BLOCKS, block - 1, LIKELY), generator=generator)
        self.base.scatter_(2, likely, LIFT + 1.5 * normal(*likely.shape))
        self.anchor, self.before = torch.randint(
            vocab, (2, BLOCKS), generator=generator
        )
        torch.manual_seed(seed)
        head = XPressHead(hidden_size, vocab, block, rank, std=rank**-0.5)
        markov = MarkovHead(vocab, rank, std=rank**-0.5)
        with torch.no_grad():
            head.mix.L.normal_(std=0.3)
            previous = torch.randint(vocab, (1, block), generator=generator)
            head.read.w2.weight *= BIAS / head(self.hidden[:1], previous).std()
            markov.markov_w2.weight *= BIAS / markov(self.hidden[:1], previous).std()
        self.head = head.to(device, dtype).fold()
        self.screen = screen_for(self.head.w2, block - 1)
        self.count = COUNT if vocab >= WORTHWHILE else 0
        self.markov = markov.to(device, dtype).requires_grad_(False)
        self.hidden = self.hidden.to(device, dtype)
        self.base = self.base.to(device, dtype)
        self.anchor, self.before = self.anchor.to(device), self.before.to(device)

    def block(self, number: int) -> tuple[torch.Tensor, ...]:
        """hidden ``[1, B, H]``, base ``[1, S, V]``, anchor, before_anchor ``[1]``."""
        at = slice(number, number + 1)
        return self.hidden[at], self.base[at], self.anchor[at], self.before[at]

    def plain_passes(self, passes: int) -> Work:
        """K passes over the whole vocabulary, neither shortened nor left early."""

        def work(number: int) -> torch.Tensor:
            hidden, base, anchor, before = self.block(number)
            prepared = self.head.prepare(hidden)
            tokens = base.argmax(-1)
            ends = torch.stack([before, anchor], 1)
            for _ in range(passes):
                previous = torch.cat([ends, tokens[:, :-1]], 1)
                tokens = (base + self.head.bias(prepared, previous)).argmax(-1)
            return tokens

        return work

    def solved(self, number: int, passes: int | None, count: int) -> Solution:
        """The fast path of a CPU: C candidates a slot, or none at all."""
        hidden, *block = self.block(number)
        prepared = self.head.prepare(hidden)
        if not count:
            return solve(
                lambda previous, first: (
                    block[0][:, first:] + self.head.bias(prepared, previous, first)
                ),
                *block,
                passes=passes,
                lock=True,
            )
        how = {"count": count, "passes": passes, "screen": self.screen}
        return solve_by_candidates(self.head, prepared, *block, **how)

    def fixed_points(self) -> list[torch.Tensor]:
        """Where full passes end, in whatever number, block by block."""
        return [self.solved(n, None, count=0).tokens for n in range(BLOCKS)]

    def serial(self, fast: bool) -> Work:
        """Markov's steps. The fast ones read w2 transposed, which a CPU does quicker
        for a single row, and end in the same argmax as fast passes."""
        rows = self.markov.markov_w2.weight.T.contiguous() if fast else None

        def work(number: int) -> torch.Tensor:
            _, base, anchor, _ = self.block(number)

            def step(k: int, drafted: torch.Tensor, state):
                return base[:, k] + self.markov.step(None, drafted[:, -1])[0], state

            if not fast:
                return solve_sequentially(step, base, anchor).tokens
            token, tokens = anchor, []
            for k in range(base.shape[1]):
                scores = (self.markov.markov_w1(token) @ rows).add_(base[:, k])
                token = first_argmax(scores)
                tokens.append(token)
            return torch.stack(tokens, 1)

        return work

    @cached_property
    def to_fixed_point(self) -> dict[Arm, ToFixedPoint]:
        """Recorded passes that look, without candidates and with them."""
        hidden, base, *_ = self.block(0)
        counts = {FIXED: 0} | ({CERTIFIED: self.count} if self.count else {})
        return {
            arm: ToFixedPoint(self.head, base, hidden, candidates=count)
            for arm, count in counts.items()
        }

    def end(self, number: int, arm: Arm) -> torch.Tensor:
        """The fixed point by such an arm."""
        return self.to_fixed_point[arm](*self.block(number), 0).tokens

    def full_passes(self, number: int, arm: Arm) -> int | None:
        """How many an xPress arm makes; ``None`` where it is K in any case."""
        if arm in (FIXED, CERTIFIED):
            self.end(number, arm)
            return self.to_fixed_point[arm].passes
        if arm.variant == "fast" and self.base.device.type != "cuda":
            return self.solved(number, arm.passes, self.count).passes
        return None

    def fast(self, arm: Arm) -> Work:
        """The fast variant of an arm on this device."""
        hidden, base, *_ = self.block(0)
        if base.device.type != "cuda":
            if arm.method == "markov":
                return self.serial(fast=True)
            return lambda n: self.solved(n, arm.passes, self.count).tokens
        if arm.method == "markov":
            graph = recorded(serial(self.markov), base, hidden)
        else:
            graph = recorded(parallel(self.head, arm.passes), base, hidden)
        return lambda n: graph(*self.block(n), 0)[0]

    def works(self, passes: tuple[int, ...]) -> dict[Arm, Work]:
        """Every arm with what it does."""
        steps = self.base.shape[1]
        works = {Arm("markov", "plain", steps): self.serial(fast=False)}
        works |= {Arm("xpress", "plain", k): self.plain_passes(k) for k in passes}
        arms = [Arm("xpress", "fast", k) for k in passes]
        arms.append(Arm("markov", "fast", steps))
        works |= {arm: self.fast(arm) for arm in arms}
        if self.base.device.type == "cuda":
            works |= {arm: partial(self.end, arm=arm) for arm in self.to_fixed_point}
        return works

    def floor(self, seconds: float = 0.02, least: int | None = None) -> float:
        """Seconds to read as many bytes as w2 has, once, at the best rate seen.

        Args:
            least: bytes of the table that is read to see the rate, if w2 has fewer. On
                CUDA, where a launch takes longer than a small table, ``LARGE``.
        """
        device = self.base.device
        if least is None:
            least = LARGE if device.type == "cuda" else 0
        size = self.head.w2.numel() * self.head.w2.element_size()
        table = torch.ones(max(size, least) // 4, device=device)
        best, end = float("inf"), time.perf_counter() + seconds
        while time.perf_counter() < end:
            best = min(best, timed(lambda _: table.sum(), device, 1))
        return best * size / max(size, least)


def timed(work: Work, device: torch.device, repeats: int, first: int = 0) -> float:
    """Seconds a call over ``repeats`` calls, which go through the blocks in turn."""
    synchronize(device)
    started = time.perf_counter()
    for turn in range(repeats):
        work((first + turn) % BLOCKS)
    synchronize(device)
    return (time.perf_counter() - started) / repeats


@torch.inference_mode()
def refiner_latency(
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    grid: Grid = Grid(),  # noqa: B008  a tuple of tuples
    seconds: float = 120.0,
    say: Callable[[str], None] = lambda line: None,
) -> list[dict]:
    """Flat records, one per size and arm.

    Arms take turns, so that drift of the machine falls on all alike; rounds go on
    until the time is used, at least three.

    Columns: device, dtype, method, variant, vocab, rank, block, passes, microseconds
    (median), spread (between quartiles), rounds, floor_microseconds, fixed_point (share
    of blocks whose tokens are those of the fixed point), full_passes (mean, where
    passes end early), and how it was made.
    """
    made = {
        "device": device.type,
        "dtype": str(dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        **how_made(),
    }
    sizes = list(itertools.product(grid.vocabularies, grid.ranks, grid.blocks))
    weight = sum((v * r) ** 0.5 for v, r, _ in sizes)
    records = []
    for vocab, rank, block in sizes:
        say(f"V={vocab} r={rank} B={block}")
        blocks = Blocks(vocab, rank, block, device, dtype)
        works = blocks.works(grid.passes)
        floor, answers = blocks.floor(), blocks.fixed_points()
        share = (vocab * rank) ** 0.5 / weight
        times = take_turns(works, device, seconds * share)
        size = {"vocab": vocab, "rank": rank, "block": block}
        for arm, taken in times.items():
            low, middle, high = quartiles(taken)
            records.append(
                made
                | {"method": arm.method, "variant": arm.variant, **size}
                | {"passes": arm.passes}
                | {"microseconds": round(middle, 2), "spread": round(high - low, 2)}
                | {"rounds": len(taken)}
                | {"floor_microseconds": round(1e6 * floor * arm.passes, 2)}
                | reached(blocks, arm, works[arm], answers)
            )
    return records


def reached(blocks: Blocks, arm: Arm, work: Work, answers: list) -> dict:
    """Whether an xPress arm ends at the fixed points, and by how many full passes."""
    found = {"fixed_point": None, "full_passes": None}
    if arm.method == "markov":
        return found
    same = [torch.equal(work(n), answers[n]) for n in range(BLOCKS)]
    found["fixed_point"] = sum(same) / BLOCKS
    each = [blocks.full_passes(n, arm) for n in range(BLOCKS)]
    if None not in each:
        found["full_passes"] = sum(each) / BLOCKS
    return found


def take_turns(
    works: dict[Arm, Work], device: torch.device, seconds: float
) -> dict[Arm, list[float]]:
    """Microseconds of each arm, round by round; the order rotates."""
    once = {}
    for arm, work in works.items():
        timed(work, device, 1)  # allocation and dispatch
        once[arm] = timed(work, device, 1)
    # A fast path takes longer where a certificate fails: all blocks in each sample.
    least = {arm: BLOCKS if arm.variant == "fast" else 1 for arm in works}
    repeats = {a: max(least[a], round(SAMPLE / max(t, 1e-7))) for a, t in once.items()}
    arms, times = list(works), {arm: [] for arm in works}
    end = time.perf_counter() + seconds
    for turn in itertools.count():
        if turn >= LEAST_ROUNDS and time.perf_counter() > end:
            return times
        shift = turn % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            taken = timed(works[arm], device, repeats[arm], first=turn)
            times[arm].append(1e6 * taken)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))
