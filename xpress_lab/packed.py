"""Linear layers whose weights lie as a CPU's library multiplies them.

oneDNN multiplies bfloat16 weights in a layout of its own and rearranges a plain weight
at every call, which for the few rows of a decoding step takes about as long as the
product. Packed once, a weight serves all later calls. Baselines run on the same layers
as our methods. A packed copy lies beside the plain weight: memory twice.
"""

import torch
import torch.nn.functional as F
from torch import nn

ROWS = 8  # of the calls that the layout is chosen for; others work as well


class PackedLinear(nn.Linear):
    """A linear layer for inference, packed where that helps.

    ``weight`` and ``bias`` are those given, so that whoever shares, moves, copies or
    saves them finds them; they are packed anew after each such change.

    Args:
        weight: ``[out, in]``. bias: ``[out]`` or ``None``.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias
        self._pack()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in]`` to ``[..., out]``."""
        if self.packed is None:
            return F.linear(x, self.weight, self.bias)
        product = torch.ops.mkldnn._linear_pointwise
        return product(x, self.packed, self.bias, "none", [], "")

    def _pack(self) -> None:
        self.packed, weight = None, self.weight.detach()
        if packable(weight):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self._pack()
        return self

    def _load_from_state_dict(self, *args, **kwargs):
        super()._load_from_state_dict(*args, **kwargs)
        self._pack()

    def __getstate__(self):
        return self.__dict__ | {"packed": None}  # has no storage to copy or write

    def __setstate__(self, state):
        super().__setstate__(state)
        self._pack()


def pack(module: nn.Module) -> None:
    """Pack all linear layers inside a module for which that helps, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear and packable(child.weight):
            setattr(module, name, PackedLinear(child.weight, child.bias))
        else:
            pack(child)


def packable(weight: torch.Tensor) -> bool:
    """Whether this torch, on this processor, packs such a weight."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.bfloat16
    return (
        plain
        and torch.backends.mkldnn.is_available()
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
