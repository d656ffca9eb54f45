"""Reading an arm in any known format; which one, its files say."""

from pathlib import Path

from xpress_lab.checkpoints.arm import Arm
from xpress_lab.checkpoints.config import Config
from xpress_lab.checkpoints.cotrained import find_pickle, from_pickle, read_pickle
from xpress_lab.checkpoints.deepspec import from_deepspec, is_deepspec
from xpress_lab.checkpoints.serving import build_arm
from xpress_lab.checkpoints.speculators import from_speculators
from xpress_lab.files import INDEX, WEIGHTS, read_json, read_tensors
from xpress_lab.target import Target


def load_arm(path: str | Path, target: Target) -> Arm:
    """Read an arm and check it against the target it is to draft for.

    Args:
        path: a folder in one of the formats: z-lab's dFlash, UIUC-SSAIL's XPress or
            Markov, DeepSpec's dflash or dspark, speculators'; or the folder of a
            training pickle, or that pickle, with its drafter's config.json beside.

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
        elif is_deepspec(values):
            values, tensors = from_deepspec(config, tensors, target)
    return build_arm(Config(folder, values), tensors, target)


def pickle_of(folder: Path) -> Path | None:
    """A training pickle, where no safetensors are: those are preferred."""
    safe = any((folder / name).is_file() for name in (WEIGHTS, INDEX))
    return None if safe else find_pickle(folder)
