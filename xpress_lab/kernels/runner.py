"""A block solved without the host: K passes, serial steps, or the bare choice.

What :mod:`xpress_lab.jacobi` does with a look at every pass, these do as fixed work,
which :class:`xpress_lab.graphs.Graph` can record: always K passes, whose tokens are in
exact arithmetic those of :func:`xpress_lab.jacobi.solve` with the same K and noise.

Shapes: N rows, S drafted slots, B = S + 1, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

import torch

from xpress_lab.graphs import Graph
from xpress_lab.kernels import plain
from xpress_lab.kernels.noise import Noise

# hidden [N, B, H], base [N, S, V], anchor and before_anchor [N], key [1] of the noise
# -> tokens [N, S], and at T > 0 the scores [N, S, V] whose softmax they follow
Solver = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def kernels_for(base: torch.Tensor) -> ModuleType:
    """The Triton kernels on CUDA, if Triton is installed; else their plain twins, which
    also know float64."""
    wide = base.dtype == torch.float64
    if base.device.type == "cuda" and not wide and find_spec("triton"):
        from xpress_lab.kernels import fused

        return fused
    return plain


def recorded(solver: Solver, base: torch.Tensor, hidden: torch.Tensor) -> Graph:
    """A solver on buffers for blocks like this one."""
    ids = torch.zeros(len(base), dtype=torch.int64, device=base.device)
    return Graph(solver, hidden, base, ids, ids, ids[:1])


def choosing(temperature: float = 0.0, kernels: ModuleType | None = None) -> Solver:
    """The bare drafter: each slot by its base logits alone."""

    def solver(hidden, base, anchor, before_anchor, key):
        chosen = kernels or kernels_for(base)
        if not temperature:
            return chosen.choose(base), None
        tokens = chosen.choose(base, Noise(key, temperature))
        return tokens, chosen.scores(base) / temperature

    return solver


def parallel(
    head, passes: int, temperature: float = 0.0, kernels: ModuleType | None = None
) -> Solver:
    """xPress: K Jacobi passes over the whole vocabulary.

    Args:
        head: folded.
    """

    def solver(hidden, base, anchor, before_anchor, key):
        chosen = kernels or kernels_for(base)
        noise = Noise(key, temperature) if temperature else None
        prepared, z = head.prepare(hidden), None
        tokens = chosen.choose(base, noise)
        ends = torch.stack([before_anchor, anchor], dim=1)
        for _ in range(passes):
            previous = torch.cat([ends, tokens[:, :-1]], dim=1)
            z = chosen.latent(head, prepared, previous)
            tokens = chosen.read_out(head.w2, z, base, noise)
        if noise is None:
            return tokens, None
        return tokens, chosen.scores(base, head.w2, z) / temperature

    return solver


def serial(head, temperature: float = 0.0, kernels: ModuleType | None = None) -> Solver:
    """A vanilla Markov head: S serial steps, with the same read-out."""

    def solver(hidden, base, anchor, before_anchor, key):
        chosen = kernels or kernels_for(base)
        w2, token, tokens, latents = head.markov_w2.weight, anchor, [], []
        for k in range(base.shape[1]):
            noise = Noise(key + k, temperature) if temperature else None
            z = head.markov_w1(token)[:, None]
            token = chosen.read_out(w2, z, base[:, k : k + 1], noise)[:, 0]
            tokens.append(token)
            latents.append(z)
        drafted = torch.stack(tokens, dim=1)
        if not temperature:
            return drafted, None
        z = torch.cat(latents, dim=1)
        return drafted, chosen.scores(base, w2, z) / temperature

    return solver
