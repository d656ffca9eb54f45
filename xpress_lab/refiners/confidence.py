"""DSpark's confidence head: how likely is it that the target keeps a draft?

One linear map on [h_k ; W1[x_{k-1}]], or on h_k alone (methods 3). A proposal is cut
before the first slot that seems unlikely, so that the target verifies no more than
pays. The cut before slot k depends on drafts before k only, never on draft k itself:
that is what keeps it lossless at T > 0.
"""

import torch
from torch import nn

from xpress_lab.errors import LabError
from xpress_lab.pretrained import Pretrained


class ConfidenceHead(nn.Module, Pretrained):
    """Acceptance logit of each drafted slot.

    Args:
        hidden_size: H of the drafter.
        rank: r of the Markov head whose token vectors are read too; 0: none are.
    """

    def __init__(self, hidden_size: int, rank: int = 0):
        super().__init__()
        self.rank = rank
        self.proj = nn.Linear(hidden_size + rank, 1)

    def settings(self) -> dict:
        """Sizes."""
        hidden_size = self.proj.in_features - self.rank
        return {"hidden_size": hidden_size, "rank": self.rank}

    def forward(
        self, hidden: torch.Tensor, previous: torch.Tensor, head: nn.Module | None
    ) -> torch.Tensor:
        """Logits ``[N, S]``; no gradient flows into drafter or head.

        Args:
            hidden: ``[N, S, H]`` drafter states of the drafted slots.
            previous: ``[N, S]`` draft ids of the tokens before them.
            head: the Markov head that owns W1; not read with rank 0.
        """
        if self.rank:
            hidden = torch.cat([hidden, head.markov_w1(previous)], dim=-1)
        return self.proj(hidden.detach()).squeeze(-1)


def leading_sure(logits: torch.Tensor, threshold: float) -> list[int]:
    """How many drafts of each row to verify: up to the first slot below ``threshold``.

    Args:
        logits: ``[N, S]``.
        threshold: of the probability; 0 keeps all.
    """
    sure = torch.sigmoid(logits) >= threshold
    return sure.long().cumprod(dim=1).sum(dim=1).tolist()


def check_threshold(threshold: float, confidence: ConfidenceHead | None) -> float:
    """Raise unless it is a probability, and 0 where no confidence head is."""
    if not 0 <= threshold <= 1:
        raise LabError(f"The confidence threshold must lie in 0..1, not {threshold}.")
    if threshold and confidence is None:
        raise LabError(
            f"A confidence threshold of {threshold} needs a confidence head, "
            "and these weights have none: use 0."
        )
    return threshold


def check_costs(costs, confidence: ConfidenceHead | None):
    """Raise where a schedule has nobody to ask how likely drafts are."""
    if costs is not None and confidence is None:
        raise LabError(
            "A schedule of drafts needs a confidence head, and these weights have none."
        )
    return costs
