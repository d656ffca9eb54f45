"""Training blocks: anchors inside responses, and all that a drafter may see.

Many blocks of one text are trained side by side. Block queries attend to context
strictly before their own anchor and to their own block, never to another block and
never to the future (methods 1.5).
"""

from dataclasses import dataclass

import torch

from xpress_lab.target import Target
from xpress_lab.training.texts import TextSet


@dataclass
class BlockBatch:
    """A blocks from each of S texts, B slots a block.

    taps: ``[S, L, n*H]`` target states of the whole texts.
    block_ids: ``[S, A*B]`` anchor then masks, block after block.
    positions: ``[S, L + A*B]`` context positions, then the slots'.
    mask: ``[S, 1, A*B, L + A*B]`` what each slot sees.
    previous: ``[S*A, B]`` teacher-forced previous tokens; entry 0 precedes the anchor.
    labels: ``[S*A, B-1]`` true tokens of slots 1..B-1.
    valid: ``[S*A, B-1]`` booleans, slots inside the response.
    target_probs: ``[S*A, B-1, V]`` the target's distribution at those slots.
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
    target: Target,
    texts: TextSet,
    anchors: torch.Tensor,
    kept: torch.Tensor,
    block_size: int,
    mask_id: int,
    tap_ids: tuple[int, ...],
) -> BlockBatch:
    """Run the target over whole texts and cut the blocks at ``anchors`` out."""
    rows, length = texts.tokens.shape
    count = anchors.shape[1]
    out = target.forward(texts.tokens, target.new_cache(rows, length), tap_ids)

    slot = torch.arange(block_size)
    places = anchors[:, :, None] + slot  # [S, A, B]
    in_bounds = places < texts.lengths[:, None, None]
    safe = places.clamp_max(length - 1)
    row = torch.arange(rows)[:, None, None]
    tokens = texts.tokens[row, safe]
    before = texts.tokens[row[..., 0], (anchors - 1).clamp_min(0)]
    previous = torch.cat([before[..., None], tokens[..., :-1]], dim=-1)
    # The target's row at position i speaks about position i + 1.
    probs = out.logits[row, safe[..., :-1]].softmax(-1)

    block_ids = torch.full_like(tokens, mask_id)
    block_ids[..., 0] = tokens[..., 0]
    context = torch.arange(length)
    return BlockBatch(
        taps=out.taps,
        block_ids=block_ids.flatten(1),
        positions=torch.cat([context.expand(rows, -1), places.flatten(1)], dim=1),
        mask=_mask(anchors, length, block_size),
        previous=previous.view(rows * count, block_size),
        labels=tokens[..., 1:].reshape(rows * count, -1),
        valid=(in_bounds[..., 1:] & kept[..., None]).reshape(rows * count, -1),
        target_probs=probs.flatten(0, 1),
    )


def _mask(anchors: torch.Tensor, length: int, block_size: int) -> torch.Tensor:
    rows, count = anchors.shape
    before = torch.arange(length) < anchors[:, :, None]
    context = before.repeat_interleave(block_size, dim=1)
    block = torch.arange(count).repeat_interleave(block_size)
    own = (block[:, None] == block).expand(rows, -1, -1)
    return torch.cat([context, own], dim=-1)[:, None]
