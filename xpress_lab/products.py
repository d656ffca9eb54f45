"""A few rows times a large table.

The floats of MKL, which multiplies for PyTorch on most CPUs, have no good routine for
2, 3, 6 or 7 rows: those take up to twice as long as 4 or 8. Rows of zeros make up the
number; what is left over is dropped.
"""

import torch
import torch.nn.functional as F

FEW = 8  # rows from which the number does not matter


def times_table(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``[..., r]`` times each row of a table ``[V, r]``: ``[..., V]``."""
    rows = x.numel() // max(x.shape[-1], 1)
    if x.dtype != torch.float32 or x.device.type != "cpu" or not 1 < rows < FEW:
        return F.linear(x, table)
    flat = F.pad(x.reshape(rows, -1), (0, 0, 0, -rows % 4))
    return F.linear(flat, table)[:rows].view(*x.shape[:-1], -1)
