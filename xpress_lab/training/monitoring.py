"""Online tau while an arm trains: what the loop really gets out of it.

The loss sees true previous tokens and so flatters a head; only decoding tells.
"""

import copy

from xpress_lab.checkpoints import Arm
from xpress_lab.decoding import Round, decode
from xpress_lab.lab import arm_method
from xpress_lab.methods import Method
from xpress_lab.target import Target


def online_tau(
    arm: Arm, target: Target, prompts: list[str], max_new_tokens: int = 64
) -> float:
    """Pooled greedy tau of an arm as it stands, in the target's dtype."""
    arm = copy.deepcopy(arm)
    for module in arm.modules():
        module.to(target.dtype).eval()
    return greedy_tau(target, arm_method(arm, target), prompts, max_new_tokens)


def greedy_tau(
    target: Target, method: Method, prompts: list[str], max_new_tokens: int = 128
) -> float:
    """Tokens emitted per verification, pooled over greedy answers."""
    rounds = greedy_rounds(target, method, prompts, max_new_tokens)
    return sum(r.emitted for r in rounds) / len(rounds)


def greedy_rounds(
    target: Target, method: Method, prompts: list[str], max_new_tokens: int = 128
) -> list[Round]:
    """Every verification of greedy answers."""
    return [
        r
        for prompt in prompts
        for r in decode(
            target, method, target.encode(prompt), max_new_tokens=max_new_tokens
        ).rounds
    ]
