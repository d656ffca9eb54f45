"""What training and running at another scale takes, worked out from sizes alone.

Modules may be shapes without numbers (torch's meta device), such as those of
:func:`xpress_lab.benchmarks.costs.paper_sized`. Memory is counted; training time is an
estimate: operations over a speed that the caller states, and nothing else.
"""

import math

import pandas as pd
import torch
from torch import nn

from xpress_lab.cache import KVCache
from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.presets import ArmRecipe
from xpress_lab.refiners.xpress import XPressHead
from xpress_lab.target import Target

STATE_DTYPE = torch.bfloat16  # of stored target states


@torch.no_grad()
def memory_needs(
    model: nn.Module,
    drafter: DFlashDrafter,
    head: XPressHead,
    rows: int = 1,
    tokens: int = 2_560,
    dtype: torch.dtype = torch.bfloat16,
) -> pd.DataFrame:
    """Gigabytes of decoding: weights, and caches of ``rows`` texts of ``tokens``.

    Args:
        model: the target, a transformers causal LM.
        tokens: prompt and answer together.

    Returns:
        Columns part, gigabytes; activations are left out.
    """
    target = Target(model.to("meta"))
    caches = target.new_cache(rows, tokens), drafter.to("meta").new_cache(rows, tokens)
    sizes = {
        "target": weights(model),
        "drafter": weights(drafter),
        "refiner": weights(head),
        "target's cache": cached(caches[0]),
        "drafter's cache": cached(caches[1]),
    }
    lines = [(part, count * dtype.itemsize / 1e9) for part, count in sizes.items()]
    return pd.DataFrame(lines, columns=["part", "gigabytes"])


def weights(module: nn.Module) -> int:
    """Numbers in a module's parameters, shared ones once."""
    return sum(math.prod(p.shape) for p in module.parameters())


def cached(cache: KVCache) -> int:
    """Numbers in a cache."""
    return sum(stored.numel() for stored in (*cache.keys, *cache.values))


def state_gigabytes(taps: int, hidden_size: int, tokens: int) -> float:
    """Room for the target's states of so many tokens: the tapped layers, the last one,
    and one float32 (as :mod:`xpress_lab.training.states` keeps them)."""
    return tokens * ((taps + 1) * hidden_size * STATE_DTYPE.itemsize + 4) / 1e9


def training_estimate(
    kind: str,
    recipe: ArmRecipe,
    sizes: tuple[nn.Module, DFlashDrafter, XPressHead],
    text_length: int,
    speed: float,
) -> pd.DataFrame:
    """Operations and hours of training one arm.

    Counted are matrix products, 2 operations a weight and token forward and 4 backward
    (2 where the weight is frozen); attention over the context is left out.

    Args:
        kind: whose number of steps is taken.
        sizes: target, drafter, head.
        text_length: tokens a text, on average.
        speed: operations a second that training keeps up.

    Returns:
        Columns part, operations, hours; the last row is their sum.
    """
    target, drafter, head = sizes
    config: DFlashConfig = drafter.config
    texts = recipe.steps[kind] * recipe.batch
    places = texts * recipe.anchors * config.block_size
    passes = 1 + recipe.consistency_passes  # teacher-forced, then fed its own drafts
    read_out = config.hidden_size * config.vocab_size
    parts = {
        "target, forward over each text": 2 * weights(target) * texts * text_length,
        "drafter": 6 * weights(drafter) * places,
        "output head (frozen)": 4 * read_out * places,
        "refiner": 6 * weights(head) * places * passes,
    }
    parts["together"] = sum(parts.values())
    lines = [(part, float(n), n / speed / 3600) for part, n in parts.items()]
    return pd.DataFrame(lines, columns=["part", "operations", "hours"])
