"""q, the law that drafts were drawn from, kept only as far as acceptance asks for it.

Acceptance asks two things: how likely each draft was, and, at one slot of each row, the
whole law, for a draft that is refused there is replaced by a draw from p - q. So q need
not stand there as a table of N x S x V floats. Three ways to keep it:

* :class:`OneHot`: the draft was chosen outright;
* :class:`Tabled`: a table over the draft vocabulary, which was at hand anyway;
* :class:`ReadOut`: the drafts' own chances, noted when they were chosen, and what it
  takes to make the law of one slot again: a read of w2. (Whether a draft is refused at
  all is known on the device only, so it is made in every round.)

Shapes: N rows, S drafted slots, V vocabulary, D draft vocabulary, r rank.
"""

from types import ModuleType
from typing import NamedTuple, Protocol

import torch

from xpress_lab.borrowed import Borrowed


class DraftLaw(Protocol):
    """q in the target's ids."""

    def of(self, drafts: torch.Tensor) -> torch.Tensor:
        """How likely the drafts were, ``[N, S]`` to ``[N, S]``: those that were drawn,
        or the first few of them."""

    def at(self, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """The whole law at one slot of each row, ``[N]`` and ``[N]`` to ``[N, V]``."""


class OneHot(NamedTuple):
    """All mass on the drafts ``[N, S]``; V is ``vocab_size``."""

    drafts: torch.Tensor
    vocab_size: int
    dtype: torch.dtype

    def of(self, drafts: torch.Tensor) -> torch.Tensor:
        return (drafts == self.drafts).to(self.dtype)

    def at(self, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        chosen = self.drafts[rows, slots][:, None]
        law = torch.zeros(
            len(rows), self.vocab_size, dtype=self.dtype, device=chosen.device
        )
        return law.scatter_(1, chosen, 1.0)


class Tabled(NamedTuple):
    """table: ``[N, S, D]`` probabilities. borrowed: whose draft ids they are over;
    ``None`` where D is V."""

    table: torch.Tensor
    borrowed: Borrowed | None = None

    def of(self, drafts: torch.Tensor) -> torch.Tensor:
        ids = drafts if self.borrowed is None else self.borrowed.to_draft(drafts)
        return self.table.gather(2, ids[..., None]).squeeze(2)

    def at(self, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        law = self.table[rows, slots]
        return law if self.borrowed is None else self.borrowed.spread(law)


class ReadOut(NamedTuple):
    """The law of a block that kernels chose with noise.

    log_q: ``[N, S]`` of the drafts, and of no other tokens. base: ``[N, S, D]``
    logits. w2, z: ``[D, r]`` and ``[N, S, r]``, ``None`` without a head. It is to be
    asked before the next block is drafted, which reuses the memory of this one.
    """

    borrowed: Borrowed
    kernels: ModuleType
    temperature: float
    log_q: torch.Tensor
    base: torch.Tensor
    w2: torch.Tensor | None
    z: torch.Tensor | None

    def of(self, drafts: torch.Tensor) -> torch.Tensor:
        return self.log_q[:, : drafts.shape[1]].exp()

    def at(self, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        z = None if self.z is None else self.z[rows, slots]
        with torch.cuda.device_of(self.base):  # where kernels are launched
            scores = self.kernels.scores(self.base[rows, slots], self.w2, z)
        return self.borrowed.spread((scores / self.temperature).softmax(-1))


def law_of(
    q: DraftLaw | torch.Tensor | None, drafts: torch.Tensor, p: torch.Tensor
) -> DraftLaw:
    """What acceptance asks: a law as it is, ``[N, S, V]`` probabilities as a table,
    and ``None`` as all mass on the drafts."""
    if q is None:
        return OneHot(drafts, p.shape[-1], p.dtype)
    return Tabled(q) if isinstance(q, torch.Tensor) else q
