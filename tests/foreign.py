"""Tiny checkpoints as other projects write them, by hand: none of our writers is used.

Each function writes the tensors of a random arm on :func:`toys.tiny_target` into a
folder and returns it; ``changes`` are laid over config.json at the end.
"""

import argparse
import json
from pathlib import Path

import torch
import toys
from safetensors.torch import load_file, save_file

BLOCK, RANK = 6, 6
TAPS = (0, 2)
RELEASED = {
    "no_residual": True,
    "no_sublayer_norm": True,
    "no_mix_out": True,
    "input_mode": "concat",
    "markov_only": False,
    "lowrank_base_rank": 0,
    "lr": 3e-4,
}


def head_of(kind: str):
    return toys.strong_head(kind, BLOCK, rank=RANK)


def write(folder: Path, config: dict, tensors: dict, changes=None, shards=1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    changes = changes or {}
    gone = {key for key, value in changes.items() if value is None}
    config = {k: v for k, v in (config | changes).items() if k not in gone}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {name: value.detach().contiguous() for name, value in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    where = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(list(tensors.items())[number::shards])
        save_file(part, folder / name)
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    text = json.dumps(index)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    return folder


def edit_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def zlab_config(inner_block=False, inner_rope=False) -> dict:
    """Old checkpoints have block size and rotary base outside, new ones inside."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        "block_size": BLOCK,
        "dflash_config": {
            "mask_token_id": toys.MASK_ID,
            "target_layer_ids": list(TAPS),
        },
        "num_target_layers": toys.LAYERS,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "hidden_size": toys.HIDDEN,
        "intermediate_size": 40,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 256,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "vocab_size": toys.VOCAB,
        "dtype": "bfloat16",
    }
    if inner_block:
        config["dflash_config"]["block_size"] = config.pop("block_size")
    if inner_rope:
        base = config.pop("rope_theta")
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": base}
    return config


def zlab(folder, drafter, head=None, changes=None, shards=1, **places) -> Path:
    return write(folder, zlab_config(**places), drafter.state_dict(), changes, shards)


def uiuc_xpress(folder, drafter, head, changes=None) -> Path:
    named = {f"xpress_head.{k}": v for k, v in head.published_state().items()}
    config = zlab_config() | {
        "architectures": ["Qwen3XPressModel"],
        "xpress_rank": RANK,
        "xpress_mlp_hidden": 2 * RANK,
        "xpress_block_size": BLOCK,
        "xpress_num_passes": 6,
        "sample_from_anchor": False,
        "xpress_compile_head": True,
    }
    return write(folder, config, drafter.state_dict() | named, changes)


def uiuc_markov(folder, drafter, head, changes=None) -> Path:
    """Their converter names no head type."""
    named = {f"markov_head.{k}": v for k, v in head.state_dict().items()}
    config = zlab_config() | {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": RANK,
        "sample_from_anchor": False,
    }
    return write(folder, config, drafter.state_dict() | named, changes)


def pickle(folder, drafter, head, changes=None, flags=None, **entries) -> Path:
    """``refiner_cotrain_403k.pt`` beside the config of the drafter it began from."""
    zlab(folder, drafter, changes=changes)
    (folder / "model.safetensors").unlink()
    args = RELEASED | {"markov_rank": RANK, "mlp_ratio": 2} | (flags or {})
    if hasattr(head, "published_state"):
        state = head.published_state() | {"mix.tril": torch.ones(BLOCK, BLOCK).tril()}
    else:
        state = {k.removeprefix("markov_"): v for k, v in head.state_dict().items()}
    saved = {
        "args": argparse.Namespace(**args),
        "refiner_state_dict": state,
        "draft_state_dict": drafter.state_dict(),
        "global_step": 403_000,
    } | entries
    saved = {name: value for name, value in saved.items() if value is not None}
    torch.save(saved, folder / "xpress_refiner_cotrain_403k.pt")
    return folder


DEEPSPEC_TYPES = {"MarkovHead": "vanilla", "GatedMarkovHead": "gated"}


def deepspec(
    folder, drafter, head, changes=None, target=None, confidence=None, copies=True
) -> Path:
    """Flat config, anchor-first without saying so, copies of embedding and head."""
    config = zlab_config()
    inner = config.pop("dflash_config")
    config |= inner | {
        "architectures": ["Qwen3DSparkModel"],
        "num_anchors": 512,
        "markov_rank": 0 if head is None else RANK,
        "enable_confidence_head": confidence is not None,
    }
    del config["auto_map"]
    tensors = dict(drafter.state_dict())
    if head is not None:
        config["markov_head_type"] = DEEPSPEC_TYPES.get(type(head).__name__, "rnn")
        tensors |= {f"markov_head.{k}": v for k, v in head.state_dict().items()}
    if confidence is not None:
        config["confidence_head_with_markov"] = confidence.rank > 0
        parts = confidence.state_dict()
        tensors |= {f"confidence_head.{k}": v for k, v in parts.items()}
    if copies:
        tensors |= copies_of(target)
    return write(folder, config, tensors, changes)


def deepspec_eagle(folder, drafter, target, changes=None, copies=True) -> Path:
    """DeepSpec's eagle3: as many taps as named, chain length under ``ttt_length``."""
    c = drafter.config
    config = zlab_config(inner_rope=True)
    for key in ("auto_map", "block_size", "dflash_config"):
        del config[key]
    config |= {
        "architectures": ["Qwen3Eagle3Model"],
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "draft_num_hidden_layers": 1,
        "intermediate_size": c.intermediate_size,
        "target_layer_ids": list(c.target_layer_ids),
        "target_model_name_or_path": "tiny",
        "ttt_length": c.chain,
        "step_loss_decay": 0.8,
    }
    tensors = dict(drafter.state_dict())
    if copies:
        tensors |= copies_of(target)
    return write(folder, config, tensors, changes)


def copies_of(target) -> dict:
    """The frozen embedding and head that DeepSpec's folders carry."""
    model = target.model
    return {
        "embed_tokens.weight": model.get_input_embeddings().weight.clone(),
        "lm_head.weight": model.get_output_embeddings().weight.clone(),
    }


SPECULATORS_HEAD = {
    "w1.weight": "token_embed.weight",
    "down_h.weight": "down_h.weight",
    "down_g.weight": "down_g.weight",
    "in_proj.weight": "in_proj.weight",
    "mix.L": "mix_l",
    "mlp.gate_proj.weight": "mlp_gate.weight",
    "mlp.up_proj.weight": "mlp_up.weight",
    "mlp.down_proj.weight": "mlp_down.weight",
    "w2.weight": "readout.weight",
}


def speculators(folder, drafter, head=None, changes=None, layer=None, extra=None):
    """Taps are counted from the embedding; defaults of the model type are left out."""
    named, model = {}, "dflash"
    config = {}
    if head is not None and hasattr(head, "published_state"):
        model = "xpress"
        state = head.published_state()
        named = {
            f"refiner_head.{SPECULATORS_HEAD[k]}": v.clone() for k, v in state.items()
        }
        config = {"xpress_rank": RANK, "xpress_mlp_ratio": 2, "num_jacobi_passes": 6}
    elif head is not None:
        model = "dspark"
        named = {f"markov_head.{k}": v for k, v in head.state_dict().items()}
        config = {
            "markov_rank": RANK,
            "markov_head_type": DEEPSPEC_TYPES.get(type(head).__name__, "rnn"),
            "enable_confidence_head": False,
            "confidence_head_with_markov": False,
        }
    config |= {
        "architectures": [f"{model}Speculator"],
        "speculators_model_type": model,
        "speculators_config": {"algorithm": model},
        "transformer_layer_config": {
            "model_type": "qwen3",  # rms_norm_eps 1e-6 and base 1e4 are its defaults
            "num_hidden_layers": 2,
            "layer_types": ["full_attention"] * 2,
            "hidden_size": toys.HIDDEN,
            "intermediate_size": 40,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": toys.VOCAB,
            **(layer or {}),
        },
        "draft_vocab_size": toys.VOCAB,
        "block_size": BLOCK,
        "mask_token_id": toys.MASK_ID,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in TAPS],
        "sample_from_anchor": False,
    }
    return write(folder, config, drafter.state_dict() | named | (extra or {}), changes)
