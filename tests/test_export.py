"""Checkpoints go out exactly, in layouts that others read, with a line that uses them.

* vllm, speculators, folder: what is written comes back bit by bit.
* What an engine would ignore is refused, not dropped.
* save_pretrained and from_pretrained of drafters and heads: exact and strict.
"""

import json
import shlex

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from xpress_lab.checkpoints import MARKOV_TYPES, Arm, export_arm, load_arm
from xpress_lab.drafters.dflash import DFlashDrafter
from xpress_lab.errors import LabError
from xpress_lab.refiners.confidence import ConfidenceHead
from xpress_lab.refiners.markov import GatedMarkovHead, MarkovHead, RNNMarkovHead
from xpress_lab.refiners.xpress import XPressHead

BLOCK = 6
KINDS = ["dflash", *MARKOV_TYPES, "xpress"]
NAME = "org/target"


def arm_of(kind: str, target, anchor_first=False, tap_norm=False, sure=False) -> Arm:
    drafter = toys.tiny_drafter(
        target, BLOCK, anchor_first=anchor_first, tap_norm=tap_norm
    )
    head = None if kind == "dflash" else toys.strong_head(kind, BLOCK)
    rank = head.rank if kind in MARKOV_TYPES else 0
    confidence = toys.sharp_confidence(toys.HIDDEN, rank) if sure else None
    return Arm(kind, drafter, head, confidence=confidence)


def same(ours: Arm, theirs: Arm) -> None:
    assert ours.kind == theirs.kind
    assert ours.drafter.config == theirs.drafter.config
    for one, other in zip(ours.modules(), theirs.modules(), strict=True):
        expected, found = one.state_dict(), other.state_dict()
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)


ROUND_TRIPS = [
    (kind, to, anchor_first)
    for kind in KINDS
    for to in ("vllm", "speculators", "folder")
    for anchor_first in (False, True)
    if not (kind == "xpress" and anchor_first)
]


@pytest.mark.parametrize(("kind", "to", "anchor_first"), ROUND_TRIPS)
def test_what_goes_out_comes_back_exactly(target, tmp_path, kind, to, anchor_first):
    arm = arm_of(kind, target, anchor_first, sure=kind in MARKOV_TYPES)
    export_arm(arm, tmp_path, to, target, NAME)
    same(arm, load_arm(tmp_path, target))


@pytest.mark.parametrize("kind", KINDS)
def test_the_folder_keeps_what_is_only_ours(target, tmp_path, kind):
    arm = arm_of(kind, target, tap_norm=True, sure=True)
    line = export_arm(arm, tmp_path, "folder", target, NAME)
    assert str(tmp_path) in line
    same(arm, load_arm(tmp_path, target))
    for to in ("vllm", "speculators"):
        with pytest.raises(LabError, match="norms its taps"):
            export_arm(arm, tmp_path / to, to, target, NAME)
        assert not (tmp_path / to).exists()


@pytest.mark.parametrize("to", ["vllm", "speculators"])
def test_draft_vocabularies_and_lone_confidence_heads_stay(target, tmp_path, to):
    arm = arm_of("xpress", target, sure=True)
    with pytest.raises(LabError, match="beside a Markov head only"):
        export_arm(arm, tmp_path, to, target, NAME)
    ids = torch.arange(0, toys.VOCAB, 2)
    arm = Arm("dflash", toys.tiny_drafter(target, BLOCK), draft_ids=ids)
    with pytest.raises(LabError, match="draft vocabulary of 20 of 40"):
        export_arm(arm, tmp_path, to, target, NAME)


def test_an_unknown_layout_is_refused(target, tmp_path):
    with pytest.raises(LabError, match="Unknown export 'gguf': use vllm, spec"):
        export_arm(arm_of("dflash", target), tmp_path, "gguf", target, NAME)


@pytest.mark.parametrize(
    ("kind", "method", "architecture"),
    [
        ("dflash", "dflash", "DFlashDraftModel"),
        ("markov", "dspark", "Qwen3DSparkModel"),
        ("markov-rnn", "dspark", "Qwen3DSparkModel"),
        ("xpress", "xpress", "Qwen3XPressModel"),
    ],
)
@pytest.mark.parametrize("anchor_first", [False, True])
def test_the_vllm_command(target, tmp_path, kind, method, architecture, anchor_first):
    """methods 2.7: which architecture, which method, how many drafts."""
    if kind == "xpress" and anchor_first:
        return
    folder = tmp_path / "with space"
    arm = arm_of(kind, target, anchor_first)
    words = shlex.split(export_arm(arm, folder, "vllm", target, NAME))
    assert words[:4] == ["vllm", "serve", NAME, "--speculative-config"]
    assert json.loads(words[4]) == {
        "method": method,
        "model": str(folder),
        "num_speculative_tokens": BLOCK if anchor_first else BLOCK - 1,
    }
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["architectures"] == [architecture]
    assert config["sample_from_anchor"] is anchor_first
    assert "tap_norm" not in config and config["max_position_embeddings"] == 256
    if kind == "xpress":
        assert config["xpress_block_size"] == BLOCK
        assert config["xpress_mlp_hidden"] == 2 * config["xpress_rank"]
        stored = load_file(folder / "model.safetensors")["xpress_head.mix.L"]
        assert torch.equal(stored, arm.head.mix.L)  # raw, to be folded while loading


def test_the_speculators_folder(target, tmp_path):
    arm = arm_of("xpress", target)
    line = export_arm(arm, tmp_path, "speculators", target, NAME)
    assert shlex.split(line) == ["vllm", "serve", str(tmp_path)]
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    verifier = config["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": NAME, "architectures": ["Qwen3ForCausalLM"]}
    assert config["aux_hidden_state_layer_ids"] == [1, 3]  # taps 0 and 2
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {"refiner_head.mix_l", "refiner_head.readout.weight"} <= names


# --- save_pretrained and from_pretrained ---------------------------------------

MODULES = {
    DFlashDrafter: lambda target: toys.tiny_drafter(target, BLOCK, anchor_first=True),
    MarkovHead: lambda _: toys.strong_head("markov", BLOCK, inputs=toys.VOCAB + 1),
    GatedMarkovHead: lambda _: toys.strong_head("markov-gated", BLOCK),
    RNNMarkovHead: lambda _: toys.strong_head("markov-rnn", BLOCK),
    XPressHead: lambda _: toys.strong_head("xpress", BLOCK, inputs=toys.VOCAB + 1),
    ConfidenceHead: lambda _: toys.sharp_confidence(toys.HIDDEN, 4),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cls", MODULES)
def test_a_module_comes_back_exactly(target, tmp_path, cls, dtype):
    module = MODULES[cls](target).to(dtype)
    module.save_pretrained(tmp_path)
    back = cls.from_pretrained(tmp_path)
    assert back.settings() == module.settings() and not back.training
    expected, found = module.state_dict(), back.state_dict()
    assert expected.keys() == found.keys()
    for name in expected:
        assert found[name].dtype == dtype and torch.equal(expected[name], found[name])
    wide = cls.from_pretrained(tmp_path, torch.float64)
    assert next(wide.parameters()).dtype == torch.float64


def test_a_saved_drafter_is_a_checkpoint_too(target, tmp_path):
    drafter = toys.tiny_drafter(target, BLOCK, anchor_first=True)
    drafter.save_pretrained(tmp_path)
    same(Arm("dflash", drafter), load_arm(tmp_path, target))


def test_saved_modules_are_read_strictly(target, tmp_path):
    MODULES[MarkovHead](target).save_pretrained(tmp_path)
    with pytest.raises(LabError, match="holds MarkovHead, not XPressHead"):
        XPressHead.from_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({"markov_w1.weight": tensors["markov_w1.weight"]}, path)
    with pytest.raises(LabError, match="missing: markov_w2"):
        MarkovHead.from_pretrained(tmp_path)
    save_file(tensors, path)
    text = (tmp_path / "config.json").read_text("utf-8")
    config = json.loads(text) | {"rank": 3}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(LabError, match="of another size: markov_w1"):
        MarkovHead.from_pretrained(tmp_path)
    config["colour"] = "green"
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(LabError, match="does not describe a MarkovHead"):
        MarkovHead.from_pretrained(tmp_path)
