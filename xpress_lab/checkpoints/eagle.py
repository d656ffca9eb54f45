"""EAGLE-3 drafters on disk, in DeepSpec's layout, which is also our own (methods 5).

The config is flat; the taps are any that it names. DeepSpec's folders carry frozen
copies of the target's embedding and head, which are checked and dropped; ours have
none. A draft vocabulary is written as EAGLE-3 does.
"""

from xpress_lab.checkpoints.arm import Arm
from xpress_lab.checkpoints.config import Config
from xpress_lab.checkpoints.copies import drop_copies
from xpress_lab.checkpoints.deepspec import COPIES
from xpress_lab.checkpoints.serving import draft_vocabulary, offsets
from xpress_lab.drafters.eagle import EagleConfig, EagleDrafter
from xpress_lab.errors import LabError
from xpress_lab.pretrained import load_strictly
from xpress_lab.target import Target, check_taps

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "num_target_layers",
)


def eagle_folder(arm: Arm) -> tuple[dict, dict]:
    """Tensors and config.json of an EAGLE-3 arm."""
    tensors = dict(arm.drafter.state_dict())
    config = {"architectures": [arm.drafter.architecture]} | arm.drafter.settings()
    if arm.draft_ids is not None:
        tensors["d2t"] = offsets(arm.draft_ids)
        config["draft_vocab_size"] = len(arm.draft_ids)
    return tensors, config


def is_eagle(values: dict) -> bool:
    """Whether a config.json is that of an EAGLE-3 drafter."""
    return values.get("architectures") == [EagleDrafter.architecture]


def build_eagle(config: Config, tensors: dict, target: Target) -> Arm:
    """An arm from a folder's settings and tensors, checked against its target."""
    drafter = EagleDrafter(eagle_config(config, target))
    drafter.to(target.device, target.dtype).eval().requires_grad_(False)
    tensors = drop_copies(tensors, target, config.where, COPIES)
    draft_ids = draft_vocabulary(config, tensors, target)
    load_strictly(drafter, tensors, config.where)
    return Arm("eagle", drafter, draft_ids=draft_ids)


def eagle_config(config: Config, target: Target) -> EagleConfig:
    """The drafter's sizes, checked against the target's."""
    config.refuse_unsupported()
    depth = config.at_least(1, "num_hidden_layers")
    if depth != 1:
        raise LabError(
            f"{config.where}: num_hidden_layers is {depth}: drafting on own states "
            "keeps the keys of 1 layer only."
        )
    sizes = {key: config.at_least(1, key) for key in SIZES}
    for key in ("hidden_size", "vocab_size"):
        config.same(key, sizes[key], getattr(target.config, key), "target")
    layers = target.config.num_hidden_layers
    config.same("num_target_layers", sizes["num_target_layers"], layers, "target")
    # DeepSpec drafts as many tokens as training unrolled, and says it once.
    chain = "chain" if "chain" in config.values else "ttt_length"
    return EagleConfig(
        **sizes,
        target_layer_ids=check_taps(config.need("target_layer_ids", list), layers),
        chain=config.at_least(1, chain),
        rms_norm_eps=config.need("rms_norm_eps", float),
        rope_theta=float(config.need("rope_theta", float, ("rope_parameters",))),
    )
