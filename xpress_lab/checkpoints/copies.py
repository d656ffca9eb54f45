"""Copies of the target's tables that some checkpoints carry along.

Our drafters borrow the target's own tables, so a copy is of no use; but it says for
which target the drafter was trained. It must equal the target's table, and is then
dropped.
"""

from pathlib import Path

import torch

from xpress_lab.errors import LabError
from xpress_lab.target import Target


def drop_copies(
    tensors: dict[str, torch.Tensor],
    target: Target,
    where: Path,
    names: dict[str, str],
    head_ids: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """``tensors`` without the copies, each of them checked.

    Args:
        names: tensor name to ``embedding``, ``head`` or ``norm``.
        head_ids: rows of the output head that a copy holds; ``None``: all.
    """
    model = target.model
    tables = {
        "embedding": model.get_input_embeddings().weight,
        "head": model.get_output_embeddings().weight,
        "norm": model.get_decoder().norm.weight,
    }
    if head_ids is not None:
        tables["head"] = tables["head"][head_ids.to(target.device)]
    kept = dict(tensors)
    for name, which in names.items():
        if name in kept:
            check_copy(kept.pop(name), tables[which], name, where)
    return kept


def check_copy(copy: torch.Tensor, table: torch.Tensor, name: str, where: Path) -> None:
    """Raise unless a copy is the table, up to the dtype that it is stored in."""
    if copy.shape != table.shape:
        raise LabError(
            f"{where}: {name} is {list(copy.shape)}, the target's table is "
            f"{list(table.shape)}."
        )
    coarse = min(copy.dtype, table.dtype, key=lambda dtype: torch.finfo(dtype).bits)
    ours, theirs = copy.to(table.device, coarse), table.to(coarse)
    if not torch.equal(ours, theirs):
        gap = (ours.float() - theirs.float()).abs().max().item()
        raise LabError(
            f"{where}: {name} differs from the target's own by up to {gap:.3g}: "
            "these weights were trained for another target."
        )
