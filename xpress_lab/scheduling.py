"""How many drafts to verify: what they are worth against what their rows cost.

A confidence head says how likely each draft is to be kept once it is reached. The
product of these up to draft k, its *survival*, is how likely it is to be emitted. A
round that sends n drafts of each of N texts takes about

    base + text * N + draft * N * n    seconds,

so one more draft of every text brings the sum of their survivals and costs draft * N.
Tokens over time, in the long run, are most if a draft is sent while it brings more per
second than the whole has lately brought (renewal reward). The rate grows with the
batch, and proposals become shorter: long when idle, short when full (methods 3).

Rows that share a call are padded to the longest, so a batch has one length for all.

**Nothing is lost.** Whether draft k is sent depends on drafts before k, through the
confidences up to it; on other rows; and on earlier rounds. It never depends on draft k
itself. Times are those of the model above, so a seed gives the same text anywhere.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

FORGETTING = 0.9  # weight of a round in the rate, relative to the round after it


class RoundCosts(NamedTuple):
    """Seconds of a round: its own, and those of a text and of a draft."""

    base: float
    text: float
    draft: float

    def of(self, texts: int, drafts: int) -> float:
        """Seconds of a round that verifies so many drafts of each of so many texts."""
        return self.base + self.text * texts + self.draft * texts * drafts


class Schedule:
    """One length a round, for the texts of one batch."""

    def __init__(self, costs: RoundCosts):
        self.costs = costs
        self.starts: list[int] | None = None
        self.tokens = self.seconds = 0.0

    def counts(self, logits: torch.Tensor, starts: Sequence[int]) -> list[int]:
        """How many drafts of each row to verify.

        Args:
            logits: ``[N, S]`` of the confidence head.
            starts: where each row's anchor stands; how far they have moved since the
                last call is what that round emitted.
        """
        rows, before = len(logits), self.starts
        if before is not None:
            self.tokens += sum(starts) - sum(before)
        self.starts = list(starts)
        survival = logits.double().sigmoid().cumprod(dim=1).mean(dim=0)
        length = int((survival >= self.rate(rows) * self.costs.draft).sum())
        self.tokens *= FORGETTING
        self.seconds = FORGETTING * self.seconds + self.costs.of(rows, length)
        return [length] * rows

    def rate(self, texts: int) -> float:
        """Tokens a second of late; before the first round, those of a bare one."""
        if not self.seconds:
            return texts / self.costs.of(texts, 0)
        return self.tokens / self.seconds

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Let the other rows go; what those emitted in their last round is not seen."""
        if self.starts is not None:
            self.starts = [self.starts[row] for row in rows]
