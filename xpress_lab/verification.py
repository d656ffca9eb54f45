"""Acceptance rules: which drafts the target keeps, and what it says instead.

Three rules, each losing nothing. *Greedy*: keep drafts while they equal the
target's argmax. *Rejection*: keep a draft with probability min(1, p/q), else draw
from the normalised max(p - q, 0). *Exact match*: draw from the target at every
place and keep drafts while they equal the draws; exact too, only less accepting.

Shapes: N rows, S drafts, V vocabulary. Target logits have S + 1 rows: row j is the
target's view of the place of draft j, row S the place after the last.
"""

from typing import NamedTuple

import torch

from xpress_lab.sampling import Sampling, Streams, draw

TINY_MASS = 1e-8  # a residual lighter than this is rounding; fall back to p


class Verdict(NamedTuple):
    """accepted: ``[N]`` leading drafts kept, 0..S. next_token: ``[N]`` the target's
    own token after them: a correction, or the bonus if all were kept."""

    accepted: torch.Tensor
    next_token: torch.Tensor


def accept_greedy(logits: torch.Tensor, drafts: torch.Tensor) -> Verdict:
    """Keep drafts while they are the target's argmax (first of equals)."""
    choices = logits.argmax(dim=-1)
    accepted = _leading(choices[:, :-1] == drafts)
    return Verdict(accepted, choices.gather(1, accepted[:, None]).squeeze(1))


def accept_by_rejection(
    p: torch.Tensor, q: torch.Tensor | None, drafts: torch.Tensor, streams: Streams
) -> Verdict:
    """Speculative sampling: the emitted tokens follow p exactly.

    Args:
        p: ``[N, S + 1, V]`` target probabilities.
        q: ``[N, S, V]`` probabilities from which ``drafts`` were drawn; ``None``
            says that drafts were chosen outright (one-hot q).
        drafts: ``[N, S]`` ids.
        streams: acceptance and residual draws use their own generators.
    """
    p_draft = p[:, :-1].gather(2, drafts[..., None]).squeeze(2)
    if q is None:
        ratio = p_draft
    else:
        q_draft = q.gather(2, drafts[..., None]).squeeze(2)
        ratio = torch.where(q_draft > 0, p_draft / q_draft, torch.zeros_like(p_draft))
    uniform = torch.rand(
        ratio.shape, generator=streams.accept, device=p.device, dtype=p.dtype
    )
    accepted = _leading(uniform < ratio)
    rows = torch.arange(len(p), device=p.device)
    law = p[rows, accepted]
    if drafts.shape[1]:
        rejected = accepted < drafts.shape[1]
        slot = accepted.clamp_max(drafts.shape[1] - 1)
        law = torch.where(rejected[:, None], _residual(law, q, drafts, rows, slot), law)
    return Verdict(accepted, draw(law, streams.residual))


def accept_exact_match(
    p: torch.Tensor, drafts: torch.Tensor, streams: Streams
) -> Verdict:
    """Draw the target's own token at each place; keep drafts while they agree."""
    own = draw(p.flatten(0, 1), streams.residual).view(p.shape[:2])
    accepted = _leading(own[:, :-1] == drafts)
    return Verdict(accepted, own.gather(1, accepted[:, None]).squeeze(1))


def accept(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    q: torch.Tensor | None,
    sampling: Sampling,
    streams: Streams,
) -> Verdict:
    """The rule that the sampling settings call for."""
    if sampling.greedy:
        return accept_greedy(logits, drafts)
    return accept_by_rejection(sampling.probabilities(logits), q, drafts, streams)


def _leading(kept: torch.Tensor) -> torch.Tensor:
    """How many leading entries of each row are true: ``[N, S]`` to ``[N]``."""
    return kept.long().cumprod(dim=1).sum(dim=1)


def _residual(law, q, drafts, rows, slot):
    """max(p - q, 0) at the rejected slot; p itself if next to nothing is left."""
    if q is None:
        one_hot = torch.zeros_like(law)
        q_slot = one_hot.scatter(1, drafts[rows, slot][:, None], 1.0)
    else:
        q_slot = q[rows, slot]
    left = (law - q_slot).clamp_min(0)
    return torch.where(left.sum(-1, keepdim=True) > TINY_MASS, left, law)
