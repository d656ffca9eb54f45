"""DSpark's Markov heads: vanilla, gated and RNN (methods 3).

With u = W1[x_{k-1}], the vector of the token before slot k, and h_k the drafter's
hidden state there, the logits of slot k get the bias

* vanilla: W2 u;
* gated: W2 (g * u), g = sigmoid(gate_proj [h_k ; u]);
* RNN: W2 tanh(o), with (s, c, o) = joint_proj [state ; u ; h_k] and then
  state <- sigmoid(s) * state + (1 - sigmoid(s)) * tanh(c), zero before the first slot.

Each needs the *drafted* previous token, so a block takes B - 1 serial steps. Given
all previous tokens, as in training, the biases of a block come at once.

Shapes: N rows, B slots, H the target's hidden size, r the rank, V the vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import nn

from xpress_lab.pretrained import Pretrained


class MarkovHead(nn.Module, Pretrained):
    """The vanilla head, a low-rank bigram bias. Parameter names are published ones.

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
        for weight in (self.markov_w1.weight, self.markov_w2.weight):
            nn.init.normal_(weight, std=std)

    @property
    def rank(self) -> int:
        return self.markov_w1.embedding_dim

    @property
    def w2(self) -> torch.Tensor:
        """The read-out table ``[V, r]``, as a folded xPress head calls it."""
        return self.markov_w2.weight

    def settings(self) -> dict:
        """Sizes."""
        return {
            "vocab_size": self.markov_w2.out_features,
            "rank": self.rank,
            "inputs": self.markov_w1.num_embeddings,
        }

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """What no token changes, ``[N, B, H]`` to ``[N, B, ?]``: here, nothing."""
        return hidden[..., :0]

    def step(
        self,
        prepared: torch.Tensor,
        previous: torch.Tensor,
        state: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """One slot, left to right.

        Args:
            prepared: the slot's row of :meth:`prepare`, ``[N, ?]``.
            previous: ``[N]`` ids of the tokens before the slot.
            state: what the step before returned, ``None`` at the first.

        Returns:
            Bias ``[N, V]``, and the state for the next step.
        """
        latent, state = self.latent(prepared, self.markov_w1(previous), state)
        return self.markov_w2(latent), state

    def bias(self, prepared: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Bias of slots 1..B-1 at once, ``[N, B-1, V]``, for given ``[N, B]`` ids.

        Same signature as the xPress head's, so that it can be trained with
        teacher-forced tokens or solved by Jacobi passes too.
        """
        latent = self.latents(prepared[:, 1:], self.markov_w1(previous[:, 1:]))
        return self.markov_w2(latent)

    def latent(self, prepared, before, state):
        """What W2 reads, ``[..., r]``, from the token before; and the new state."""
        return before, None

    def latents(self, prepared: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """:meth:`latent` of S slots, ``[N, S, r]``."""
        return self.latent(prepared, before, None)[0]

    def forward(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return self.bias(self.prepare(hidden), previous)

    def fold(self) -> "MarkovHead":
        """Nothing to rearrange; offered so that every head is used alike."""
        return self


class GatedMarkovHead(MarkovHead):
    """The hidden state decides, channel by channel, how much of the token counts."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int = 256, **options):
        super().__init__(vocab_size, rank, **options)
        self.gate_proj = nn.Linear(hidden_size + rank, rank)
        start_small(self.gate_proj, options.get("std", 0.02))

    def settings(self) -> dict:
        hidden_size = self.gate_proj.in_features - self.rank
        return super().settings() | {"hidden_size": hidden_size}

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """The gate's hidden part, ``[N, B, r]``."""
        of_hidden = self.gate_proj.weight[:, : -self.rank]
        return F.linear(hidden, of_hidden, self.gate_proj.bias)

    def latent(self, prepared, before, state):
        of_token = self.gate_proj.weight[:, -self.rank :]
        gate = torch.sigmoid(prepared + F.linear(before, of_token))
        return gate * before, None


class RNNMarkovHead(MarkovHead):
    """A gated state carries the drafts so far, not the last one alone."""

    def __init__(self, vocab_size: int, hidden_size: int, rank: int = 256, **options):
        super().__init__(vocab_size, rank, **options)
        self.joint_proj = nn.Linear(2 * rank + hidden_size, 3 * rank)
        start_small(self.joint_proj, options.get("std", 0.02))

    def settings(self) -> dict:
        hidden_size = self.joint_proj.in_features - 2 * self.rank
        return super().settings() | {"hidden_size": hidden_size}

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """The hidden part of s, c and o, ``[N, B, 3r]``."""
        of_hidden = self.joint_proj.weight[:, 2 * self.rank :]
        return F.linear(hidden, of_hidden, self.joint_proj.bias)

    def latent(self, prepared, before, state):
        state = torch.zeros_like(before) if state is None else state
        of_both = self.joint_proj.weight[:, : 2 * self.rank]
        joint = prepared + F.linear(torch.cat([state, before], dim=-1), of_both)
        keep, candidate, out = joint.chunk(3, dim=-1)
        keep = torch.sigmoid(keep)
        return torch.tanh(out), keep * state + (1 - keep) * torch.tanh(candidate)

    def latents(self, prepared: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Slot by slot, as the state demands; W2 still reads them all at once."""
        state, rows = None, []
        for k in range(before.shape[1]):
            latent, state = self.latent(prepared[:, k], before[:, k], state)
            rows.append(latent)
        return torch.stack(rows, dim=1)


def start_small(linear: nn.Linear, std: float) -> None:
    """Normal weights, no bias: how the other tensors of a head start."""
    nn.init.normal_(linear.weight, std=std)
    nn.init.zeros_(linear.bias)
