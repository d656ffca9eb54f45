"""What a drafter borrows from its target: embeddings, and rows of the output head.

A drafter may be allowed only some of the target's tokens, its *draft vocabulary*
(as in EAGLE-3 and speculators). Reading out and refining then cost less in
proportion, and nothing is lost: the target still verifies over its whole vocabulary,
a token that the drafter cannot say is merely one that it never gets right.

Heads and solver speak draft ids, 0..D-1, with D for "any other token" (which can be
a previous token, never a draft). Without a draft vocabulary the two kinds agree.
"""

import torch
import torch.nn.functional as F

from xpress_lab.errors import LabError
from xpress_lab.packed import PackedLinear
from xpress_lab.target import Target


class Borrowed:
    """A target's tables as one drafter sees them.

    Args:
        draft_ids: ``[D]`` int64 target ids, strictly increasing, or ``None`` for all.
    """

    def __init__(self, target: Target, draft_ids: torch.Tensor | None = None):
        self.target, self.draft_ids, self.packed = target, draft_ids, None
        if draft_ids is None:
            return
        check_draft_ids(draft_ids, target.vocab_size)
        self.draft_ids = draft_ids.to(target.device)
        self.weight, self.bias = target.head_rows(self.draft_ids)
        count = len(draft_ids)
        self.index = torch.full((target.vocab_size,), count, device=target.device)
        self.index[self.draft_ids] = torch.arange(count, device=target.device)

    @property
    def vocab_size(self) -> int:
        """D: how many tokens can be drafted."""
        ids = self.draft_ids
        return self.target.vocab_size if ids is None else len(ids)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings ``[..., H]`` of *target* ids."""
        return self.target.embed(tokens)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[..., H]`` to logits over draft ids, ``[..., D]``."""
        if self.draft_ids is None:
            return self.target.head(hidden)
        if self.packed is not None:
            return self.packed(hidden)
        return F.linear(hidden, self.weight, self.bias)

    def pack(self) -> None:
        """Pack the rows for inference; see :mod:`xpress_lab.packed`."""
        if self.draft_ids is not None:
            self.packed = PackedLinear(self.weight, self.bias)

    def to_draft(self, tokens: torch.Tensor) -> torch.Tensor:
        """Target ids to draft ids; D where the drafter has no such token."""
        return tokens if self.draft_ids is None else self.index[tokens]

    def to_target(self, drafts: torch.Tensor) -> torch.Tensor:
        """Draft ids to target ids."""
        return drafts if self.draft_ids is None else self.draft_ids[drafts]

    def spread(self, q: torch.Tensor | None) -> torch.Tensor | None:
        """Probabilities over draft ids to probabilities over target ids."""
        if q is None or self.draft_ids is None:
            return q
        whole = q.new_zeros((*q.shape[:-1], self.target.vocab_size))
        whole[..., self.draft_ids] = q
        return whole


def check_draft_ids(draft_ids: torch.Tensor, vocab_size: int) -> None:
    """Raise unless the ids are strictly increasing and inside the vocabulary."""
    rising = bool((draft_ids[1:] > draft_ids[:-1]).all()) if len(draft_ids) else False
    if not rising or draft_ids[0] < 0 or draft_ids[-1] >= vocab_size:
        raise LabError(
            f"A draft vocabulary must list ids of 0..{vocab_size - 1}, each once and "
            "in rising order; this one does not."
        )
