"""What a refiner costs: parameters by part, and the work of a block and of a pass.

The work is counted while it runs, not worked out: every tensor operation is seen, and
the multiplications in it are added up.
"""

import math

import pandas as pd
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Qwen3Config

from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.presets import PAPER
from xpress_lab.refiners.xpress import XPressHead

# Parts of an xPress head, by the beginnings of their tensors' names.
HEAD_PARTS = {
    "w1, token table": ("fuse.w1",),
    "w2, read-out": ("read.w2",),
    "Fuse": ("fuse.down_h", "fuse.down_g", "fuse.in_proj"),
    "Mix": ("mix",),
    "Trans": ("trans",),
}


class Tally(TorchDispatchMode):
    """Counts tensor operations (views apart) and multiplications within a ``with``.

    Attributes:
        operations: each one is a kernel launch on a GPU.
        multiplications: scalar ones, of matrix and elementwise products.
    """

    def __init__(self):
        super().__init__()
        self.operations = self.multiplications = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if not func.is_view and name != "_unsafe_view":
            self.operations += 1
            self.multiplications += _multiplications(name, args, out)
        return out


def _multiplications(name: str, args, out) -> int:
    if name in ("mm", "bmm"):  # every output number is a sum of so many products
        return out.numel() * args[0].shape[-1]
    if name == "addmm":
        return out.numel() * args[1].shape[-1]
    return out.numel() if name == "mul" else 0


@torch.no_grad()
def head_work(head: XPressHead, hidden, previous) -> pd.DataFrame:
    """The work of a raw head and of its folded twin.

    Args:
        hidden, previous: of the blocks that it is counted on.

    Returns:
        One row per form (raw, folded) and stage (once a block, every pass); columns
        operations and multiplications.
    """
    rows = []
    for form, own in (("raw", head), ("folded", head.fold())):
        with Tally() as once:
            prepared = own.prepare(hidden)
        with Tally() as again:
            own.bias(prepared, previous)
        for stage, tally in (("once a block", once), ("every pass", again)):
            rows.append(
                {
                    "form": form,
                    "stage": stage,
                    "operations": tally.operations,
                    "multiplications": tally.multiplications,
                }
            )
    return pd.DataFrame(rows).set_index(["form", "stage"])


def budget(target: nn.Module, drafter: nn.Module, head: XPressHead) -> pd.DataFrame:
    """Parameters: one row per part of the head, and one each for the other two.

    Columns: model (target, drafter, head), part, parameters.
    """
    rows = [
        {"model": "target", "part": "all", "parameters": _count(target)},
        {"model": "drafter", "part": "all", "parameters": _count(drafter)},
    ]
    sizes = {name: p.numel() for name, p in head.named_parameters()}
    for part, beginnings in HEAD_PARTS.items():
        own = sum(size for name, size in sizes.items() if name.startswith(beginnings))
        rows.append({"model": "head", "part": part, "parameters": own})
    return pd.DataFrame(rows)


def paper_sized() -> tuple[nn.Module, DFlashDrafter, XPressHead]:
    """Qwen3-8B, its b16 drafter and the xPress head in their published sizes (methods
    1.1, 2.1), as shapes without numbers: they take no memory and cannot run."""
    recipe = PAPER.arm
    shared = {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    }
    target = Qwen3Config(**shared, num_hidden_layers=36, tie_word_embeddings=False)
    drafter = DFlashConfig(
        **shared,
        num_hidden_layers=recipe.drafter_layers,
        num_target_layers=target.num_hidden_layers,
        target_layer_ids=recipe.target_layer_ids,
        mask_token_id=151_669,
        block_size=recipe.block_size,
    )
    with torch.device("meta"):
        return (
            AutoModelForCausalLM.from_config(target),
            DFlashDrafter(drafter),
            XPressHead(
                target.hidden_size, target.vocab_size, recipe.block_size, recipe.rank
            ),
        )


def _count(module: nn.Module) -> int:
    return sum(math.prod(p.shape) for p in module.parameters())
