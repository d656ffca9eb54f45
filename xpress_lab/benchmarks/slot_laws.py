"""What may stand in each slot of a real block: three laws beside each other.

* the drafter's **marginal**: it knows the text so far and no draft at all;
* the law after a **refinement** pass: it also knows the drafts to the left, as the
  pass before left them;
* the **target's** own law, given the very same drafts.
"""

from typing import NamedTuple

import torch

from xpress_lab.block_method import BlockMethod
from xpress_lab.decoding import Generation
from xpress_lab.errors import LabError
from xpress_lab.methods import Request
from xpress_lab.target import Target


class SlotLaws(NamedTuple):
    """The laws of one block with S slots, drafted in P passes; all at T = 1.

    marginal: ``[S, V]``. refined, target: ``[P, S, V]``, entry p - 1 after pass p,
    given the drafts of pass p - 1. trace: the drafts of passes 0..P. anchor: the
    token before slot 1. Probabilities are over the target's ids.
    """

    marginal: torch.Tensor
    refined: torch.Tensor
    target: torch.Tensor
    trace: list[list[int]]
    anchor: int

    @property
    def passes(self) -> int:
        return len(self.refined)

    @property
    def slots(self) -> int:
        return len(self.marginal)

    def given(self, slot: int, step: int) -> list[int]:
        """Anchor and drafts that pass ``step`` reads for a slot; both from 1."""
        return [self.anchor, *self.trace[step - 1][: slot - 1]]


@torch.inference_mode()
def slot_laws(
    target: Target, method: BlockMethod, text: Generation, number: int
) -> SlotLaws:
    """Draft round ``number`` (0-based) of a text again, and keep what was thought.

    Args:
        method: the one that drafted the text, with a parallel head.
        text: with its trace.
    """
    chosen = text.rounds[number]
    if method.head is None or method.head.sequential or len(chosen.trace) < 2:
        raise LabError(
            f"Only a block refined in passes has laws to compare; round {number} of "
            f"this text by {method.name} has none: use xpress with keep_trace=True."
        )
    device, borrowed = target.device, method.borrowed
    ids = [*text.prompt, *text.tokens]
    start = len(text.prompt) + sum(r.emitted for r in text.rounds[:number])
    before, anchor = (torch.tensor([ids[start - n]], device=device) for n in (1, 0))

    context = torch.tensor([ids[:start]], device=device)
    cache = target.new_cache(1, start)
    taps = target.forward(context, cache, method.tap_ids, last_only=True).taps
    fresh = torch.cat([context[:, 1:], anchor[:, None]], dim=1)
    drafting = method.begin(start + method.block_size)
    hidden, base = drafting.draft(Request(anchor, before, taps, start, fresh))

    trace = torch.tensor(chosen.trace, device=device)
    passes, slots = len(trace) - 1, trace.shape[1]
    seen = torch.cat([anchor.expand(passes)[:, None], trace[:-1]], dim=1)
    previous = torch.cat([before.expand(passes)[:, None], seen[:, :-1]], dim=1)
    prepared = method.head.prepare(hidden).expand(passes, -1, -1)
    refined = base + method.head.bias(prepared, borrowed.to_draft(previous))

    whole = torch.cat([context.expand(passes, -1), seen[:, :-1]], dim=1)
    cache = target.new_cache(passes, whole.shape[1])
    own = target.forward(whole, cache).logits[:, -slots:]
    law = lambda logits: logits.float().softmax(-1)  # noqa: E731
    return SlotLaws(
        borrowed.spread(law(base[0, :slots])),
        borrowed.spread(law(refined[:, :slots])),
        law(own),
        chosen.trace,
        int(anchor),
    )


def distance(law: torch.Tensor, other: torch.Tensor) -> float:
    """Total variation: half the summed difference of two laws ``[V]``."""
    return float((law - other).abs().sum() / 2)


def most_telling(laws: SlotLaws) -> tuple[int, int]:
    """Slot and pass (both from 1) at which refining brought the law closest to the
    target's, compared with the marginal."""
    before = (laws.marginal - laws.target).abs().sum(-1)
    after = (laws.refined - laws.target).abs().sum(-1)
    best = int((before - after).argmax())
    return best % laws.slots + 1, best // laws.slots + 1
