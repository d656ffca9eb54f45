"""The layout of vllm-project/speculators 0.9 (methods 2.6), in and out.

Names of the head differ, the transformer's settings lie in a table of their own, and
taps are counted as transformers does, the embedding being 0: a tap is one more than
elsewhere (methods 1.1). Its heads embed *target* ids; ours embed draft ids, so a head
with a draft vocabulary does not pass from one to the other.
"""

import torch
from transformers import AutoConfig

from xpress_lab.checkpoints.arm import MARKOV_TYPES, Arm
from xpress_lab.checkpoints.config import Config
from xpress_lab.checkpoints.copies import drop_copies
from xpress_lab.checkpoints.serving import (
    ARCHITECTURES,
    LAYER_KEYS,
    draft_vocabulary,
    serving_tensors,
)
from xpress_lab.errors import LabError
from xpress_lab.target import Target

MODELS = {"dflash": "dflash", "dspark": "markov", "xpress": "xpress"}
HEAD_NAMES = {  # published serving name: speculators' name
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
OURS, THEIRS = "xpress_head.", "refiner_head."
COPIES = {
    "embed_tokens.weight": "embedding",
    "lm_head.weight": "head",
    "verifier_lm_head.weight": "head",
    "verifier_norm.weight": "norm",
}
COPIED_KEYS = ("block_size", "mask_token_id", "sample_from_anchor")
DSPARK_KEYS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)


def from_speculators(config: Config, tensors: dict, target: Target):
    """Settings and tensors in the serving layout."""
    model = config.need("speculators_model_type", str)
    if model not in MODELS:
        raise LabError(
            f"{config.where}: speculators_model_type is {model!r}; "
            f"known are {', '.join(MODELS)}."
        )
    values = whole_layer_config(config) | {
        "architectures": [ARCHITECTURES[MODELS[model]]],
        "num_target_layers": target.config.num_hidden_layers,
    }
    for key in COPIED_KEYS:
        config.need(key, bool if key == "sample_from_anchor" else int)
        values[key] = config.values[key]
    taps = config.need("aux_hidden_state_layer_ids", list)
    values["target_layer_ids"] = [t - 1 if isinstance(t, int) else t for t in taps]
    if model == "dspark":
        values |= {k: config.values[k] for k in DSPARK_KEYS if k in config.values}
    if model == "xpress":
        rank, ratio = config.at_least(1, "xpress_rank"), config.need("xpress_mlp_ratio")
        values |= {
            "xpress_rank": rank,
            "xpress_mlp_hidden": rank * ratio,
            "xpress_block_size": values["block_size"],
        }
    tensors, ids = take_vocabulary(config, tensors, target, model)
    if ids is not None:
        values["draft_vocab_size"] = len(ids)
    tensors = drop_copies(tensors, target, config.where, COPIES, ids)
    if ids is not None:
        tensors["d2t"] = ids - torch.arange(len(ids))
    ours = {THEIRS + theirs: OURS + name for name, theirs in HEAD_NAMES.items()}
    return values, {ours.get(name, name): value for name, value in tensors.items()}


def whole_layer_config(config: Config) -> dict:
    """The transformer's settings. Only what differs from the defaults of its model
    type is written; transformers knows the rest."""
    layer = dict(config.need("transformer_layer_config", dict))
    model_type = layer.pop("model_type", "none")
    try:
        return AutoConfig.for_model(model_type, **layer).to_dict()
    except (ValueError, TypeError) as error:
        raise LabError(
            f"{config.where}: transformer_layer_config of type {model_type!r} "
            "is not known to transformers."
        ) from error


def take_vocabulary(config: Config, tensors: dict, target: Target, model: str):
    """Tensors without the maps between vocabularies; ids that may be drafted."""
    tensors = dict(tensors)
    allowed = tensors.pop("t2d", None)
    if config.need("draft_vocab_size") == target.vocab_size:
        tensors.pop("d2t", None)
        return tensors, None
    if model != "dflash":
        raise LabError(
            f"{config.where}: draft_vocab_size is {config.values['draft_vocab_size']}, "
            f"the target's vocab_size is {target.vocab_size}; a {model} head of this "
            "format is read with the whole vocabulary only."
        )
    ids = draft_vocabulary(config, tensors, target)
    if allowed is not None and allowed.nonzero().flatten().tolist() != ids.tolist():
        raise LabError(f"{config.where}: tensors t2d and d2t name different tokens.")
    return tensors, ids


def speculators_config(arm: Arm, verifier: str, verifier_architecture: str) -> dict:
    """config.json as speculators writes it."""
    c = arm.drafter.config
    model = {theirs: ours for ours, theirs in MODELS.items()}
    kind = model["markov" if arm.kind in MARKOV_TYPES else arm.kind]
    named = {"dflash": "DFlash", "dspark": "DSpark", "xpress": "XPress"}[kind]
    proposal = {"proposal_type": "greedy", "speculative_tokens": c.drafts}
    config = {
        "architectures": [f"{named}Speculator"],
        "speculators_model_type": kind,
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {
                "name_or_path": verifier,
                "architectures": [verifier_architecture],
            },
        },
        "transformer_layer_config": {
            "model_type": "qwen3",
            **{key: getattr(c, key) for key in LAYER_KEYS},
            "intermediate_size": c.intermediate_size,
            "num_hidden_layers": c.num_hidden_layers,
            "layer_types": ["full_attention"] * c.num_hidden_layers,
            "rms_norm_eps": c.rms_norm_eps,
            "rope_theta": c.rope_theta,
            "vocab_size": c.vocab_size,
        },
        "draft_vocab_size": c.vocab_size,
        "block_size": c.block_size,
        "mask_token_id": c.mask_token_id,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in c.target_layer_ids],
        "sample_from_anchor": c.sample_from_anchor,
    }
    if kind == "dspark":
        config |= {
            "markov_rank": arm.head.rank,
            "markov_head_type": MARKOV_TYPES[arm.kind],
            "enable_confidence_head": arm.confidence is not None,
            "confidence_head_with_markov": bool(arm.confidence and arm.confidence.rank),
        }
    if kind == "xpress":
        rank = arm.head.mix.L.shape[0]
        config |= {
            "xpress_rank": rank,
            "xpress_mlp_ratio": arm.head.trans.gate_proj.out_features // rank,
            "num_jacobi_passes": 6,
        }
    return config


def speculators_tensors(arm: Arm) -> dict[str, torch.Tensor]:
    """Every tensor under speculators' name."""
    theirs = {OURS + name: THEIRS + named for name, named in HEAD_NAMES.items()}
    tensors = serving_tensors(arm)
    return {theirs.get(name, name): value for name, value in tensors.items()}
