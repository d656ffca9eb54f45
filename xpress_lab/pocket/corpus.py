"""Draws examples of the three families and keeps a part of their answers unseen.

A key names the entities and numbers of an answer. One key in 16 is held out, by a
hash that is the same everywhere; since a response spells out its key, no held-out
response can stand among the training responses.
"""

import hashlib
import random

from xpress_lab.pocket import chat_family, code_family, math_family
from xpress_lab.pocket.words import Example

_MODULES = {"math": math_family, "code": code_family, "chat": chat_family}
FAMILIES = tuple(_MODULES)
HELD_OUT_ONE_IN = 16
_MAX_DRAWS_PER_EXAMPLE = 2000


def is_held_out(key: str) -> bool:
    """True for one key in 16, the same ones on every computer."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def examples(family: str, count: int, seed: int, held_out: bool) -> list[Example]:
    """Examples with distinct prompts, all from one side of the split.

    Args:
        family: one of `FAMILIES`.
        count: how many.
        seed: the same seed gives the same examples.
        held_out: True for the unseen side, False for the training side.

    Raises:
        ValueError: the family is unknown or has not enough prompts.
    """
    if family not in _MODULES:
        raise ValueError(f"unknown family {family!r}; there are {', '.join(FAMILIES)}")
    rng = random.Random(f"{family}/{seed}")
    drawn: dict[str, Example] = {}
    for _ in range(count * _MAX_DRAWS_PER_EXAMPLE):
        if len(drawn) == count:
            break
        example = _MODULES[family].make(rng)
        if is_held_out(example.key) == held_out:
            drawn.setdefault(example.prompt, example)
    if len(drawn) < count:
        raise ValueError(f"{family} has only {len(drawn)} prompts of {count} asked for")
    return list(drawn.values())


def training_mix(count: int, seed: int) -> list[Example]:
    """Training examples of all families in equal parts, shuffled."""
    share, rest = divmod(count, len(FAMILIES))
    mix = [
        example
        for index, family in enumerate(FAMILIES)
        for example in examples(family, share + (index < rest), seed, held_out=False)
    ]
    random.Random(seed).shuffle(mix)
    return mix


def grade(example: Example, text: str) -> bool:
    """True if the text is a right response to the example's prompt."""
    return _MODULES[example.family].grade(example, text)
