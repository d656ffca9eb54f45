"""Training blocks: anchors inside responses, and all that a drafter may see.

Many blocks of one text are trained side by side. Block queries attend to context
strictly before their own anchor and to their own block, never to another block and
never to the future (methods 1.5).
"""

from dataclasses import dataclass

import torch

from xpress_lab.borrowed import Borrowed
from xpress_lab.training.states import States
from xpress_lab.training.texts import TextSet


@dataclass
class BlockBatch:
    """A blocks from each of S texts, B slots a block; D draft ids.

    taps: ``[S, L, n*H]`` target states of the whole texts.
    block_ids: ``[S, A*B]`` target ids: anchor then masks, block after block.
    positions: ``[S, L + A*B]`` context positions, then the slots'.
    mask: ``[S, 1, A*B, L + A*B]`` what each slot sees.
    previous: ``[S*A, B]`` teacher-forced previous draft ids; entry 0 precedes the
        anchor.
    labels: ``[S*A, B-1]`` true draft ids of slots 1..B-1.
    valid: ``[S*A, B-1]`` booleans, slots that a drafter can get right.
    target_probs: ``[S*A, B-1, D]`` the target's probabilities at those slots.
    """

    taps: torch.Tensor
    block_ids: torch.Tensor
    positions: torch.Tensor
    mask: torch.Tensor
    previous: torch.Tensor
    labels: torch.Tensor
    valid: torch.Tensor
    target_probs: torch.Tensor


def sample_anchors(texts: TextSet, count: int, generator: torch.Generator):
    """``count`` anchors a text, without replacement, inside the response.

    An anchor and the token after it both lie in the response. Returns ``[S, A]``
    positions and ``[S, A]`` booleans, false where a text has too few.
    """
    inside = texts.in_response()
    eligible = inside[:, :-1] & inside[:, 1:]
    lottery = torch.rand(eligible.shape, generator=generator)
    lottery = lottery.masked_fill(~eligible, -1.0)
    best = lottery.topk(min(count, eligible.shape[1]), dim=1)
    return best.indices, best.values >= 0


@torch.no_grad()
def make_blocks(
    borrowed: Borrowed,
    texts: TextSet,
    states: States,
    anchors: torch.Tensor,
    kept: torch.Tensor,
    block_size: int,
    mask_id: int,
) -> BlockBatch:
    """Cut the blocks at ``anchors`` out of texts and of the target's states.

    A block is valid up to its text's end, and up to the first token that the draft
    vocabulary lacks: drafts are never accepted from there on. Texts, states and anchors
    may lie anywhere; blocks lie where the target does.
    """
    device = borrowed.target.device
    texts, states = texts.to(device), states.to(device)
    anchors, kept = anchors.to(device), kept.to(device)
    rows, length = texts.tokens.shape
    count = anchors.shape[1]

    slot = torch.arange(block_size, device=device)
    places = anchors[:, :, None] + slot  # [S, A, B]
    in_bounds = places < texts.lengths[:, None, None]
    safe = places.clamp_max(length - 1)
    row = torch.arange(rows, device=device)[:, None, None]
    tokens = texts.tokens[row, safe]
    drafts = borrowed.to_draft(tokens)
    before = texts.tokens[row[..., 0], (anchors - 1).clamp_min(0)]
    before = borrowed.to_draft(before)
    previous = torch.cat([before[..., None], drafts[..., :-1]], dim=-1)
    # The target's row at position i speaks about position i + 1.
    logits = borrowed.logits(states.last[row, safe[..., :-1]])
    lse = states.lse[row, safe[..., :-1]][..., None]
    probs = (logits.to(lse.dtype) - lse).exp()
    labels, known = drafts[..., 1:], drafts[..., 1:] < logits.shape[-1]
    valid = in_bounds[..., 1:] & kept[..., None] & known.cumprod(-1).bool()

    block_ids = torch.full_like(tokens, mask_id)
    block_ids[..., 0] = tokens[..., 0]
    context = torch.arange(length, device=device)
    return BlockBatch(
        taps=states.taps,
        block_ids=block_ids.flatten(1),
        positions=torch.cat([context.expand(rows, -1), places.flatten(1)], dim=1),
        mask=_mask(anchors, length, block_size),
        previous=previous.view(rows * count, block_size),
        labels=labels.where(known, 0).reshape(rows * count, -1),
        valid=valid.reshape(rows * count, -1),
        target_probs=probs.nan_to_num().flatten(0, 1),
    )


def _mask(anchors: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    rows, count = anchors.shape
    before = torch.arange(length, device=anchors.device) < anchors[:, :, None]
    context = before.repeat_interleave(block_size, dim=1)
    block = torch.arange(count, device=anchors.device).repeat_interleave(block_size)
    own = (block[:, None] == block).expand(rows, -1, -1)
    return torch.cat([context, own], dim=-1)[:, None]
