"""Acceptance rules: which drafts the target keeps, and what it says instead.

Three rules, each losing nothing. *Greedy*: keep drafts while they equal the
target's argmax. *Rejection*: keep a draft with probability min(1, p/q), else draw
from the normalised max(p - q, 0). *Exact match*: draw from the target at every
place and keep drafts while they equal the draws; exact too, only less accepting.

Shapes: N rows, S drafts, V vocabulary. Target logits have S + 1 rows: row j is the
target's view of the place of draft j, row S the place after the last. Where rows
propose fewer than S drafts, ``counts`` says how many; what follows them is padding.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from xpress_lab.argmax import first_argmax
from xpress_lab.draft_laws import DraftLaw, law_of
from xpress_lab.sampling import RowStreams, Sampling, Streams, draw, uniform

TINY_MASS = 1e-8  # a residual lighter than this is rounding; fall back to p


class Verdict(NamedTuple):
    """accepted: ``[N]`` leading drafts kept, 0..S. next_token: ``[N]`` the target's
    own token after them: a correction, or the bonus if all were kept."""

    accepted: torch.Tensor
    next_token: torch.Tensor


def accept_greedy(
    logits: torch.Tensor, drafts: torch.Tensor, counts: Sequence[int] | None = None
) -> Verdict:
    """Keep drafts while they are the target's argmax (first of equals)."""
    choices = first_argmax(logits)
    accepted = _leading(choices[:, :-1] == drafts, _proposed(drafts, counts))
    return Verdict(accepted, choices.gather(1, accepted[:, None]).squeeze(1))


def accept_by_rejection(
    p: torch.Tensor,
    q: DraftLaw | torch.Tensor | None,
    drafts: torch.Tensor,
    streams: Streams | RowStreams,
    counts: Sequence[int] | None = None,
) -> Verdict:
    """Speculative sampling: the emitted tokens follow p exactly.

    Args:
        p: ``[N, S + 1, V]`` target probabilities.
        q: the law from which ``drafts`` were drawn, or its ``[N, S, V]``
            probabilities; ``None`` says that drafts were chosen outright (one-hot q).
        drafts: ``[N, S]`` ids.
        streams: acceptance and residual draws use their own generators.
        counts: how many drafts each row proposes, all by default.
    """
    p_draft = p[:, :-1].gather(2, drafts[..., None]).squeeze(2)
    q = law_of(q, drafts, p)
    q_draft = q.of(drafts)
    ratio = torch.where(q_draft > 0, p_draft / q_draft, torch.zeros_like(p_draft))
    numbers = uniform(ratio.shape, streams.accept, p.device, p.dtype, counts)
    proposed = _proposed(drafts, counts)
    accepted = _leading(numbers < ratio, proposed)
    rows = torch.arange(len(p), device=p.device)
    law = p[rows, accepted]
    if drafts.shape[1]:
        rejected = accepted < proposed
        slot = accepted.clamp_max(drafts.shape[1] - 1)
        law = torch.where(rejected[:, None], _residual(law, q.at(rows, slot)), law)
    return Verdict(accepted, draw(law, streams.residual))


def accept_exact_match(
    p: torch.Tensor, drafts: torch.Tensor, streams: Streams
) -> Verdict:
    """Draw the target's own token at each place; keep drafts while they agree."""
    own = draw(p.flatten(0, 1), streams.residual).view(p.shape[:2])
    accepted = _leading(own[:, :-1] == drafts, drafts.shape[1])
    return Verdict(accepted, own.gather(1, accepted[:, None]).squeeze(1))


def accept(
    logits: torch.Tensor,
    drafts: torch.Tensor,
    q: DraftLaw | torch.Tensor | None,
    sampling: Sampling,
    streams: Streams | RowStreams,
    counts: Sequence[int] | None = None,
) -> Verdict:
    """The rule that the sampling settings call for."""
    if sampling.greedy:
        return accept_greedy(logits, drafts, counts)
    p = sampling.probabilities(logits)
    return accept_by_rejection(p, q, drafts, streams, counts)


def _leading(kept: torch.Tensor, most: int | torch.Tensor) -> torch.Tensor:
    """How many leading entries of each row are true: ``[N, S]`` to ``[N]``."""
    return kept.long().cumprod(dim=1).sum(dim=1).clamp_max(most)


def _proposed(drafts: torch.Tensor, counts) -> int | torch.Tensor:
    """Drafts that each row proposes: S, or ``[N]`` where rows differ."""
    if counts is None:
        return drafts.shape[1]
    return torch.tensor(counts, device=drafts.device)


def _residual(p, q):
    """max(p - q, 0) of ``[N, V]`` laws; p itself if next to nothing is left."""
    left = (p - q).clamp_min(0)
    return torch.where(left.sum(-1, keepdim=True) > TINY_MASS, left, p)
