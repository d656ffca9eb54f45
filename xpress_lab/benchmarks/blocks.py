"""Real blocks for a closer look: what the head was given, and what it was asked."""

from typing import NamedTuple

import torch

from xpress_lab.block_method import BlockDrafting
from xpress_lab.decoding import decode
from xpress_lab.lab import Lab


class Blocks(NamedTuple):
    """N blocks of real texts.

    hidden: ``[N, B, H]`` the drafter's. base: ``[N, S, D]`` its logits. previous:
    ``[N, B]`` the token before each slot in the drafted block, as draft ids; entry 0
    stands before the anchor, entry 1 is the anchor. drafts: ``[N, S]`` draft ids.
    """

    hidden: torch.Tensor
    base: torch.Tensor
    previous: torch.Tensor
    drafts: torch.Tensor


class _Watching(BlockDrafting):
    """Remembers what it drafted from."""

    def __init__(self, method, capacity, seen):
        super().__init__(method, capacity)
        self.seen = seen

    def draft(self, request):
        hidden, base = super().draft(request)
        self.seen.append((hidden, base, request.before_anchor))
        return hidden, base


def real_blocks(
    lab: Lab, prompts: list[str], kind: str = "xpress", max_new_tokens: int = 128
) -> Blocks:
    """All blocks of the greedy answers to some prompts, drafted by a block method."""
    method, seen, blocks = lab.method(kind), [], []
    method.begin = lambda capacity: _Watching(method, capacity, seen)
    for prompt in prompts:
        text = decode(
            lab.target, method, lab.target.encode(prompt), max_new_tokens=max_new_tokens
        )
        blocks += [r.block for r in text.rounds]
    hidden, base, before = (torch.cat(parts) for parts in zip(*seen, strict=True))
    block = method.borrowed.to_draft(torch.tensor(blocks, device=hidden.device))
    before = method.borrowed.to_draft(before)
    previous = torch.cat([before[:, None], block[:, :-1]], dim=1)
    return Blocks(hidden, base, previous, block[:, 1:])
