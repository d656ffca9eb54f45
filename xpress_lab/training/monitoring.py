"""Online tau while an arm trains: what the loop really gets out of it.

The loss sees true previous tokens and so flatters a head; only decoding tells.
"""

import copy

from xpress_lab.checkpoints import Arm
from xpress_lab.decoding import decode
from xpress_lab.lab import arm_method
from xpress_lab.target import Target


def online_tau(
    arm: Arm, target: Target, prompts: list[str], max_new_tokens: int = 64
) -> float:
    """Pooled greedy tau of an arm as it stands, in the target's dtype."""
    arm = copy.deepcopy(arm)
    for module in arm.modules():
        module.to(target.dtype).eval()
    method = arm_method(arm, target)
    rounds = [
        r
        for prompt in prompts
        for r in decode(
            target, method, target.encode(prompt), max_new_tokens=max_new_tokens
        ).rounds
    ]
    return sum(r.emitted for r in rounds) / len(rounds)
