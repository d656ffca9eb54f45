"""Plain torch twins of the kernels: what they compute, in the fewest words.

The kernels accumulate in float32 and round once, at the end; the twins compute in the
dtype they are given, so the two are compared in float32. Shapes: N rows, S drafted
slots, V vocabulary, C candidates, r rank.
"""

import torch

from xpress_lab.argmax import first_argmax
from xpress_lab.kernels.choices import (
    Chosen,
    Lines,
    Shortlist,
    shortlisted,
    top_candidates,
)
from xpress_lab.kernels.noise import Noise, gumbel
from xpress_lab.products import times_table


def latent(head, prepared: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """What w2 reads, ``[N, S, r]``: Fuse, Mix and Trans of a folded head.

    Args:
        head: a :class:`xpress_lab.refiners.xpress.FoldedXPressHead`.
        prepared: ``[N, S, r]`` its hidden part of the block.
        previous: ``[N, B]`` int64, the token before each slot.
    """
    return head.latent(prepared, previous)


def choose(base: torch.Tensor, noise: Noise | None = None) -> Chosen:
    """Tokens of the highest scores ``[N, S, V]``; the first of equals."""
    if noise is None:
        return Chosen(first_argmax(base), None)
    scaled = scores(base) / noise.temperature
    tokens = first_argmax(scaled + gumbel(noise.key, base.shape))
    own = scaled.gather(-1, tokens[..., None]).squeeze(-1)
    return Chosen(tokens, own - scaled.logsumexp(-1))


def read_out(
    w2: torch.Tensor, z: torch.Tensor, base: torch.Tensor, noise: Noise | None = None
) -> Chosen:
    """Tokens of the highest refined logits.

    Args:
        w2: ``[V, r]``.
        z: ``[N, S, r]`` from :func:`latent`.
        base: ``[N, S, V]`` the drafter's logits.
        noise: added to logits over temperature; ``None`` at T = 0.
    """
    return choose(times_table(z, w2).add_(base), noise)


def scores(
    base: torch.Tensor, w2: torch.Tensor | None = None, z: torch.Tensor | None = None
) -> torch.Tensor:
    """The logits ``[..., V]`` that :func:`read_out` compares, float32 or wider;
    without z those of :func:`choose`. A draft's q must be made of these alone."""
    logits = base if z is None else times_table(z, w2).add_(base)
    return logits if logits.dtype == torch.float64 else logits.float()


def shortlist(base: torch.Tensor, count: int, noise: Noise | None = None) -> Shortlist:
    """The C tokens of each slot with the highest scores, noise and all."""
    noisy = scores(base)
    if noise is not None:
        noisy = noisy / noise.temperature + gumbel(noise.key, base.shape)
    ids = top_candidates(noisy, count)
    return shortlisted(ids, noisy.gather(-1, ids), base, noise)


def settle(
    head, prepared: torch.Tensor, few: Shortlist, lines: Lines, temperature: float = 0.0
) -> Lines:
    """One pass among candidates: those with the highest refined logits, or, with their
    noise, logits over temperature.

    Args:
        head, prepared: as for :func:`latent`.
    """
    z = latent(head, prepared, lines.now[:, :-1])
    products = (head.w2[few.ids] @ z[..., None]).squeeze(-1)
    refined = few.base + products.to(few.base.dtype)
    if few.noise is not None:
        refined = refined / temperature + few.noise
    tokens = few.ids.gather(-1, first_argmax(refined)[..., None]).squeeze(-1)
    return Lines(torch.cat([lines.now[:, :2], tokens], dim=1), lines.now)
