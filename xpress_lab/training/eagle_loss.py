"""EAGLE-3's training-time test: unroll the drafter on its own states.

Step s feeds the states of step s - 1 back, one token further. A column then attends
to the first step's columns up to its own and to its own later steps: what the cache
holds when it drafts (methods 5).
"""

import torch
import torch.nn.functional as F

from xpress_lab.borrowed import Borrowed
from xpress_lab.drafters.eagle import EagleDrafter
from xpress_lab.training.states import States
from xpress_lab.training.texts import TextSet

STEP_DECAY = 0.8


def eagle_loss(
    drafter: EagleDrafter,
    borrowed: Borrowed,
    texts: TextSet,
    states: States,
    steps: int,
) -> tuple[torch.Tensor, dict[str, float]]:
    """Sum over steps of 0.8^s times the soft cross-entropy to the target.

    Column i of step s reads token i + 1 + s and is judged by the target's
    distribution of token i + 2 + s, if that token lies in the response. With a draft
    vocabulary only its tokens' probabilities count.
    """
    device = borrowed.target.device
    texts, states = texts.to(device), states.to(device)
    tokens, width = texts.tokens, texts.tokens.shape[1]
    inside = texts.in_response()
    hidden = drafter.project(states.taps)
    past: list[tuple[torch.Tensor, torch.Tensor]] = []
    total, parts = 0.0, {}
    for step in range(steps):
        columns = width - 2 - step
        if columns < 1:
            break
        embedded = borrowed.embed(tokens[:, 1 + step : 1 + step + columns])
        hidden = unrolled(drafter, embedded, hidden[:, :columns], step, past)
        judged = inside[:, 2 + step : 2 + step + columns]
        # The target's row at i + 1 + s speaks about token i + 2 + s.
        row = slice(1 + step, 1 + step + columns)
        logits = borrowed.logits(states.last[:, row][judged])
        p = (logits.float() - states.lse[:, row][judged][:, None]).exp()
        q = borrowed.logits(drafter.norm(hidden[judged])).float()
        each = -(p * q.log_softmax(-1)).sum(-1)
        loss = each.mean() if len(each) else hidden.sum() * 0
        parts[f"step {step}"] = loss.item()
        total = total + STEP_DECAY**step * loss
    return total, parts


def unrolled(drafter, embedded, hidden, step: int, past: list) -> torch.Tensor:
    """States ``[N, T, H]`` of one unrolled step; its keys join ``past``."""
    (layer,) = drafter.layers
    rows, count = embedded.shape[:2]
    device = embedded.device
    positions = (torch.arange(count, device=device) + step).expand(rows, -1)
    joined = layer.join(embedded, hidden)
    query, key, value = layer.self_attn.project(joined, drafter.angles(positions))
    repeat = layer.self_attn.repeats
    key, value = (x.repeat_interleave(repeat, dim=1) for x in (key, value))
    past.append((key, value))
    first_key, first_value = (x[:, :, :count] for x in past[0])
    scores = query @ first_key.transpose(-1, -2)
    causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    scores = scores.masked_fill(~causal, -torch.inf)
    own = [(query * k[:, :, :count]).sum(-1, keepdim=True) for k, _ in past[1:]]
    weights = torch.cat([scores, *own], dim=-1) / query.shape[-1] ** 0.5
    weights = F.softmax(weights.float(), dim=-1).to(value.dtype)
    mixed = weights[..., :count] @ first_value
    for place, (_, v) in enumerate(past[1:]):
        mixed = mixed + weights[..., count + place, None] * v[:, :, :count]
    return layer.after(hidden, layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2)))
