"""A block solved without the host: K passes, serial steps, or the bare choice.

What :mod:`xpress_lab.jacobi` does with a look at every pass, these do as fixed work,
which :class:`xpress_lab.graphs.Graph` can record: always K passes, whose tokens are in
exact arithmetic those of :func:`xpress_lab.jacobi.solve` with the same K and noise.
Only :class:`ToFixedPoint` looks, once after each pass over the whole vocabulary: with
candidates before the first (:mod:`xpress_lab.candidates`), that look is the
certificate, and mostly the only one.

Shapes: N rows, S drafted slots, B = S + 1, H hidden size, V vocabulary, r rank.
"""

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import NamedTuple

import torch

from xpress_lab.graphs import Graph
from xpress_lab.kernels import plain
from xpress_lab.kernels.choices import Lines
from xpress_lab.kernels.noise import Noise


class Solved(NamedTuple):
    """tokens: ``[N, S]``. log_q: ``[N, S]`` log of their chances, ``None`` at T = 0.
    z: ``[N, S, r]`` what w2 read for them, ``None`` without a head. before: ``[N, S]``
    what stood there until the last pass, ``None`` without passes."""

    tokens: torch.Tensor
    log_q: torch.Tensor | None = None
    z: torch.Tensor | None = None
    before: torch.Tensor | None = None


# hidden [N, B, H], base [N, S, V], anchor and before_anchor [N], key [1] of the noise
Solver = Callable[..., Solved]


def kernels_for(base: torch.Tensor) -> ModuleType:
    """The Triton kernels on CUDA, if Triton is installed; else their plain twins, which
    also know float64."""
    wide = base.dtype == torch.float64
    if base.device.type == "cuda" and not wide and find_spec("triton"):
        from xpress_lab.kernels import fused

        return fused
    return plain


def recorded(solver: Solver, base: torch.Tensor, hidden: torch.Tensor, *more) -> Graph:
    """A solver on buffers for blocks like this one; ``more`` are further inputs."""
    ids = torch.zeros(len(base), dtype=torch.int64, device=base.device)
    return Graph(solver, hidden, base, ids, ids, ids[:1], *more)


def choosing(temperature: float = 0.0, kernels: ModuleType | None = None) -> Solver:
    """The bare drafter: each slot by its base logits alone."""

    def solver(hidden, base, anchor, before_anchor, key):
        noise = Noise(key, temperature) if temperature else None
        return Solved(*(kernels or kernels_for(base)).choose(base, noise))

    return solver


def parallel(
    head,
    passes: int,
    temperature: float = 0.0,
    kernels: ModuleType | None = None,
    candidates: int = 0,
) -> Solver:
    """xPress: K Jacobi passes over the whole vocabulary.

    Args:
        head: folded.
        candidates: C; the passes begin at the block that settles among C candidates a
            slot, and not at the drafter's own choice. 0 for none.
    """

    def solver(hidden, base, anchor, before_anchor, key):
        noise = Noise(key, temperature) if temperature else None
        chosen = kernels or kernels_for(base)
        prepared = head.prepare(hidden)
        ends = torch.stack([before_anchor, anchor], dim=1)
        if candidates:
            few = chosen.shortlist(base, candidates, noise)
            lines = Lines(torch.cat([ends, few.best], dim=1))
            for _ in range(base.shape[1]):  # so many always suffice
                lines = chosen.settle(head, prepared, few, lines, temperature)
            solved = Solved(lines.now[:, 2:])
        else:
            solved = Solved(*chosen.choose(base, noise))
        for _ in range(passes):
            solved = full_pass(chosen, head, prepared, base, ends, solved.tokens, noise)
        return solved

    return solver


def one_more(
    head, temperature: float = 0.0, kernels: ModuleType | None = None
) -> Solver:
    """One pass from a block ``[N, S]`` that is given as a further input."""

    def solver(hidden, base, anchor, before_anchor, key, tokens):
        noise = Noise(key, temperature) if temperature else None
        ends = torch.stack([before_anchor, anchor], dim=1)
        given = kernels or kernels_for(base), head, head.prepare(hidden)
        return full_pass(*given, base, ends, tokens, noise)

    return solver


def full_pass(kernels: ModuleType, head, prepared, base, ends, tokens, noise) -> Solved:
    """One pass over the whole vocabulary, from drafts ``[N, S]`` behind ``[N, 2]`` the
    token before the anchor and the anchor."""
    previous = torch.cat([ends, tokens[:, :-1]], dim=1)
    z = kernels.latent(head, prepared, previous)
    return Solved(*kernels.read_out(head.w2, z, base, noise), z, tokens)


class ToFixedPoint:
    """Recorded passes until one changes nothing; ``passes`` counts those made for the
    newest block over the whole vocabulary.

    Args:
        head, temperature, kernels, candidates: as for :func:`parallel`.
        base, hidden: of a block like those to come.
    """

    def __init__(
        self,
        head,
        base: torch.Tensor,
        hidden: torch.Tensor,
        temperature: float = 0.0,
        kernels: ModuleType | None = None,
        candidates: int = 0,
    ):
        first = parallel(head, 1, temperature, kernels, candidates)
        self.first, self.passes = recorded(first, base, hidden), 0
        self.further = recorded(
            one_more(head, temperature, kernels),
            base,
            hidden,
            torch.zeros(base.shape[:2], dtype=torch.int64, device=base.device),
        )

    def __call__(self, *block: torch.Tensor | int) -> Solved:
        """As a recorded solver; the next call overwrites what it returns."""
        solved, self.passes = Solved(*self.first(*block)), 1
        slots = solved.tokens.shape[1]
        while self.passes < slots and not torch.equal(solved.tokens, solved.before):
            solved = Solved(*self.further(*block, solved.tokens))
            self.passes += 1
        return solved


def serial(head, temperature: float = 0.0, kernels: ModuleType | None = None) -> Solver:
    """A vanilla Markov head: S serial steps, with the same read-out."""

    def solver(hidden, base, anchor, before_anchor, key):
        chosen = kernels or kernels_for(base)
        token, steps, latents = anchor, [], []
        for k in range(base.shape[1]):
            noise = Noise(key + k, temperature) if temperature else None
            z = head.markov_w1(token)[:, None]
            steps.append(chosen.read_out(head.w2, z, base[:, k : k + 1], noise))
            token = steps[-1].tokens[:, 0]
            latents.append(z)
        tokens, log_q = zip(*steps, strict=True)
        law = torch.cat(log_q, dim=1) if temperature else None
        return Solved(torch.cat(tokens, dim=1), law, torch.cat(latents, dim=1))

    return solver
