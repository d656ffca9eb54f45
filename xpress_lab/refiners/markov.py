"""DSpark's vanilla Markov head: the previous token alone biases the next.

logits_k = base_k + W2 W1[x_{k-1}] (methods 3). It needs the *drafted* previous
token, so a block takes B - 1 serial steps.
"""

import torch
from torch import nn


class MarkovHead(nn.Module):
    """Low-rank bigram bias. Parameter names are the published ones.

    Args:
        vocab_size: tokens that can be drafted.
        inputs: ids that a previous token can have, ``vocab_size`` unless given.
    """

    sequential = True  # decoded left to right

    def __init__(
        self,
        vocab_size: int,
        rank: int = 256,
        std: float = 0.02,
        inputs: int | None = None,
    ):
        super().__init__()
        self.markov_w1 = nn.Embedding(inputs or vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=std)

    def prepare(self, hidden: torch.Tensor) -> None:
        """Nothing: this head does not read the drafter's hidden states."""
        return None

    def step(self, previous: torch.Tensor) -> torch.Tensor:
        """Bias of one slot: ``[N]`` previous ids to ``[N, V]``."""
        return self.markov_w2(self.markov_w1(previous))

    def bias(self, prepared: None, previous: torch.Tensor) -> torch.Tensor:
        """Bias of slots 1..B-1 at once, ``[N, B-1, V]``, for given ``[N, B]`` ids.

        Same signature as the xPress head's, so that it can be trained with
        teacher-forced tokens or solved by Jacobi passes too.
        """
        return self.step(previous[:, 1:])

    def forward(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return self.bias(None, previous)

    def fold(self) -> "MarkovHead":
        """Nothing to rearrange; offered so that every head is used alike."""
        return self
