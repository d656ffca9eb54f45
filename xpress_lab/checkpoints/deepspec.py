"""DeepSpec's dflash and dspark folders (methods 1.1, 1.2, 3).

The config is flat: no ``dflash_config``. The layout is anchor-first, always, and so
not declared. Embedding and head travel along as frozen copies.
"""

from xpress_lab.checkpoints.config import Config
from xpress_lab.checkpoints.copies import drop_copies
from xpress_lab.target import Target

COPIES = {"embed_tokens.weight": "embedding", "lm_head.weight": "head"}


def is_deepspec(values: dict) -> bool:
    """Told by the key that DeepSpec alone writes; without it the layout is unknown."""
    named = values.get("architectures") == ["Qwen3DSparkModel"]
    return named and "dflash_config" not in values and "num_anchors" in values


def from_deepspec(config: Config, tensors: dict, target: Target):
    """Settings and tensors in the serving layout."""
    values = {"sample_from_anchor": True} | config.values
    return values, drop_copies(tensors, target, config.where, COPIES)
