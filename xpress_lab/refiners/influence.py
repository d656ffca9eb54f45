"""Which previous tokens a head listens to, found by changing them one at a time."""

import torch

from xpress_lab.errors import LabError


@torch.no_grad()
def influence(head, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """How far each slot's bias moves when one previous token is exchanged.

    Args:
        head: raw or folded, with ``prepare`` and ``bias``.
        hidden: ``[N, B, H]`` of N blocks, two or more.
        previous: ``[N, B]`` ids; each is exchanged for the one at its place in
            another block, so that only tokens which occur there come in.

    Returns:
        ``[B, B - 1]``: entry ``[j, k - 1]`` is the root mean square, over blocks and
        vocabulary, of the change of slot k's bias when previous token j changes. For a
        causal head it is exactly zero where j > k.
    """
    rows, slots = previous.shape
    if rows < 2:
        raise LabError(
            f"Exchanging tokens between blocks takes two or more, not {rows}."
        )
    strangers = previous.roll(rows // 2, dims=0)  # neighbours share a text
    prepared = head.prepare(hidden)
    before = head.bias(prepared, previous)
    moved = []
    for j in range(slots):
        changed = previous.clone()
        changed[:, j] = strangers[:, j]
        step = head.bias(prepared, changed) - before
        moved.append(step.square().mean(dim=(0, 2)).sqrt())
    return torch.stack(moved)
