"""Drafter and head checkpoints on disk: config.json and model.safetensors.

The format is the published serving one, so that a folder written here needs no
conversion elsewhere: z-lab's config keys, drafter tensors without prefix, an xPress
head under ``xpress_head.`` with its *raw* mixer, a Markov head under
``markov_head.``. Everything is checked against the target before it is used.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from xpress_lab.borrowed import check_draft_ids
from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.errors import LabError
from xpress_lab.refiners.markov import MarkovHead
from xpress_lab.refiners.xpress import XPressHead
from xpress_lab.target import Target, check_taps

ARCHITECTURES = {
    "dflash": "DFlashDraftModel",
    "markov": "Qwen3DSparkModel",
    "xpress": "Qwen3XPressModel",
}
PREFIX = {"markov": "markov_head.", "xpress": "xpress_head."}
LAYER_KEYS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")


@dataclass
class Arm:
    """A drafter with the head that was trained beside it (``None`` for dflash).

    draft_ids: ``[D]`` target ids that may be drafted, ``None`` for all of them.
    """

    kind: str
    drafter: DFlashDrafter
    head: nn.Module | None = None
    draft_ids: torch.Tensor | None = None


def save_arm(arm: Arm, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write config.json and model.safetensors; each appears whole or not at all."""
    tensors = dict(arm.drafter.state_dict())
    if arm.kind == "xpress":
        head = arm.head.published_state()
    else:
        head = {} if arm.head is None else arm.head.state_dict()
    tensors |= {PREFIX[arm.kind] + name: value for name, value in head.items()}
    tensors = {k: v.to(dtype or v.dtype).contiguous() for k, v in tensors.items()}
    if arm.draft_ids is not None:
        tensors["d2t"] = arm.draft_ids - torch.arange(len(arm.draft_ids))
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "model.safetensors", lambda path: save_file(tensors, path))
    text = json.dumps(arm_config(arm), indent=2) + "\n"
    write_whole(
        folder / "config.json", lambda path: path.write_text(text, encoding="utf-8")
    )


def write_whole(path: Path, write) -> None:
    """Write through a neighbour file, so that a crash or full disk leaves no half."""
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise LabError(f"Cannot write {path}: {error.strerror or error}.") from error


def arm_config(arm: Arm) -> dict:
    """config.json of an arm, with the keys that published checkpoints use."""
    c = arm.drafter.config
    config = {
        "architectures": [ARCHITECTURES[arm.kind]],
        "model_type": "qwen3",
        "block_size": c.block_size,
        "dflash_config": {
            "mask_token_id": c.mask_token_id,
            "target_layer_ids": list(c.target_layer_ids),
        },
        "sample_from_anchor": False,
        "tap_norm": c.tap_norm,
        "num_target_layers": c.num_target_layers,
        "num_hidden_layers": c.num_hidden_layers,
        "layer_types": ["full_attention"] * c.num_hidden_layers,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "vocab_size": c.vocab_size,
    }
    if arm.draft_ids is not None:
        config["draft_vocab_size"] = len(arm.draft_ids)
    if arm.kind == "xpress":
        trans, mix = arm.head.trans, arm.head.mix
        config |= {
            "xpress_rank": mix.L.shape[0],
            "xpress_mlp_hidden": trans.gate_proj.out_features,
            "xpress_block_size": c.block_size,
            "xpress_num_passes": 6,
        }
    elif arm.kind == "markov":
        config["markov_rank"] = arm.head.markov_w1.embedding_dim
        config["markov_head_type"] = "vanilla"
    return config


def load_arm(folder: str | Path, target: Target) -> Arm:
    """Read an arm and check it against the target it is to draft for.

    Tensors are widened to the target's dtype. Raises :class:`LabError` with both
    values wherever config, tensors and target disagree.
    """
    folder = Path(folder)
    config, tensors = read_folder(folder)
    kind = _kind(config, folder)
    drafter = DFlashDrafter(drafter_config(config, target, folder))
    draft_ids = _draft_ids(config, tensors, target, folder)
    head, head_state = _head(kind, config, drafter.config, draft_ids, folder), {}
    if head is not None:
        prefix = PREFIX[kind]
        names = [name for name in tensors if name.startswith(prefix)]
        head_state = {n.removeprefix(prefix): tensors.pop(n) for n in names}
    expected = {k: v.shape for k, v in drafter.state_dict().items()}
    check_tensors(expected, tensors, folder)
    drafter.load_state_dict(tensors)
    if head is not None:
        expected = _state(kind, head)
        check_tensors({k: v.shape for k, v in expected.items()}, head_state, folder)
        load = head.load_published_state if kind == "xpress" else head.load_state_dict
        load(head_state)
    for module in (drafter, head):
        if module is not None:
            module.to(target.device, target.dtype).eval().requires_grad_(False)
    return Arm(kind, drafter, head, draft_ids)


def _draft_ids(config, tensors, target, folder: Path) -> torch.Tensor | None:
    """Target ids of a draft vocabulary; ``d2t`` holds them less their places, as
    EAGLE-3 and speculators have it."""
    if "draft_vocab_size" not in config:
        return None
    count = _at_least(
        1, "draft_vocab_size", _need("draft_vocab_size", config, folder=folder), folder
    )
    if "d2t" not in tensors or tensors["d2t"].shape != (count,):
        found = list(tensors["d2t"].shape) if "d2t" in tensors else "absent"
        raise LabError(f"{folder}: draft_vocab_size is {count}, tensor d2t is {found}.")
    ids = tensors.pop("d2t").long() + torch.arange(count)
    check_draft_ids(ids, target.vocab_size)
    return ids


def _state(kind: str, head: nn.Module) -> dict[str, torch.Tensor]:
    return head.published_state() if kind == "xpress" else head.state_dict()


def check_tensors(expected: dict, found: dict, folder: Path) -> None:
    """Nothing missing, nothing unexpected, every shape right; names the first few."""
    wrong = {
        "missing": [n for n in expected if n not in found],
        "unexpected": [n for n in found if n not in expected],
        "of another size": [
            f"{n} {list(found[n].shape)}, not {list(shape)}"
            for n, shape in expected.items()
            if n in found and found[n].shape != shape
        ],
    }
    told = [
        f"{what}: {', '.join(names[:2])}{' ...' if len(names) > 2 else ''}"
        for what, names in wrong.items()
        if names
    ]
    if told:
        raise LabError(f"Tensors in {folder} do not fit its config: {'; '.join(told)}.")


def read_folder(folder: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """config.json and model.safetensors of a checkpoint folder."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise LabError(f"No checkpoint in {folder}: {name} is missing.")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise LabError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise LabError(f"{folder / 'config.json'} holds no table of settings.")
    try:
        return config, load_file(folder / "model.safetensors")
    except (SafetensorError, OSError) as error:
        message = f"{folder / 'model.safetensors'} is corrupt or cut short: {error}"
        raise LabError(message) from error


def drafter_config(config: dict, target: Target, folder: Path) -> DFlashConfig:
    """The drafter's sizes, checked against the target's."""
    inner = config.get("dflash_config", {})

    def need(key: str, *places: dict, kind=int):
        return _need(key, *places, kind=kind, folder=folder)

    _refuse_unsupported(config, folder)
    if config.get("sample_from_anchor", "dflash_config" not in config):
        raise LabError(
            f"{folder}: the anchor-first block layout (or none) is declared; "
            "this loop drafts in the fill-in layout (sample_from_anchor: false)."
        )
    for key in (*LAYER_KEYS[:1], "vocab_size"):
        ours, theirs = need(key, config), getattr(target.config, key)
        if ours != theirs:
            raise LabError(f"{folder}: {key} is {ours}, the target's is {theirs}.")
    layers = need("num_target_layers", config)
    if layers != target.config.num_hidden_layers:
        raise LabError(
            f"{folder}: trained on a target of {layers} layers, "
            f"this one has {target.config.num_hidden_layers}."
        )
    mask_id = need("mask_token_id", config, inner)
    if not 0 <= mask_id < target.vocab_size:
        raise LabError(f"{folder}: mask_token_id {mask_id} is not in the vocabulary.")
    return DFlashConfig(
        **{key: need(key, config) for key in LAYER_KEYS},
        intermediate_size=need("intermediate_size", config),
        num_hidden_layers=need("num_hidden_layers", config),
        vocab_size=target.vocab_size,
        num_target_layers=layers,
        target_layer_ids=check_taps(
            need("target_layer_ids", config, inner, kind=list), layers
        ),
        mask_token_id=mask_id,
        block_size=_at_least(
            2, "block_size", need("block_size", config, inner), folder
        ),
        rms_norm_eps=need("rms_norm_eps", config, kind=float),
        rope_theta=float(
            need("rope_theta", config, config.get("rope_parameters") or {}, kind=float)
        ),
        tap_norm=config.get("tap_norm", False),
    )


def _kind(config: dict, folder: Path) -> str:
    named = (config.get("architectures") or ["none"])[0]
    for kind, architecture in ARCHITECTURES.items():
        if named == architecture:
            return kind
    known = ", ".join(ARCHITECTURES.values())
    raise LabError(f"{folder}: unknown architecture {named!r}; known are {known}.")


def _head(
    kind: str, config: dict, drafter: DFlashConfig, draft_ids, folder: Path
) -> nn.Module | None:
    def need(key: str) -> int:
        return _at_least(1, key, _need(key, config, folder=folder), folder)

    if kind == "dflash":
        return None
    sizes = head_sizes(drafter.vocab_size, draft_ids)
    if kind == "markov":
        return MarkovHead(rank=need("markov_rank"), **sizes)
    rank, width = need("xpress_rank"), need("xpress_mlp_hidden")
    if need("xpress_block_size") != drafter.block_size:
        raise LabError(
            f"{folder}: xpress_block_size is {config['xpress_block_size']}, "
            f"the drafter's block_size is {drafter.block_size}."
        )
    return XPressHead(
        drafter.hidden_size,
        block_size=drafter.block_size,
        rank=rank,
        mlp_ratio=width // rank,
        **sizes,
    )


def head_sizes(vocab_size: int, draft_ids: torch.Tensor | None) -> dict[str, int]:
    """``vocab_size`` and ``inputs`` of a head: one more input stands for any other
    token where a draft vocabulary limits what can be drafted."""
    if draft_ids is None:
        return {"vocab_size": vocab_size, "inputs": vocab_size}
    return {"vocab_size": len(draft_ids), "inputs": len(draft_ids) + 1}


def _need(key: str, *places: dict, kind=int, folder: Path):
    """A value that config.json must hold, the same in every place that has it."""
    found = [place[key] for place in places if key in place]
    if not found:
        raise LabError(f"{folder}: config.json does not say {key!r}.")
    if any(value != found[0] for value in found):
        raise LabError(f"{folder}: config.json gives {key!r} as {found}.")
    kinds = (int, float) if kind is float else kind
    if isinstance(found[0], bool) or not isinstance(found[0], kinds):
        raise LabError(f"{folder}: {key} is {found[0]!r}, not of kind {kind.__name__}.")
    return found[0]


def _at_least(least: int, key: str, value: int, folder: Path) -> int:
    if value < least:
        raise LabError(f"{folder}: {key} is {value}, but must be {least} or more.")
    return value


def _refuse_unsupported(config: dict, folder: Path) -> None:
    """What published configs may ask for and this drafter does not compute."""
    kinds = set(config.get("layer_types") or ()) - {"full_attention"}
    if kinds:
        raise LabError(
            f"{folder}: layers of kind {', '.join(kinds)} are not supported."
        )
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key) or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise LabError(f"{folder}: {key} {rope} is not supported, only 'default'.")
