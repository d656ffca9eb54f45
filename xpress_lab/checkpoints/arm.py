"""An arm: a drafter and whatever was trained beside it."""

from dataclasses import dataclass

import torch
from torch import nn

from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.drafters.eagle import EagleDrafter
from xpress_lab.refiners.confidence import ConfidenceHead
from xpress_lab.refiners.markov import GatedMarkovHead, MarkovHead, RNNMarkovHead
from xpress_lab.refiners.xpress import XPressHead

# Our names of DSpark's heads, and the published ``markov_head_type``.
MARKOV_TYPES = {"markov": "vanilla", "markov-gated": "gated", "markov-rnn": "rnn"}


@dataclass
class Arm:
    """A drafter with the head that was trained beside it (``None`` for dflash and
    for eagle, whose drafter is an :class:`EagleDrafter`).

    draft_ids: ``[D]`` target ids that may be drafted, ``None`` for all of them.
    confidence: the head that says which drafts are worth verifying, if there is one.
    """

    kind: str
    drafter: DFlashDrafter | EagleDrafter
    head: nn.Module | None = None
    draft_ids: torch.Tensor | None = None
    confidence: ConfidenceHead | None = None

    def modules(self) -> list[nn.Module]:
        """Drafter, head and confidence head, those that there are."""
        parts = (self.drafter, self.head, self.confidence)
        return [part for part in parts if part is not None]


def new_head(
    kind: str,
    drafter: DFlashConfig,
    rank: int,
    mlp_ratio: int = 2,
    draft_ids: torch.Tensor | None = None,
) -> nn.Module | None:
    """An untrained head for a drafter of these sizes; ``None`` for dflash."""
    sizes = head_sizes(drafter.vocab_size, draft_ids) | {"rank": rank}
    if kind == "markov":
        return MarkovHead(**sizes)
    if kind == "markov-gated":
        return GatedMarkovHead(hidden_size=drafter.hidden_size, **sizes)
    if kind == "markov-rnn":
        return RNNMarkovHead(hidden_size=drafter.hidden_size, **sizes)
    if kind == "xpress":
        return XPressHead(
            drafter.hidden_size,
            block_size=drafter.block_size,
            mlp_ratio=mlp_ratio,
            **sizes,
        )
    return None


def head_sizes(vocab_size: int, draft_ids: torch.Tensor | None) -> dict[str, int]:
    """``vocab_size`` and ``inputs`` of a head: one more input stands for any other
    token where a draft vocabulary limits what can be drafted."""
    if draft_ids is None:
        return {"vocab_size": vocab_size, "inputs": vocab_size}
    return {"vocab_size": len(draft_ids), "inputs": len(draft_ids) + 1}
