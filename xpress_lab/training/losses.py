"""The loss of a drafter and its heads (methods 2.6).

Every term is the same distance between a block of logits and the truth, a weighted
mean over slots of cross-entropy with the data and L1 distance to the target's
distribution. The terms differ in where the logits come from:

1-2. *teacher-forced* (CE and TV parts): the head is given the true previous tokens;
3. *consistency*: the head is given its own earlier argmax, as in inference;
4. *anchor*: the drafter's bare logits, so that the seed of the passes stays good.

A confidence head adds a loss of its own (methods 3), which moves nothing else.
"""

import torch
import torch.nn.functional as F

from xpress_lab.argmax import first_argmax
from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm
from xpress_lab.presets import ArmRecipe
from xpress_lab.training.blocks import BlockBatch


def slot_weights(slots: int, gamma: float) -> torch.Tensor:
    """``exp(-(k - 1) / gamma)`` for k = 1..S: early slots decide acceptance."""
    return torch.exp(-torch.arange(slots) / gamma)


def block_distance(
    logits: torch.Tensor, batch: BlockBatch, recipe: ArmRecipe
) -> torch.Tensor:
    """Weighted mean over slots of ce * CE + l1 * |q - p|_1, a scalar.

    q is the law of ``logits``, p the target's. |.|_1 is twice the total variation
    distance, so l1 = 0.9 weighs TV by 1.8; 1 - TV is the probability that rejection
    sampling keeps the slot.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    weight = slot_weights(logits.shape[1], recipe.gamma).to(logits.device)
    weight = weight * batch.valid
    weight = (weight / weight.sum().clamp_min(1e-9))[..., None].to(logits.dtype)
    return Distance.apply(
        logits,
        batch.target_probs,
        batch.labels[..., None],
        recipe.ce_weight * weight,
        recipe.l1_weight * weight,
    )


class Distance(torch.autograd.Function):
    """sum over slots of ce * CE + l1 * |q - p|_1, its gradient found on the way.

    With s = sign(q - p), the gradient at logit v is

        ce * (q_v - [v is the label]) + l1 * q_v * (s_v - sum over u of q_u s_u).

    Writing it down takes a little over half of autograd's time, which is the largest
    part of a step that is no matrix product. Shapes: ``[N, S, V]``; labels and the two
    weights ``[N, S, 1]``.
    """

    @staticmethod
    def forward(ctx, logits, p, label, ce, l1):
        log_q = logits.log_softmax(-1)
        total = -(ce * log_q.gather(-1, label)).sum()
        q = log_q.exp_()
        gap = q - p
        total += (l1 * gap.norm(1, dim=-1, keepdim=True)).sum()
        signed = gap.sign_().mul_(q)
        level = ce - l1 * signed.sum(-1, keepdim=True)
        gradient = q.mul_(level).addcmul_(signed, l1)
        ctx.save_for_backward(gradient.scatter_add_(-1, label, -ce))
        return total

    @staticmethod
    def backward(ctx, scale):
        (gradient,) = ctx.saved_tensors
        return gradient * scale, None, None, None, None


def arm_loss(
    arm: Arm,
    borrowed: Borrowed,
    batch: BlockBatch,
    recipe: ArmRecipe,
    generator: torch.Generator,
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss of one batch for any arm, with its parts for the log."""
    hidden = draft_hidden(arm, borrowed, batch)
    base = borrowed.logits(hidden[:, 1:].contiguous())
    anchor = block_distance(base, batch, recipe)
    logits, parts = base, {}
    if arm.head is not None:
        prepared = arm.head.prepare(hidden)
        logits = base + arm.head.bias(prepared, batch.previous)
        parts["forced"] = block_distance(logits, batch, recipe)
        parts["anchor"] = recipe.anchor_weight * anchor
        if not arm.head.sequential and recipe.consistency_weight:
            own = _own_round(arm, prepared, base, batch, recipe, generator)
            parts["consistency"] = recipe.consistency_weight * own
    if arm.confidence is not None:
        sure = confidence_loss(arm, hidden, logits, batch, recipe)
        parts["confidence"] = recipe.confidence_weight * sure
    figures = {name: part.item() for name, part in parts.items()}
    if arm.head is None:
        parts["anchor"] = anchor  # all that a bare drafter learns from
    return sum(parts.values()), figures


def confidence_loss(
    arm: Arm,
    hidden: torch.Tensor,
    logits: torch.Tensor,
    batch: BlockBatch,
    recipe: ArmRecipe,
) -> torch.Tensor:
    """Weighted binary cross-entropy with each slot's acceptance probability.

    That is the sum of min(p, q), 1 - TV where every token can be drafted. Nothing
    flows into drafter or head: their gradients would be harmed by it.
    """
    with torch.no_grad():
        q = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        kept = torch.minimum(q, batch.target_probs).sum(-1).clamp(0, 1)
    said = arm.confidence(hidden[:, 1:], batch.previous[:, 1:], arm.head)
    each = F.binary_cross_entropy_with_logits(
        said.to(kept.dtype), kept, reduction="none"
    )
    weight = slot_weights(logits.shape[1], recipe.gamma).to(logits.device)
    weight = weight * batch.valid
    return (weight * each).sum() / weight.sum().clamp_min(1e-9)


def afterwards_loss(
    arm: Arm, borrowed: Borrowed, batch: BlockBatch, recipe: ArmRecipe
) -> torch.Tensor:
    """:func:`confidence_loss` of a finished arm: the gradient is the head's alone."""
    with torch.no_grad():
        hidden = draft_hidden(arm, borrowed, batch)
        logits = borrowed.logits(hidden[:, 1:].contiguous())
        if arm.head is not None:
            prepared = arm.head.prepare(hidden)
            logits = logits + arm.head.bias(prepared, batch.previous)
    return confidence_loss(arm, hidden, logits, batch, recipe)


def draft_hidden(arm: Arm, borrowed: Borrowed, batch: BlockBatch) -> torch.Tensor:
    """Drafter states of every block, ``[S*A, B, H]``."""
    block = borrowed.embed(batch.block_ids)
    context = arm.drafter.project(batch.taps)
    hidden = arm.drafter(block, context, batch.positions, batch.mask)
    return hidden.reshape(len(batch.labels), -1, hidden.shape[-1])


def _own_round(arm, prepared, base, batch, recipe, generator) -> torch.Tensor:
    """Distance after one of the first few passes, each fed with its own argmax.

    The objective is the mean over passes 1..``consistency_passes``. One of them is
    drawn per batch, which estimates the mean without bias at a third of the cost:
    earlier passes need no gradient, since argmax has none.
    """
    head = batch.previous[:, :2]
    chosen = int(torch.randint(recipe.consistency_passes, (1,), generator=generator))
    drafts = first_argmax(base.detach())
    with torch.no_grad():
        for _ in range(chosen):
            previous = torch.cat([head, drafts[:, :-1]], dim=1)
            drafts = first_argmax(base + arm.head.bias(prepared, previous))
    previous = torch.cat([head, drafts[:, :-1]], dim=1)
    return block_distance(base + arm.head.bias(prepared, previous), batch, recipe)
