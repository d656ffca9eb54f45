"""A few rows times a large table.

MKL, which multiplies for PyTorch on most CPUs, takes longer for 3 or 7 rows of float32
than for 4 or 8, on two threads up to twice as long. A row of zeros makes up the number.
"""

import torch
import torch.nn.functional as F

SLOW = (3, 7)  # rows; blocks of 8 draft seven


def times_table(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """``[..., r]`` times each row of a table ``[V, r]``: ``[..., V]``."""
    rows, rank = x.shape[:-1].numel(), x.shape[-1]
    ours = x.dtype == torch.float32 and x.device.type == "cpu"
    if not ours or rows not in SLOW or not torch.backends.mkl.is_available():
        return F.linear(x, table)
    one_more = F.pad(x.reshape(rows, rank), (0, 0, 0, 1))
    return F.linear(one_more, table)[:rows].view(*x.shape[:-1], -1)
