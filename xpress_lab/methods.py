"""Methods: what proposes the drafts that the loop verifies.

A method is a choice of drafter, head and solver. Plain decoding is the method whose
draft is empty. Each method starts one *drafting* per text, or per batch of them, which
keeps the drafter's cache; the loop asks it for one proposal per round.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from xpress_lab.draft_laws import DraftLaw
from xpress_lab.sampling import Sampling, Stream
from xpress_lab.stopwatch import Stopwatch
from xpress_lab.trees import TokenTree


class Request(NamedTuple):
    """What a proposal may depend on.

    anchor, before_anchor: ``[N]`` the newest token and the one before it.
    taps: ``[N, C, n*H]`` target states of tokens not seen by the drafter yet.
    start: position of the anchor, or one a row where rows differ.
    fresh: ``[N, C]`` the token after each of those, the last one is the anchor.

    Rows that have fewer such tokens than C are padded on the right: a row's own are
    those from what its drafter has seen up to ``start``.
    """

    anchor: torch.Tensor
    before_anchor: torch.Tensor
    taps: torch.Tensor | None
    start: int | Sequence[int]
    fresh: torch.Tensor

    @property
    def starts(self) -> list[int]:
        """Position of each row's anchor."""
        even = isinstance(self.start, int)
        return [self.start] * len(self.anchor) if even else list(self.start)


class Proposal(NamedTuple):
    """Drafts and how they came about, in the target's ids.

    tokens: ``[N, S]``. q: the law they were drawn from, or ``None`` for drafts chosen
    outright. passes: head evaluations. trace: tokens of the seed and each pass, if
    kept. tree: how the drafts hang together, ``None`` for a chain; its nodes are
    ``tokens``, one row, and q does not matter to its walk.
    counts: how many of the S drafts each row means, ``None`` for all.
    """

    tokens: torch.Tensor
    q: DraftLaw | None = None
    passes: int = 0
    trace: list[torch.Tensor] | None = None
    tree: TokenTree | None = None
    counts: list[int] | None = None


class Drafting(Protocol):
    """Drafting state of one text, or of several side by side."""

    def propose(
        self,
        request: Request,
        sampling: Sampling,
        noise_stream: Stream,
        watch: Stopwatch,
        keep_trace: bool,
    ) -> Proposal: ...

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Let the other rows go; see :meth:`xpress_lab.cache.KVCache.keep_rows`."""


class Method(Protocol):
    """A named way to draft. ``block_size`` counts the anchor and bounds what a round
    emits; ``budget`` bounds the drafts of a proposal; ``tap_ids`` are the layers whose
    outputs :class:`Request` must carry; ``batched`` says whether it drafts for several
    texts at once."""

    name: str
    block_size: int
    budget: int
    tap_ids: tuple[int, ...]
    batched: bool

    def begin(self, capacity: int, rows: int = 1) -> Drafting: ...

    def describe(self) -> str: ...


class PlainDecoding:
    """``ar``: no drafts, so every verification emits one token."""

    name, block_size, budget, tap_ids = "ar", 1, 0, ()
    batched = True

    def begin(self, capacity: int, rows: int = 1) -> "PlainDecoding":
        return self

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Nothing is kept of any row."""

    def propose(self, request, sampling, noise_stream, watch, keep_trace) -> Proposal:
        return Proposal(request.anchor.new_empty((len(request.anchor), 0)))

    def describe(self) -> str:
        return "ar: one token per target call"
