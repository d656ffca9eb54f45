"""Reading an arm in any known format, which its files tell; writing it in our own."""

from pathlib import Path

import torch

from xpress_lab.checkpoints.arm import Arm
from xpress_lab.checkpoints.config import Config
from xpress_lab.checkpoints.cotrained import find_pickle, from_pickle, read_pickle
from xpress_lab.checkpoints.deepspec import from_deepspec, is_deepspec
from xpress_lab.checkpoints.eagle import build_eagle, eagle_folder, is_eagle
from xpress_lab.checkpoints.serving import build_arm, serving_config, serving_tensors
from xpress_lab.checkpoints.speculators import from_speculators
from xpress_lab.files import (
    INDEX,
    WEIGHTS,
    read_json,
    read_tensors,
    write_checkpoint,
)
from xpress_lab.target import Target


def load_arm(path: str | Path, target: Target) -> Arm:
    """Read an arm and check it against the target it is to draft for.

    Args:
        path: a folder in one of the formats: z-lab's dFlash, UIUC-SSAIL's XPress or
            Markov, DeepSpec's dflash, dspark or eagle3, speculators'; or the folder
            of a training pickle, or that pickle, with its drafter's config.json
            beside.

    Tensors take the target's dtype. Raises :class:`LabError` with both values
    wherever config, tensors and target disagree.
    """
    path = Path(path)
    folder = path.parent if path.suffix == ".pt" else path
    values = read_json(folder / "config.json")
    config = Config(folder, values)
    pickled = path if path.suffix == ".pt" else pickle_of(folder)
    if pickled is not None:
        values, tensors = from_pickle(config, read_pickle(pickled))
    else:
        tensors = read_tensors(folder)
        if "speculators_model_type" in values:
            values, tensors = from_speculators(config, tensors, target)
        elif is_eagle(values):
            return build_eagle(config, tensors, target)
        elif is_deepspec(values):
            values, tensors = from_deepspec(config, tensors, target)
    return build_arm(Config(folder, values), tensors, target)


def save_arm(arm: Arm, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors; each appears whole or not at all."""
    if arm.kind == "eagle":
        tensors, config = eagle_folder(arm)
    else:
        tensors, config = serving_tensors(arm), serving_config(arm)
    write_checkpoint(folder, tensors, config, dtype)


def pickle_of(folder: Path) -> Path | None:
    """A training pickle, where no safetensors are: those are preferred."""
    safe = any((folder / name).is_file() for name in (WEIGHTS, INDEX))
    return None if safe else find_pickle(folder)
