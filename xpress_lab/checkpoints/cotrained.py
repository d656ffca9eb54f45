"""The training pickle ``refiner_cotrain*.pt`` of UIUC-SSAIL (methods 2.5).

A dictionary of ``args`` (an argparse namespace), ``refiner_state_dict``,
``draft_state_dict`` and ``global_step``. It knows nothing of taps or mask token, so
the config.json of the drafter that it started from must lie beside it.

A pickle may name any function and have it called. torch's weights-only reader calls
none but those on its list, to which argparse's namespace is added: nothing in the
file is executed.
"""

import argparse
from pathlib import Path

import torch

from xpress_lab.checkpoints.config import Config
from xpress_lab.errors import LabError, first_line

NAME = "*refiner_cotrain*.pt"
KEYS = ("args", "refiner_state_dict", "draft_state_dict", "global_step")
# The one variant of the head that was released; the flags name the ablations.
RELEASED = {
    "no_residual": True,
    "no_sublayer_norm": True,
    "no_mix_out": True,
    "input_mode": "concat",
    "markov_only": False,
    "no_hidden": False,
    "no_perpos": False,
    "no_global": False,
    "no_mixer": False,
    "no_mlp": False,
    "input_relu": False,
    "lowrank_lmhead_shared_rank": 0,
    "lowrank_base_rank": 0,
}
MARKOV = {"w1.weight": "markov_w1.weight", "w2.weight": "markov_w2.weight"}
RANK, RATIO = 256, 2  # what a namespace without these two means to the authors


def find_pickle(folder: Path) -> Path | None:
    """The pickle of a folder, if it has one; several are not chosen among."""
    found = sorted(folder.glob(NAME)) if folder.is_dir() else []
    if len(found) > 1:
        raise LabError(
            f"{folder} holds {len(found)} training pickles: name one, "
            f"for example {found[0].name}."
        )
    return found[0] if found else None


def read_pickle(path: Path) -> dict:
    """The dictionary in the file, read without executing anything."""
    if not path.is_file():
        raise LabError(f"No training pickle at {path}.")
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpicklers and zip readers raise many kinds
        why = first_line(error, 120).split(". ")[0]
        raise LabError(
            f"{path} is refused: it is damaged, or asks for more than tensors and "
            f"argparse settings ({why})."
        ) from error
    missing = [k for k in KEYS if not isinstance(saved, dict) or k not in saved]
    if missing:
        raise LabError(f"{path} is no training pickle: {', '.join(missing)} missing.")
    for key in KEYS[1:3]:
        table = saved[key]
        if not isinstance(table, dict) or not all(map(torch.is_tensor, table.values())):
            raise LabError(f"{path}: {key} holds more than tensors.")
    if not isinstance(saved["args"], argparse.Namespace):
        raise LabError(f"{path}: args is no namespace, but {saved['args']!r:.40}.")
    return saved


def from_pickle(config: Config, saved: dict) -> tuple[dict, dict[str, torch.Tensor]]:
    """Settings and tensors in the serving layout.

    Args:
        config: of the drafter from which training started.
        saved: from :func:`read_pickle`.
    """
    args, head = vars(saved["args"]), dict(saved["refiner_state_dict"])
    rank = whole_number(args, "markov_rank", RANK, config)
    values = {"sample_from_anchor": False} | config.values
    if head.keys() == MARKOV.keys():
        check_flags(args, ("lowrank_lmhead_shared_rank", "lowrank_base_rank"), config)
        values |= {"architectures": ["Qwen3DSparkModel"], "markov_rank": rank}
        prefix, head = "markov_head.", {MARKOV[k]: v for k, v in head.items()}
    else:
        check_flags(args, RELEASED, config)
        drop_triangle(head, config)
        values |= {
            "architectures": ["Qwen3XPressModel"],
            "xpress_rank": rank,
            "xpress_mlp_hidden": rank * whole_number(args, "mlp_ratio", RATIO, config),
            "xpress_block_size": config.at_least(2, "block_size", ("dflash_config",)),
        }
        prefix = "xpress_head."
    named = {prefix + name: tensor for name, tensor in head.items()}
    return values, named | saved["draft_state_dict"]


def whole_number(args: dict, name: str, default: int, config: Config) -> int:
    """A size out of the namespace, where 2.0 is as good as 2."""
    value = args.get(name, default)
    if not isinstance(value, int | float) or value != value // 1:
        raise LabError(f"{config.where}: {name} is {value!r}, not a whole number.")
    return int(value)


def check_flags(args: dict, names, config: Config) -> None:
    """Raise for head variants that were trained for ablations and not released."""
    for name in names:
        found = args.get(name, RELEASED[name])
        if found != RELEASED[name]:
            raise LabError(
                f"{config.where}: the head was trained with {name} {found!r}; "
                f"only {RELEASED[name]!r} is supported."
            )


def drop_triangle(head: dict[str, torch.Tensor], config: Config) -> None:
    """The causal triangle is a constant that some pickles hold; it must be one."""
    found = head.pop("mix.tril", None)
    if found is not None and not torch.equal(found, torch.ones_like(found).tril()):
        raise LabError(f"{config.where}: mix.tril is not a causal triangle.")
