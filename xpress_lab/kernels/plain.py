"""Plain torch twins of the kernels: what they compute, in the fewest words.

The kernels accumulate in float32 and round once, at the end; the twins compute in the
dtype they are given, so the two are compared in float32. Shapes: N rows, S drafted
slots, V vocabulary, r rank.
"""

import torch
import torch.nn.functional as F

from xpress_lab.argmax import first_argmax
from xpress_lab.kernels.noise import Noise, gumbel


def latent(head, prepared: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """What w2 reads, ``[N, S, r]``: Fuse, Mix and Trans of a folded head.

    Args:
        head: a :class:`xpress_lab.refiners.xpress.FoldedXPressHead`.
        prepared: ``[N, S, r]`` its hidden part of the block.
        previous: ``[N, B]`` int64, the token before each slot.
    """
    return head.latent(prepared, previous)


def choose(base: torch.Tensor, noise: Noise | None = None) -> torch.Tensor:
    """Tokens ``[N, S]`` of the highest scores ``[N, S, V]``; the first of equals."""
    if noise is None:
        return first_argmax(base)
    scaled = scores(base) / noise.temperature
    return first_argmax(scaled + gumbel(noise.key, base.shape))


def read_out(
    w2: torch.Tensor, z: torch.Tensor, base: torch.Tensor, noise: Noise | None = None
) -> torch.Tensor:
    """Tokens ``[N, S]`` of the highest refined logits.

    Args:
        w2: ``[V, r]``.
        z: ``[N, S, r]`` from :func:`latent`.
        base: ``[N, S, V]`` the drafter's logits.
        noise: added to logits over temperature; ``None`` at T = 0.
    """
    return choose(F.linear(z, w2).add_(base), noise)


def scores(
    base: torch.Tensor, w2: torch.Tensor | None = None, z: torch.Tensor | None = None
) -> torch.Tensor:
    """The logits ``[N, S, V]`` that :func:`read_out` compares, float32 or wider;
    without z those of :func:`choose`. A draft's q must be made of these alone."""
    logits = base if z is None else F.linear(z, w2).add_(base)
    return logits if logits.dtype == torch.float64 else logits.float()
