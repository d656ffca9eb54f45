"""Pocket: a self-made world of short texts on which a tiny model can be trained.

Three families (math, code, chat) of prompts with many right responses each. Their
free choices bind what follows, so that a block whose positions are predicted one by
one comes apart, and a refiner has something to repair.
"""

from xpress_lab.pocket.corpus import (
    FAMILIES,
    Example,
    examples,
    grade,
    is_held_out,
    training_mix,
)
from xpress_lab.pocket.tokenizer import build_tokenizer

__all__ = [
    "FAMILIES",
    "Example",
    "build_tokenizer",
    "examples",
    "grade",
    "is_held_out",
    "training_mix",
]
