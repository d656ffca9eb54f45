"""Attention of a few queries over many keys, where heads share keys and values.

In verification a handful of new tokens look at a long cache. transformers first
copies keys and values once for every query head that shares them, which on a CPU
costs more than the attention itself. Here the query heads of a group become further
queries of their one key head, and nothing is copied.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

NAME = "xpress_lab_grouped"


def grouped_attention(
    module, query, key, value, attention_mask, scaling=None, **_
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: outputs ``[N, T, heads, D]``, and no weights.

    Args:
        query: ``[N, heads, T, D]``; heads that share a key head are neighbours.
        key, value: ``[N, key heads, C, D]``.
        attention_mask: ``[N, 1, T, C]`` booleans, true where a token is seen.
    """
    rows, heads, new, size = query.shape
    shared = heads // key.shape[1]
    query = query.reshape(rows, key.shape[1], shared * new, size)
    mask = attention_mask.repeat(1, 1, shared, 1)
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling
    )
    mixed = mixed.reshape(rows, heads, new, size)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, grouped_attention)


@contextmanager
def grouped(config) -> Iterator[None]:
    """Within it a model of this config attends so; the owner's choice is restored."""
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
