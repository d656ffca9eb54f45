"""Without a GPU, Triton interprets its kernels. To be imported before Triton is.

Triton reads the variable when its own functions are defined, and transformers imports
Triton: conftest imports this first.
"""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
