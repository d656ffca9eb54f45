"""Checkpoints out: folders for vLLM, for speculators, and our own.

Our own folder is already in the serving layout. The other two say less: what an
engine would silently ignore, and then draft badly, is refused here.
"""

import json
import shlex
from pathlib import Path

from xpress_lab.checkpoints.arm import MARKOV_TYPES, Arm
from xpress_lab.checkpoints.loading import save_arm
from xpress_lab.checkpoints.serving import serving_config, serving_tensors
from xpress_lab.checkpoints.speculators import speculators_config, speculators_tensors
from xpress_lab.errors import LabError
from xpress_lab.files import write_checkpoint
from xpress_lab.target import Target

LAYOUTS = ("vllm", "speculators", "folder")
VLLM_METHODS = {
    "dflash": "dflash",
    **dict.fromkeys(MARKOV_TYPES, "dspark"),
    "xpress": "xpress",
}


def export_arm(
    arm: Arm, folder: Path, to: str, target: Target, target_name: str
) -> str:
    """Write an arm for another program.

    Args:
        to: ``vllm``, ``speculators`` or ``folder``.
        target_name: Hub id or path under which the target will be served.

    Returns:
        The command line, or the line of Python, that uses the folder.
    """
    if to not in LAYOUTS:
        raise LabError(f"Unknown export {to!r}: use {', '.join(LAYOUTS)}.")
    if to == "folder":
        save_arm(arm, folder)
        return f"xpress_lab.checkpoints.load_arm({str(folder)!r}, target)"
    refuse_what_is_ignored(arm, to)
    if to == "speculators":
        return export_to_speculators(arm, folder, target, target_name)
    write_checkpoint(folder, serving_tensors(arm), vllm_config(arm, target))
    speculative = {
        "method": VLLM_METHODS[arm.kind],
        "model": str(folder),
        "num_speculative_tokens": arm.drafter.config.drafts,
    }
    words = ["vllm", "serve", target_name]
    return shlex.join([*words, "--speculative-config", json.dumps(speculative)])


def export_to_speculators(arm: Arm, folder: Path, target: Target, name: str) -> str:
    """speculators' layout; its config names the verifier, so that alone is served."""
    config = speculators_config(arm, name, type(target.model).__name__)
    write_checkpoint(folder, speculators_tensors(arm), config)
    return shlex.join(["vllm", "serve", str(folder)])


def vllm_config(arm: Arm, target: Target) -> dict:
    """Our serving config with the settings that vLLM's loader reads besides."""
    config = serving_config(arm)
    del config["tap_norm"]
    config |= {
        "attention_bias": False,
        "hidden_act": "silu",
        "max_position_embeddings": target.config.max_position_embeddings,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "dtype": str(arm.drafter.norm.weight.dtype).removeprefix("torch."),
    }
    if arm.kind == "xpress":
        config |= {
            "xpress_candidate_topc": 0,
            "xpress_fused_kernel": False,
            "xpress_compile_head": True,
        }
    return config


def refuse_what_is_ignored(arm: Arm, to: str) -> None:
    """Raise for parts that exist here only: an engine would drop them unseen."""
    config = arm.drafter.config
    if arm.kind == "eagle":
        raise LabError(
            f"An eagle arm is written in DeepSpec's layout, which {to} does not read: "
            "export to folder."
        )
    if config.tap_norm:
        raise LabError(
            f"This drafter norms its taps (tap_norm), which {to} does not: "
            "it would draft badly there. Export to folder."
        )
    if arm.draft_ids is not None:
        raise LabError(
            f"This arm has a draft vocabulary of {len(arm.draft_ids)} of "
            f"{config.vocab_size} tokens; export to {to} needs all. Export to folder."
        )
    if arm.confidence is not None and arm.kind not in MARKOV_TYPES:
        raise LabError(
            f"{to} knows a confidence head beside a Markov head only, not beside "
            f"a {arm.kind} arm. Export to folder."
        )
