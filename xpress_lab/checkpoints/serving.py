"""The published serving layout, which is also our own: config.json with z-lab's keys.

Drafter tensors have no prefix; an xPress head lies under ``xpress_head.`` with its
*raw* mixer, a Markov head under ``markov_head.``, a confidence head under
``confidence_head.`` (methods 1.1, 2.7, 3). z-lab's bare drafters and UIUC-SSAIL's
XPress and Markov folders are read as they are; the other formats are translated into
this one first, so that everything passes the same checks.
"""

import torch
from torch import nn

from xpress_lab.borrowed import check_draft_ids
from xpress_lab.checkpoints.arm import MARKOV_TYPES, Arm, new_head
from xpress_lab.checkpoints.config import Config
from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.errors import LabError
from xpress_lab.pretrained import load_strictly, published
from xpress_lab.refiners.confidence import ConfidenceHead
from xpress_lab.target import Target, check_taps

ARCHITECTURES = {
    "dflash": "DFlashDraftModel",
    **dict.fromkeys(MARKOV_TYPES, "Qwen3DSparkModel"),
    "xpress": "Qwen3XPressModel",
}
PREFIX = {**dict.fromkeys(MARKOV_TYPES, "markov_head."), "xpress": "xpress_head."}
CONFIDENCE = "confidence_head."
LAYER_KEYS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
MORE_SIZES = ("intermediate_size", "num_hidden_layers")
INNER = ("dflash_config",)

Tensors = dict[str, torch.Tensor]


def serving_tensors(arm: Arm) -> Tensors:
    """Every tensor of an arm under its published name."""
    tensors = dict(arm.drafter.state_dict())
    if arm.head is not None:
        head = published(arm.head)
        tensors |= {PREFIX[arm.kind] + name: value for name, value in head.items()}
    if arm.confidence is not None:
        parts = arm.confidence.state_dict()
        tensors |= {CONFIDENCE + name: value for name, value in parts.items()}
    if arm.draft_ids is not None:
        tensors["d2t"] = offsets(arm.draft_ids)
    return tensors


def offsets(draft_ids: torch.Tensor) -> torch.Tensor:
    """A draft vocabulary as EAGLE-3 and speculators store it: id minus rank."""
    return draft_ids - torch.arange(len(draft_ids))


def serving_config(arm: Arm) -> dict:
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
        "sample_from_anchor": c.sample_from_anchor,
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
    elif arm.kind in MARKOV_TYPES:
        config["markov_rank"] = arm.head.rank
        config["markov_head_type"] = MARKOV_TYPES[arm.kind]
    if arm.confidence is not None:
        config["enable_confidence_head"] = True
        config["confidence_head_with_markov"] = arm.confidence.rank > 0
    return config


def build_arm(config: Config, tensors: Tensors, target: Target) -> Arm:
    """An arm from a folder's settings and tensors, checked against its target.

    Tensors are widened to the target's dtype. Raises :class:`LabError` with both
    values wherever config, tensors and target disagree.
    """
    tensors = dict(tensors)
    kind = arm_kind(config)
    drafter = DFlashDrafter(drafter_config(config, target, kind))
    draft_ids = draft_vocabulary(config, tensors, target)
    head = empty_head(kind, config, drafter.config, draft_ids)
    confidence = empty_confidence(kind, config, drafter.config, head)
    arm = Arm(kind, drafter, head, draft_ids, confidence)
    for module in arm.modules():  # in the target's dtype first: nothing is rounded
        module.to(target.device, target.dtype).eval().requires_grad_(False)
    # The drafter comes last: its names have no prefix, so that it gets the rest.
    for prefix, module in (
        (PREFIX.get(kind), head),
        (CONFIDENCE, confidence),
        ("", drafter),
    ):
        if module is not None:
            names = [name for name in tensors if name.startswith(prefix)]
            mine = {name.removeprefix(prefix): tensors.pop(name) for name in names}
            load_strictly(module, mine, config.where)
    return arm


def arm_kind(config: Config) -> str:
    """Which arm an architecture and its head type make."""
    named = (config.values.get("architectures") or ["none"])[0]
    if named == ARCHITECTURES["markov"]:
        if config.values.get("markov_rank") == 0:
            return "dflash"  # DeepSpec's way to say: no Markov head
        # UIUC-SSAIL's converter writes no type: theirs is the vanilla head.
        wanted = config.values.get("markov_head_type", "vanilla")
        for kind, published_type in MARKOV_TYPES.items():
            if wanted == published_type:
                return kind
        raise LabError(
            f"{config.where}: markov_head_type is {wanted!r}; "
            f"known are {', '.join(MARKOV_TYPES.values())}."
        )
    for kind, architecture in ARCHITECTURES.items():
        if named == architecture:
            return kind
    known = ", ".join(dict.fromkeys(ARCHITECTURES.values()))
    raise LabError(
        f"{config.where}: unknown architecture {named!r}; known are {known}."
    )


def drafter_config(config: Config, target: Target, kind: str) -> DFlashConfig:
    """The drafter's sizes, checked against the target's."""
    config.refuse_unsupported()
    for key in ("hidden_size", "vocab_size"):
        config.same(key, config.need(key), getattr(target.config, key), "target")
    layers = config.need("num_target_layers")
    if layers != target.config.num_hidden_layers:
        raise LabError(
            f"{config.where}: trained on a target of {layers} layers, "
            f"this one has {target.config.num_hidden_layers}."
        )
    mask_id = config.need("mask_token_id", inside=INNER)
    if not 0 <= mask_id < target.vocab_size:
        raise LabError(
            f"{config.where}: mask_token_id {mask_id} is not in the vocabulary of "
            f"{target.vocab_size}."
        )
    taps = config.need("target_layer_ids", list, INNER)
    sizes = {key: config.at_least(1, key) for key in (*LAYER_KEYS, *MORE_SIZES)}
    heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    if heads % shared:
        raise LabError(
            f"{config.where}: {heads} attention heads do not share "
            f"{shared} key/value heads evenly."
        )
    return DFlashConfig(
        **sizes,
        vocab_size=target.vocab_size,
        num_target_layers=layers,
        target_layer_ids=check_taps(taps, layers),
        mask_token_id=mask_id,
        block_size=config.at_least(2, "block_size", INNER),
        rms_norm_eps=config.need("rms_norm_eps", float),
        rope_theta=float(config.need("rope_theta", float, ("rope_parameters",))),
        tap_norm=config.values.get("tap_norm", False),
        sample_from_anchor=block_layout(config, kind),
    )


def block_layout(config: Config, kind: str) -> bool:
    """Whether the layout is anchor-first (methods 1.2); it must be known.

    z-lab's folders do not say: a ``dflash_config`` means fill-in.
    """
    if "sample_from_anchor" in config.values:
        anchor_first = config.need("sample_from_anchor", bool)
    elif "dflash_config" in config.values:
        anchor_first = False
    else:
        raise LabError(
            f"{config.where}: the block layout is not declared (sample_from_anchor), "
            "and fill-in and anchor-first weights are not interchangeable."
        )
    if anchor_first and kind == "xpress":
        raise LabError(
            f"{config.where}: the anchor-first block layout is declared; "
            "an xPress head refines the fill-in layout (sample_from_anchor: false)."
        )
    return anchor_first


def draft_vocabulary(config: Config, tensors: Tensors, target: Target):
    """Ids of the draft vocabulary, of which tensor ``d2t`` has the :func:`offsets`."""
    if "draft_vocab_size" not in config.values:
        return None
    count = config.at_least(1, "draft_vocab_size")
    if "d2t" not in tensors or tensors["d2t"].shape != (count,):
        found = list(tensors["d2t"].shape) if "d2t" in tensors else "absent"
        raise LabError(
            f"{config.where}: draft_vocab_size is {count}, tensor d2t is {found}."
        )
    ids = tensors.pop("d2t").long() + torch.arange(count)
    check_draft_ids(ids, target.vocab_size)
    return ids


def empty_head(
    kind: str, config: Config, drafter: DFlashConfig, draft_ids
) -> nn.Module | None:
    """The head that the config describes, to be filled."""
    if kind == "dflash":
        return None
    if kind in MARKOV_TYPES:
        rank = config.at_least(1, "markov_rank")
        return new_head(kind, drafter, rank, draft_ids=draft_ids)
    rank = config.at_least(1, "xpress_rank")
    width = config.at_least(1, "xpress_mlp_hidden")
    block = config.at_least(1, "xpress_block_size")
    config.same("xpress_block_size", block, drafter.block_size, "drafter")
    return new_head(kind, drafter, rank, width // rank, draft_ids)


def empty_confidence(
    kind: str, config: Config, drafter: DFlashConfig, head
) -> ConfidenceHead | None:
    """The confidence head that the config describes, to be filled."""
    if not config.values.get("enable_confidence_head"):
        return None
    reads_markov = config.need("confidence_head_with_markov", bool)
    if reads_markov and kind not in MARKOV_TYPES:
        raise LabError(
            f"{config.where}: confidence_head_with_markov is true, "
            f"but a {kind} arm has no Markov head."
        )
    return ConfidenceHead(drafter.hidden_size, head.rank if reads_markov else 0)
