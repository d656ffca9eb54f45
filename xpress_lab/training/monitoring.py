"""Online tau while an arm trains: what the loop really gets out of it.

The loss sees true previous tokens and so flatters a head; only decoding tells.
"""

import copy

from xpress_lab.checkpoints import Arm
from xpress_lab.decoding import decode
from xpress_lab.lab import DEFAULT_PASSES
from xpress_lab.methods import BlockMethod
from xpress_lab.target import Target


def online_tau(
    arm: Arm, target: Target, prompts: list[str], max_new_tokens: int = 64
) -> float:
    """Pooled greedy tau of an arm as it stands, in the target's dtype."""
    drafter, head = (
        None if part is None else copy.deepcopy(part).to(target.dtype).eval()
        for part in (arm.drafter, arm.head)
    )
    if head is not None:
        head = head.fold()
    method = BlockMethod(arm.kind, target, drafter, head, DEFAULT_PASSES, arm.draft_ids)
    rounds = [
        r
        for prompt in prompts
        for r in decode(
            target, method, target.encode(prompt), max_new_tokens=max_new_tokens
        ).rounds
    ]
    return sum(r.emitted for r in rounds) / len(rounds)
