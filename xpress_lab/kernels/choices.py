"""What kernels hand on: chosen tokens, and the few that passes may choose among.

Shapes: N rows, S drafted slots, V vocabulary, C candidates.
"""

from typing import NamedTuple

import numpy as np
import torch

from xpress_lab.kernels.noise import Noise

GROUPS = 16  # a slot's scores are first compared in columns of this many


class Chosen(NamedTuple):
    """tokens: ``[N, S]``. log_q: ``[N, S]`` float32 or wider, log of the chance with
    which noise chooses each of them; ``None`` without noise."""

    tokens: torch.Tensor
    log_q: torch.Tensor | None


class Shortlist(NamedTuple):
    """The candidates of a block, in any order.

    ids: ``[N, S, C]``. base: ``[N, S, C]`` their logits. noise: ``[N, S, C]``, added to
    logits over temperature; ``None`` at T = 0. best: ``[N, S]`` the ids that win
    without a head. base and noise are float32 or wider.
    """

    ids: torch.Tensor
    base: torch.Tensor
    noise: torch.Tensor | None
    best: torch.Tensor


class Lines(NamedTuple):
    """Two passes of a block, each ``[N, S + 2]``: the token before the anchor, the
    anchor, the drafts. before: what now was made of, ``None`` for a seed."""

    now: torch.Tensor
    before: torch.Tensor | None = None


def top_candidates(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ids ``[N, S, C]`` of the highest scores ``[N, S, V]``, in rising order.

    The top C lie in the C columns with the highest tops; finding those first, on
    strided columns that a CPU compares many at a time, spares sorting the rest.
    Rising order keeps the rule that the first of equals wins.
    """
    vocab = scores.shape[-1]
    columns, left = divmod(vocab, GROUPS)
    if left or columns <= count:
        return in_order(highest(scores, min(count, vocab)))
    tops = scores.unflatten(-1, (GROUPS, columns)).amax(dim=-2)
    best = highest(tops, count)
    rows = torch.arange(0, vocab, columns, device=scores.device)
    members = (best[..., None, :] + rows[:, None]).flatten(-2)
    inside = highest(scores.gather(-1, members), count)
    return in_order(members.gather(-1, inside))


def highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Places ``[..., C]`` of the C highest of ``[..., V]`` scores, in no order. On a
    CPU by numpy, which partitions in less than half the time."""
    if scores.device.type != "cpu":
        return scores.topk(count, dim=-1, sorted=False).indices
    wide = scores if scores.dtype == torch.float64 else scores.float()
    places = np.argpartition(wide.numpy(force=True), -count, axis=-1)
    return torch.from_numpy(places[..., -count:])


def in_order(ids: torch.Tensor) -> torch.Tensor:
    """Ids ``[..., C]`` from the lowest to the highest."""
    if ids.device.type != "cpu":
        return ids.sort(dim=-1).values
    return torch.from_numpy(np.sort(ids.numpy(), axis=-1))


def shortlisted(
    ids: torch.Tensor, scores: torch.Tensor, base: torch.Tensor, drawn: Noise | None
) -> Shortlist:
    """What belongs to candidates ``ids`` of these scores, both ``[N, S, C]``.

    Args:
        base: ``[N, S, V]`` logits.
        drawn: what the scores contain, ``None`` for no noise. What a candidate's own
            noise was is seen from its score, up to rounding; that is near enough, for
            candidates decide nothing (:mod:`xpress_lab.candidates`).
    """
    logits = base.gather(-1, ids).to(scores.dtype)
    noise = None if drawn is None else scores - logits / drawn.temperature
    best = ids.gather(-1, scores.argmax(dim=-1, keepdim=True)).squeeze(-1)
    return Shortlist(ids, logits, noise, best)
