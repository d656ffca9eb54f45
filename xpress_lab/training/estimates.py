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
ONCE, TOGETHER = "target, once over the texts", "together"
ANEW = "target, if run anew in each step"


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


def multiplied(module: nn.Module) -> int:
    """Numbers that each token is multiplied with: all but tables that are looked up."""
    parts = list(module.modules())
    tables = {part.weight for part in parts if isinstance(part, nn.Embedding)}
    tables -= {part.weight for part in parts if isinstance(part, nn.Linear)}  # tied
    return weights(module) - sum(math.prod(table.shape) for table in tables)


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
    texts: int,
    text_length: int,
    speed: float,
) -> pd.DataFrame:
    """Operations and hours of training one arm.

    Counted are matrix products, 2 operations a weight and token forward and 4 backward
    (2 where the weight is frozen); attention over the context is left out. The refiner
    runs once told the truth and once told its own drafts; before the latter it makes
    0 to n - 1 passes without a gradient, each as often (as in training.losses).

    Args:
        kind: whose number of steps is taken.
        sizes: target, drafter, head.
        texts: in the training set, over each of which the target runs once.
        text_length: tokens a text, on average.
        speed: operations a second that training keeps up.

    Returns:
        Columns part, operations, hours; then their sum, and last what the target
        would take in place of the first row if no state were kept.
    """
    target, drafter, head = sizes
    config: DFlashConfig = drafter.config
    read = recipe.steps[kind] * recipe.batch * recipe.accumulate  # texts, repeats too
    places = read * recipe.anchors * config.block_size
    read_out = config.hidden_size * config.vocab_size
    refining = 6 + 6 + 2 * (recipe.consistency_passes - 1) / 2
    a_text = 2 * multiplied(target) * text_length
    parts = {
        ONCE: a_text * texts,
        "drafter": 6 * multiplied(drafter) * places,
        "output head (frozen)": 4 * read_out * places,
        "refiner": refining * multiplied(head) * places,
    }
    parts |= {TOGETHER: sum(parts.values()), ANEW: a_text * read}
    lines = [(part, float(n), n / speed / 3600) for part, n in parts.items()]
    return pd.DataFrame(lines, columns=["part", "operations", "hours"])
