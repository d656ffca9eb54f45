"""The xPress refiner: Fuse, Mix, Trans, Read.

For every slot of a block the refiner returns a bias on the drafter's logits, given
the drafter's hidden states and one *previous token* per slot. It is causal over
slots: the bias of slot k depends on previous tokens 0..k only, which is what lets
parallel Jacobi passes end at the left-to-right answer.

Source of every formula: methods 2.1 and 2.2. Shapes: N rows, B slots, H the
target's hidden size, r the rank, V the vocabulary.
"""

import torch
import torch.nn.functional as F
from torch import nn

from xpress_lab.errors import LabError
from xpress_lab.pretrained import Pretrained
from xpress_lab.products import times_table

# Names inside our modules, and the names that published checkpoints use.
PUBLISHED_NAMES = {
    "fuse.w1.weight": "w1.weight",
    "fuse.down_h.weight": "down_h.weight",
    "fuse.down_g.weight": "down_g.weight",
    "fuse.in_proj.weight": "in_proj.weight",
    "mix.L": "mix.L",
    "trans.gate_proj.weight": "mlp.gate_proj.weight",
    "trans.up_proj.weight": "mlp.up_proj.weight",
    "trans.down_proj.weight": "mlp.down_proj.weight",
    "read.w2.weight": "w2.weight",
}


class Fuse(nn.Module):
    """a_k = in_proj[ down_h h_k ; down_g mean(h) ; w1(t_k) ].

    The first two parts do not depend on tokens: :meth:`hidden_part` is computed
    once per block and reused in every pass.
    """

    def __init__(self, hidden_size: int, inputs: int, rank: int):
        super().__init__()
        self.w1 = nn.Embedding(inputs, rank)
        self.down_h = nn.Linear(hidden_size, rank, bias=False)
        self.down_g = nn.Linear(hidden_size, rank, bias=False)
        self.in_proj = nn.Linear(3 * rank, rank, bias=False)

    def hidden_part(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, B, H]`` to ``[N, B, r]``; the mean runs over all slots, 0 included."""
        of_slot, of_mean, _ = self.in_proj.weight.chunk(3, dim=1)
        mean = hidden.mean(dim=1, keepdim=True)
        slot_part = F.linear(self.down_h(hidden), of_slot)
        return slot_part + F.linear(self.down_g(mean), of_mean)

    def token_part(self, previous: torch.Tensor) -> torch.Tensor:
        """``[N, B]`` token ids to ``[N, B, r]``."""
        return F.linear(self.w1(previous), self.in_proj.weight.chunk(3, dim=1)[2])

    def forward(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return self.hidden_part(hidden) + self.token_part(previous)


class Mix(nn.Module):
    """c_k = a_k + sum over j <= k of L[:, k, j] * a_j, channel by channel."""

    def __init__(self, block_size: int, rank: int):
        super().__init__()
        self.L = nn.Parameter(torch.zeros(rank, block_size, block_size))

    def matrix(self) -> torch.Tensor:
        """``[r, B, B]``: L in its causal triangle, plus the identity."""
        return self.L.tril() + torch.eye(
            self.L.shape[-1], dtype=self.L.dtype, device=self.L.device
        )

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        # As einsum("rkj,njr->nkr"), in a layout that a CPU multiplies at once.
        by_channel = a.permute(2, 1, 0).contiguous()
        return torch.bmm(self.matrix(), by_channel).permute(2, 1, 0)


class Trans(nn.Module):
    """z = c + SwiGLU(c), slot by slot."""

    def __init__(self, rank: int, width: int):
        super().__init__()
        self.gate_proj = nn.Linear(rank, width, bias=False)
        self.up_proj = nn.Linear(rank, width, bias=False)
        self.down_proj = nn.Linear(width, rank, bias=False)

    def forward(self, c: torch.Tensor) -> torch.Tensor:
        return c + self.down_proj(F.silu(self.gate_proj(c)) * self.up_proj(c))


class Read(nn.Module):
    """bias_k = w2 z_k for slots 1..B-1; slot 0 is the anchor and is never read."""

    def __init__(self, rank: int, vocab_size: int):
        super().__init__()
        self.w2 = nn.Linear(rank, vocab_size, bias=False)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.w2(z[:, 1:].contiguous())


class XPressHead(nn.Module, Pretrained):
    """The four modules in order. ``w1``, ``w2`` and the rest start at N(0, std).

    Args:
        hidden_size: H of the drafter.
        vocab_size: tokens that can be drafted.
        inputs: ids that a previous token can have, ``vocab_size`` unless given.
    """

    sequential = False  # decoded by parallel passes

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        block_size: int = 16,
        rank: int = 256,
        mlp_ratio: int = 2,
        std: float = 0.02,
        inputs: int | None = None,
    ):
        super().__init__()
        self.block_size = block_size
        self.fuse = Fuse(hidden_size, inputs or vocab_size, rank)
        self.mix = Mix(block_size, rank)
        self.trans = Trans(rank, mlp_ratio * rank)
        self.read = Read(rank, vocab_size)
        for name, parameter in self.named_parameters():
            if name != "mix.L":  # the mixer starts as the identity
                nn.init.normal_(parameter, std=std)

    def settings(self) -> dict:
        """Sizes."""
        rank = self.mix.L.shape[0]
        return {
            "hidden_size": self.fuse.down_h.in_features,
            "vocab_size": self.read.w2.out_features,
            "block_size": self.block_size,
            "rank": rank,
            "mlp_ratio": self.trans.gate_proj.out_features // rank,
            "inputs": self.fuse.w1.num_embeddings,
        }

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """The part of a block that no token changes: ``[N, B, H]`` to ``[N, B, r]``."""
        return self.fuse.hidden_part(hidden)

    def bias(self, prepared: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """Logit bias ``[N, B-1, V]`` of slots 1..B-1.

        Args:
            prepared: from :meth:`prepare`.
            previous: ``[N, B]`` ids, the token before each slot; entry 0 is the
                token before the anchor, entry 1 the anchor.
        """
        a = prepared + self.fuse.token_part(previous)
        return self.read(self.trans(self.mix(a)))

    def forward(self, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        return self.bias(self.prepare(hidden), previous)

    def fold(self) -> "FoldedXPressHead":
        """The same function, rearranged for inference. The head itself stays raw."""
        return FoldedXPressHead(self)

    def published_state(self) -> dict[str, torch.Tensor]:
        """State dict under the published names, with the raw mixer."""
        state = self.state_dict()
        return {public: state[ours] for ours, public in PUBLISHED_NAMES.items()}

    def load_published_state(self, state: dict[str, torch.Tensor]) -> None:
        """Strictly load a state dict with published names."""
        missing = set(PUBLISHED_NAMES.values()) - set(state)
        extra = set(state) - set(PUBLISHED_NAMES.values())
        if missing or extra:
            raise LabError(
                f"xPress head: missing tensors {sorted(missing)}, "
                f"unexpected tensors {sorted(extra)}."
            )
        self.load_state_dict({k: state[v] for k, v in PUBLISHED_NAMES.items()})


class FoldedXPressHead:
    """An xPress head with everything linear before Trans multiplied out.

    Mix is linear, so mix(hidden part + token part) = mix(hidden part) + mix(token
    part): the first is prepared once a block. down_h, down_g and w1 are multiplied
    with their blocks of in_proj; w1 becomes a ``[V, r]`` table, so a pass begins with
    a single gather. Equal to the head it came from up to rounding; a new object, so
    nothing can be folded twice.
    """

    sequential = False

    @torch.no_grad()
    def __init__(self, head: XPressHead):
        fuse, trans = head.fuse, head.trans
        of_slot, of_mean, of_token = fuse.in_proj.weight.chunk(3, dim=1)
        self.from_slot = of_slot @ fuse.down_h.weight
        self.from_mean = of_mean @ fuse.down_g.weight
        self.table = fuse.w1.weight @ of_token.T
        # Rows 1..B-1 of the folded mixer, channels last: [B-1, B, r].
        self.mixer = head.mix.matrix()[:, 1:].permute(1, 2, 0).contiguous()
        self.gate_up = torch.cat([trans.gate_proj.weight, trans.up_proj.weight])
        self.down = trans.down_proj.weight.detach()
        self.w2 = head.read.w2.weight.detach()
        self.block_size = head.block_size

    def prepare(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mixed hidden part of slots 1..B-1: ``[N, B, H]`` to ``[N, B-1, r]``."""
        mean = hidden.mean(dim=1, keepdim=True)
        of_slots = F.linear(hidden, self.from_slot)
        return self._mix(of_slots + F.linear(mean, self.from_mean))

    def bias(
        self, prepared: torch.Tensor, previous: torch.Tensor, first: int = 0
    ) -> torch.Tensor:
        """Logit bias ``[N, B-1-first, V]`` of the drafts from ``first`` on (0-based);
        other arguments as in :meth:`XPressHead.bias`."""
        return times_table(self.latent(prepared, previous, first), self.w2)

    def latent(
        self, prepared: torch.Tensor, previous: torch.Tensor, first: int = 0
    ) -> torch.Tensor:
        """What w2 reads, ``[N, B-1-first, r]``; arguments as in :meth:`bias`."""
        mixed = self._mix(F.embedding(previous, self.table), first)
        return self._trans(prepared[:, first:] + mixed)

    def bias_after(self, prepared: torch.Tensor, previous: torch.Tensor):
        """Bias ``[F, V]`` of a single slot after each of F paths of the same block.

        Args:
            prepared: ``[1, B-1, r]`` from :meth:`prepare`, shared by all paths.
            previous: ``[F, k + 2]`` ids: the token before the anchor, the anchor, and
                k drafts. The slot is the one after them.
        """
        seen = previous.shape[1]
        mixer = self.mixer[seen - 2, :seen]
        mixed = (mixer * F.embedding(previous, self.table)).sum(dim=1)
        return F.linear(self._trans(prepared[:, seen - 2] + mixed), self.w2)

    def _trans(self, c: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(c, self.gate_up).chunk(2, dim=-1)
        return c + F.linear(F.silu(gate) * up, self.down)

    def _mix(self, a: torch.Tensor, first: int = 0) -> torch.Tensor:
        # A product and a sum beat r tiny matrix products on a CPU.
        return (self.mixer[first:] * a[:, None]).sum(dim=2)
