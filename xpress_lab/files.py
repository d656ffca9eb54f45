"""Files of a checkpoint folder: written whole or not at all, read without trust."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from xpress_lab.errors import LabError, first_line

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write through a neighbour file, so that a crash or full disk leaves no half.

    Folders above are made if they are missing. Raises :class:`LabError` where the
    system refuses; safetensors and torch have errors of their own for that.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(path)
    except (OSError, SafetensorError, RuntimeError) as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or first_line(error)
        raise LabError(f"Cannot write {path}: {why}.") from error


def write_text(path: Path, text: str) -> None:
    """A text file in UTF-8."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_json(path: Path, values: dict) -> None:
    """A JSON table that people can read."""
    write_text(path, json.dumps(values, indent=2) + "\n")


def write_checkpoint(
    folder: Path,
    tensors: dict[str, torch.Tensor],
    config: dict,
    dtype: torch.dtype | None = None,
) -> None:
    """model.safetensors, then config.json; each appears whole or not at all.

    Args:
        dtype: to which weights are rounded; ``None`` leaves theirs. Tensors of whole
            numbers stay as they are.
    """

    def stored(value: torch.Tensor) -> torch.Tensor:
        value = value.detach().contiguous()
        return value.to(dtype) if dtype and value.is_floating_point() else value

    rounded = {name: stored(value) for name, value in tensors.items()}
    write_whole(folder / WEIGHTS, lambda path: save_file(rounded, path))
    write_json(folder / "config.json", config)


def read_json(path: Path) -> dict:
    """A JSON table."""
    if not path.is_file():
        raise LabError(f"No checkpoint in {path.parent}: {path.name} is missing.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise LabError(f"{path} holds no table of settings.")
    return values


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or of the shards that its index lists."""
    if not (folder / INDEX).is_file() or (folder / WEIGHTS).is_file():
        return read_shard(folder / WEIGHTS)
    listed = read_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict) or not listed:
        raise LabError(f"{folder / INDEX} lists no tensors (weight_map).")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(map(str, listed.values()))):
        if Path(name).name != name:
            raise LabError(f"{folder / INDEX} points outside its folder: {name!r}.")
        tensors |= read_shard(folder / name)
    odd = sorted(set(listed) ^ set(tensors))
    if odd:
        raise LabError(f"{folder}: index and shards disagree about tensor {odd[0]!r}.")
    return tensors


def read_shard(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of one safetensors file."""
    if not path.is_file():
        raise LabError(f"No checkpoint in {path.parent}: {path.name} is missing.")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise LabError(f"{path} is corrupt or cut short: {error}") from error
