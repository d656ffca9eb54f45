"""An EAGLE-3 drafter on disk: config.json and model.safetensors."""

from pathlib import Path

import torch

from xpress_lab.checkpoints.config import Config
from xpress_lab.drafters.eagle import EagleConfig, EagleDrafter
from xpress_lab.errors import LabError
from xpress_lab.files import read_json, read_tensors, write_checkpoint
from xpress_lab.pretrained import load_strictly
from xpress_lab.target import Target, check_taps

ARCHITECTURE = "Eagle3DraftModel"
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
    "chain",
)


def save_eagle(
    drafter: EagleDrafter, folder: Path, dtype: torch.dtype | None = None
) -> None:
    """Write both files; each appears whole or not at all."""
    c = drafter.config
    config = {"architectures": [ARCHITECTURE]}
    config |= {key: getattr(c, key) for key in SIZES}
    config |= {"target_layer_ids": list(c.target_layer_ids)}
    config |= {"rms_norm_eps": c.rms_norm_eps, "rope_theta": c.rope_theta}
    write_checkpoint(folder, drafter.state_dict(), config, dtype)


def load_eagle(folder: Path, target: Target) -> EagleDrafter:
    """Read a drafter and check it against its target; widened to its dtype."""
    config = Config(folder, read_json(folder / "config.json"))
    named = (config.values.get("architectures") or ["none"])[0]
    if named != ARCHITECTURE:
        raise LabError(f"{folder}: architecture {named!r}, not {ARCHITECTURE!r}.")
    sizes = {key: config.at_least(1, key) for key in SIZES}
    for key in ("hidden_size", "vocab_size"):
        config.same(key, sizes[key], getattr(target.config, key), "target")
    layers = target.config.num_hidden_layers
    config.same("num_target_layers", sizes["num_target_layers"], layers, "target")
    drafter = EagleDrafter(
        EagleConfig(
            **sizes,
            target_layer_ids=check_taps(config.need("target_layer_ids", list), layers),
            rms_norm_eps=config.need("rms_norm_eps", float),
            rope_theta=float(config.need("rope_theta", float)),
        )
    )
    drafter.to(target.device, target.dtype).eval().requires_grad_(False)
    load_strictly(drafter, read_tensors(folder), folder)
    return drafter
