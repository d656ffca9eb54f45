"""How many drafts to verify: what they are worth against what their rows cost.

A confidence head says how likely each draft is to be kept once it is reached. The
product of these up to draft k, its *survival*, is how likely it is to be emitted. A
round that sends n drafts of each of N texts takes about

    base + text * N + draft * N * n    seconds,

so one more draft of every text brings the sum of their survivals and costs draft * N.
Tokens over time, in the long run, are most if a draft is sent while it brings more per
second than rounds of late have brought (renewal reward). The rate grows with the
batch, and proposals become shorter: long when idle, short when full (methods 3).

Rows that share a call are padded to the longest, so a batch has one length for all.

**Nothing is lost.** Whether draft k is sent depends on drafts before k, through the
confidences up to it; on other rows; and on earlier rounds. It never depends on draft k
itself. Given the costs, lengths do not depend on the clock; but other costs, or other
neighbours in the batch, may draw another text at T > 0, from the same law.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

FORGETTING = 0.9  # weight of a round in the means, relative to the round after it


class RoundCosts(NamedTuple):
    """Seconds of a round: its own, and those of a text and of a draft."""

    base: float
    text: float
    draft: float

    def of(self, texts: int, drafts: float) -> float:
        """Seconds of a round that verifies so many drafts of each of so many texts."""
        return self.base + self.text * texts + self.draft * texts * drafts


class Schedule:
    """One length a round, for the texts of one batch.

    tokens and rounds: what texts emitted lately, and in how many rounds of a text.
    length: the usual one lately.
    """

    def __init__(self, costs: RoundCosts):
        self.costs = costs
        self.starts: list[int] | None = None
        self.tokens = self.rounds = self.length = 0.0

    def counts(self, logits: torch.Tensor, starts: Sequence[int]) -> list[int]:
        """How many drafts of each row to verify.

        Args:
            logits: ``[N, S]`` of the confidence head.
            starts: where each row's anchor stands; how far it has moved since the last
                call is what that round emitted.
        """
        rows = len(logits)
        if self.starts is not None:
            moved = sum(starts) - sum(self.starts)
            self.tokens = FORGETTING * self.tokens + moved
            self.rounds = FORGETTING * self.rounds + rows
        survival = logits.double().sigmoid().cumprod(dim=1).mean(dim=0)
        length = int((survival >= self.rate(rows) * self.costs.draft).sum())
        kept = FORGETTING if self.starts is not None else 0.0
        self.length = kept * self.length + (1 - kept) * length
        self.starts = list(starts)
        return [length] * rows

    def rate(self, texts: int) -> float:
        """Tokens a second of a batch of this size, by the yield and the length of late;
        before the first round, of rounds without drafts."""
        each = self.tokens / self.rounds if self.rounds else 1.0
        return texts * each / self.costs.of(texts, self.length)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Let the other rows go. What those emitted in their last round is not seen."""
        if self.starts is not None:
            self.starts = [self.starts[row] for row in rows]
