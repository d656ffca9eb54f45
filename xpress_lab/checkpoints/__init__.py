"""Drafter and head checkpoints, in and out of the formats that exist.

Everything is checked against the target before it is used, and nothing on disk is
ever executed. One module a format; :mod:`.serving` is the one that all are turned
into, and in which our own weights are written.
"""

from xpress_lab.checkpoints.arm import MARKOV_TYPES, Arm, head_sizes, new_head
from xpress_lab.checkpoints.confidence import (
    CONFIDENCE,
    load_confidence,
    new_confidence,
)
from xpress_lab.checkpoints.export import export_arm
from xpress_lab.checkpoints.loading import load_arm, save_arm

__all__ = [
    "CONFIDENCE",
    "MARKOV_TYPES",
    "Arm",
    "export_arm",
    "head_sizes",
    "load_arm",
    "load_confidence",
    "new_confidence",
    "new_head",
    "save_arm",
]
