"""Linear layers whose weights lie as a CPU's library multiplies them.

oneDNN multiplies bfloat16 weights in a layout of its own and rearranges a plain weight
at every call, which for the few rows of a decoding step takes about as long as the
product. Packed once, a weight serves all later calls. Baselines run on the same layers
as our methods.
"""

import torch
from torch import nn

ROWS = 8  # of the calls that the layout is chosen for; others work as well


class PackedLinear(nn.Module):
    """An ``nn.Linear`` in bfloat16 on a CPU, for inference.

    ``weight`` and ``bias`` remain the layer's own, so that whoever shares or saves them
    finds them; changing them later does not change what this layer computes.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        weight = linear.weight.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[..., in]`` to ``[..., out]``, bfloat16."""
        product = torch.ops.mkldnn._linear_pointwise
        return product(x, self.packed, self.bias, "none", [], "")


def pack(module: nn.Module) -> None:
    """Pack all linear layers inside a module for which that helps, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear and packable(child.weight):
            setattr(module, name, PackedLinear(child))
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
