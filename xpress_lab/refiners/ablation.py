"""A trained xPress head with some of its parts taken out.

A part is taken out by setting one tensor to zero in a copy. Nothing is trained again,
so this tells what the *trained* head leans on, which is not how well a head could do
that had never had the part.

Without its hidden inputs, its mixer and its MLP the head is a Markov head: the bias is
a low-rank function of the previous token alone (methods 2.2).
"""

import copy

import torch

from xpress_lab.errors import LabError
from xpress_lab.refiners.xpress import XPressHead

# What can be taken out, and the tensor whose zeros do it.
PARTS = {
    "slot's hidden": "fuse.down_h.weight",
    "block mean": "fuse.down_g.weight",
    "previous token": "fuse.w1.weight",
    "mixer": "mix.L",
    "MLP": "trans.down_proj.weight",
}
ALL_BUT_TOKENS = tuple(part for part in PARTS if part != "previous token")


@torch.no_grad()
def without(head: XPressHead, *parts: str) -> XPressHead:
    """A copy of a raw head that lacks these :data:`PARTS`; the head itself is kept."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise LabError(
            f"An xPress head has no part {unknown[0]!r}: use {', '.join(PARTS)}."
        )
    copied = copy.deepcopy(head)
    for part in parts:
        copied.get_parameter(PARTS[part]).zero_()
    return copied
