"""A checkpoint comes back exactly, or is refused in one clear sentence.

* Every arm survives a round trip bit by bit, and drafts the same afterwards; the
  mixer on disk is the raw one, under the published names (pitfalls 18, 21, 22).
* A folder that is damaged, made for another target, in the other block layout or at
  odds with itself raises ``LabError`` naming what is wrong (pitfalls 13, 16, 17).
* Nothing on disk is ever executed.
"""

import json
import pickle
from pathlib import Path

import pytest
import torch
import toys
from safetensors.torch import load_file, save_file

from xpress_lab.block_method import BlockMethod
from xpress_lab.checkpoints import MARKOV_TYPES, Arm, load_arm, save_arm
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.sampling import Sampling

KINDS = ["dflash", *MARKOV_TYPES, "xpress"]
BLOCK = 6


def new_arm(kind: str, target, **drafter) -> Arm:
    """Random weights that float32 holds exactly, as any published weight is."""
    head = None if kind == "dflash" else toys.strong_head(kind, BLOCK)
    arm = Arm(kind, toys.tiny_drafter(target, BLOCK, **drafter), head)
    for module in (arm.drafter, arm.head):
        if module is not None:
            module.float().to(target.dtype)
    return arm


@pytest.fixture
def folder(target, tmp_path) -> Path:
    """A sound xPress checkpoint, to be damaged."""
    save_arm(new_arm("xpress", target), tmp_path)
    return tmp_path


def edit_config(folder: Path, **changes) -> None:
    """Set keys of config.json; ``None`` deletes one; ``outer__key`` reaches inside."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        *outer, key = name.split("__")
        place = config
        for part in outer:
            place = place.setdefault(part, {})
        if value is None:
            del place[key]
        else:
            place[key] = value
    path.write_text(json.dumps(config), encoding="utf-8")


def edit_tensors(folder: Path, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


# --- round trips --------------------------------------------------------------


@pytest.mark.parametrize("tap_norm", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_an_arm_comes_back_exactly(target, tmp_path, kind, tap_norm):
    arm = new_arm(kind, target, tap_norm=tap_norm)
    save_arm(arm, tmp_path)
    back = load_arm(tmp_path, target)
    assert back.kind == kind and back.drafter.config == arm.drafter.config
    modules = [(arm.drafter, back.drafter)]
    modules += [] if arm.head is None else [(arm.head, back.head)]
    assert (arm.head is None) == (back.head is None)
    for ours, theirs in modules:
        expected, found = ours.state_dict(), theirs.state_dict()
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        assert not theirs.training
        assert not any(p.requires_grad for p in theirs.parameters())
    texts = []
    for each in (arm, back):
        head = None if each.head is None else each.head.fold()
        method = BlockMethod(kind, target, each.drafter, head, 3)
        out = decode(target, method, toys.PROMPT, sampling=Sampling(1.0))
        texts.append((out.tokens, [r.block for r in out.rounds]))
    assert texts[0] == texts[1]


def test_saving_again_what_was_loaded_gives_the_same_bytes(target, folder, tmp_path):
    again = tmp_path / "again"
    save_arm(load_arm(folder, target), again)
    for name in ("config.json", "model.safetensors"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_the_mixer_on_disk_is_raw_also_after_folding(target, tmp_path):
    arm = new_arm("xpress", target)
    arm.head.fold()
    save_arm(arm, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(stored["xpress_head.mix.L"], arm.head.mix.L)
    assert not list(tmp_path.glob("*.partial"))


MARKOV_NAMES = {f"markov_head.markov_w{i}.weight" for i in (1, 2)}


def projection(name: str) -> set[str]:
    return {f"markov_head.{name}_proj.{part}" for part in ("weight", "bias")}


def test_tensor_names_are_the_published_ones(target, tmp_path):
    """methods 1.1, 2.1, 2.7 and 3."""
    head = "w1 down_h down_g in_proj mlp.gate_proj mlp.up_proj mlp.down_proj w2"
    heads = {
        "dflash": set(),
        "markov": MARKOV_NAMES,
        "markov-gated": MARKOV_NAMES | projection("gate"),
        "markov-rnn": MARKOV_NAMES | projection("joint"),
        "xpress": {f"xpress_head.{name}.weight" for name in head.split()}
        | {"xpress_head.mix.L"},
    }
    layer = "input_layernorm post_attention_layernorm self_attn.q_proj"
    layer += " self_attn.k_proj self_attn.v_proj self_attn.o_proj self_attn.q_norm"
    layer += " self_attn.k_norm mlp.gate_proj mlp.up_proj mlp.down_proj"
    drafter = {"fc.weight", "hidden_norm.weight", "norm.weight"}
    drafter |= {f"layers.{i}.{n}.weight" for i in range(2) for n in layer.split()}
    for kind, names in heads.items():
        save_arm(new_arm(kind, target), tmp_path / kind)
        stored = load_file(tmp_path / kind / "model.safetensors")
        assert set(stored) == drafter | names
        config = json.loads((tmp_path / kind / "config.json").read_text("utf-8"))
        assert config["sample_from_anchor"] is False


def test_half_precision_on_disk_is_widened_to_the_target_s_dtype(target, tmp_path):
    arm = new_arm("xpress", target)
    save_arm(arm, tmp_path, dtype=torch.bfloat16)
    back = load_arm(tmp_path, target)
    weight = back.drafter.fc.weight
    assert weight.dtype == torch.float64
    assert torch.equal(weight, arm.drafter.fc.weight.bfloat16().double())


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": None, "rope_parameters__rope_theta": 10_000.0},
        {"rope_parameters__rope_theta": 10_000.0},
        {"block_size": None, "dflash_config__block_size": BLOCK},
        {"dflash_config__block_size": BLOCK},
        {"sample_from_anchor": None},
        {"tap_norm": None},
    ],
    ids=str,
)
def test_both_published_places_of_a_key_are_read(target, folder, changes):
    before = load_arm(folder, target).drafter.config
    edit_config(folder, **changes)
    assert load_arm(folder, target).drafter.config == before


# --- refusals -----------------------------------------------------------------


def refused(folder, target, match: str) -> None:
    """One sentence, naming the folder or the values, and no other exception."""
    with pytest.raises(LabError, match=match):
        load_arm(folder, target)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(target, folder, name):
    (folder / name).unlink()
    refused(folder, target, f"{name} is missing")


def test_missing_folder(target, tmp_path):
    refused(tmp_path / "nowhere", target, "config.json is missing")


@pytest.mark.parametrize("share", [0, 4, 0.3, 0.9])
def test_truncated_weights(target, folder, share):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    size = share if isinstance(share, int) else int(share * len(whole))
    path.write_bytes(whole[:size])
    refused(folder, target, "corrupt or cut short")


def test_garbled_header(target, folder):
    path = folder / "model.safetensors"
    whole = bytearray(path.read_bytes())
    whole[8:40] = bytes(32)
    path.write_bytes(bytes(whole))
    refused(folder, target, "corrupt or cut short")


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": 1,}', b"\xff\xfe{}"])
def test_bad_json(target, folder, text):
    (folder / "config.json").write_bytes(text)
    refused(folder, target, "not JSON")


@pytest.mark.parametrize("text", ["[]", "3", "null"])
def test_json_that_is_no_table(target, folder, text):
    (folder / "config.json").write_text(text, encoding="utf-8")
    refused(folder, target, "config.json")


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, fuse: Path):
        self.fuse = fuse

    def __reduce__(self):
        return Path.touch, (self.fuse,)


def test_a_pickle_payload_is_never_executed(target, folder, tmp_path):
    fuse = tmp_path / "executed"
    payload = pickle.dumps(Bomb(fuse))
    (folder / "model.safetensors").write_bytes(payload)
    refused(folder, target, "corrupt or cut short")
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt", "refiner_cotrain.pt"):
        (folder / name).write_bytes(payload)
    refused(folder, target, "refused: it is damaged, or asks for more")
    (folder / "refiner_cotrain.pt").unlink()
    refused(folder, target, "model.safetensors is missing")
    assert not fuse.exists()
    pickle.loads(payload)
    assert fuse.exists()  # the bomb works


OTHER_TARGET = {
    "hidden_size": ({"hidden_size": 64}, "hidden_size is 64, the target's is 32"),
    "vocabulary": ({"vocab_size": 41}, "vocab_size is 41, the target's is 40"),
    "layers": ({"num_target_layers": 5}, "target of 5 layers, this one has 4"),
    "mask too large": ({"dflash_config__mask_token_id": 40}, "mask_token_id 40"),
    "mask negative": ({"dflash_config__mask_token_id": -1}, "mask_token_id -1"),
}
TAPS = {
    "out of range": ([0, 7], "must lie in 0..2"),
    "last layer": ([0, 3], "must lie in 0..2"),
    "negative": ([-1, 2], "must lie in 0..2"),
    "duplicate": ([1, 1], "strictly increasing"),
    "unsorted": ([2, 0], "strictly increasing"),
    "none": ([], "strictly increasing"),
    "too many": ([0, 1, 2], "do not fit"),
    "too few": ([0], "do not fit"),
}
TAP_CASES = {
    f"taps {name}": ({"dflash_config__target_layer_ids": ids}, message)
    for name, (ids, message) in TAPS.items()
}
DISAGREEING = {
    "block size, two places": ({"dflash_config__block_size": 8}, r"\[6, 8\]"),
    "block size, head": ({"xpress_block_size": 8}, "xpress_block_size is 8.*6"),
    "block size, tensors": ({"block_size": 8, "xpress_block_size": 8}, "do not fit"),
    "rotary base, two places": (
        {"rope_parameters__rope_theta": 500.0},
        "'rope_theta' as",
    ),
    "taps, two places": ({"target_layer_ids": [0, 1]}, "'target_layer_ids' as"),
    "mask id, two places": ({"mask_token_id": 3}, "'mask_token_id' as"),
    "drafter layers": ({"num_hidden_layers": 3}, "do not fit"),
    "fewer drafter layers": ({"num_hidden_layers": 1}, "do not fit"),
    "rank": ({"xpress_rank": 5}, "do not fit"),
    "head width": ({"xpress_mlp_hidden": 6}, "do not fit"),
}
LAYOUT = {
    "anchor-first": ({"sample_from_anchor": True}, "anchor-first"),
    "undeclared": (
        {
            "sample_from_anchor": None,
            "dflash_config": None,
            "mask_token_id": 39,
            "target_layer_ids": [0, 2],
        },
        "layout is not declared",
    ),
    "architecture": ({"architectures": ["Eagle3"]}, "unknown architecture 'Eagle3'"),
    "no architecture": ({"architectures": None}, "unknown architecture 'none'"),
    "empty architectures": ({"architectures": []}, "unknown architecture 'none'"),
}
# What this drafter does not compute, though the tensors would fit.
UNSUPPORTED = {
    "sliding layers": (
        {"layer_types": ["sliding_attention", "full_attention"]},
        "sliding_attention",
    ),
    "scaled rotary": (
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "rope_scaling",
    ),
    "scaled rotary, new place": (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        "yarn",
    ),
    "block of the anchor alone": (
        {"block_size": 1, "xpress_block_size": 1},
        "block_size",
    ),
    "block size as text": ({"block_size": "6", "xpress_block_size": "6"}, "block_size"),
    "rank zero": ({"xpress_rank": 0}, "rank"),
}
REFUSALS = OTHER_TARGET | TAP_CASES | DISAGREEING | LAYOUT | UNSUPPORTED


@pytest.mark.parametrize("case", REFUSALS)
def test_config_at_odds_with_target_or_itself(target, folder, case):
    changes, message = REFUSALS[case]
    edit_config(folder, **changes)
    refused(folder, target, message)


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "vocab_size",
        "num_target_layers",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "rms_norm_eps",
        "rope_theta",
        "block_size",
        "dflash_config__target_layer_ids",
        "dflash_config__mask_token_id",
        "xpress_rank",
        "xpress_mlp_hidden",
        "xpress_block_size",
    ],
)
def test_missing_keys_are_named_and_never_guessed(target, folder, key):
    edit_config(folder, **{key: None})
    refused(folder, target, key.split("__")[-1])


def test_missing_markov_rank(target, tmp_path):
    save_arm(new_arm("markov", target), tmp_path)
    edit_config(tmp_path, markov_rank=None)
    refused(tmp_path, target, "markov_rank")


@pytest.mark.parametrize("kind", KINDS)
def test_every_single_tensor_is_demanded(target, tmp_path, kind):
    save_arm(new_arm(kind, target), tmp_path)
    for name in load_file(tmp_path / "model.safetensors"):
        save_arm(new_arm(kind, target), tmp_path)
        edit_tensors(tmp_path, lambda tensors, name=name: tensors.pop(name))
        bare = name.removeprefix("xpress_head.").removeprefix("markov_head.")
        refused(tmp_path, target, bare)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "xpress_head.mix.tril", "xpress_head.bias", "fc.bias"]
)
def test_extra_tensors_are_refused(target, folder, name):
    edit_tensors(folder, lambda tensors: tensors.update({name: torch.ones(3)}))
    refused(folder, target, name.removeprefix("xpress_head."))


def test_a_head_in_a_bare_drafter_s_folder_is_refused(target, folder):
    edit_config(folder, architectures=["DFlashDraftModel"])
    refused(folder, target, "xpress_head")


def test_tensor_of_another_shape(target, folder):
    edit_tensors(
        folder, lambda t: t.update({"fc.weight": t["fc.weight"][:, :32].contiguous()})
    )
    refused(folder, target, "fc.weight")


ONE_OF_EACH = ["hidden_size", "taps too many", "drafter layers", "anchor-first", "rank"]


@pytest.mark.parametrize("case", ONE_OF_EACH)
def test_a_refusal_is_one_line_of_bearable_length(target, folder, case):
    """A user reads a sentence, not a dump of two state dicts."""
    edit_config(folder, **REFUSALS[case][0])
    with pytest.raises(LabError) as caught:
        load_arm(folder, target)
    message = str(caught.value).replace(str(folder), "")
    assert "\n" not in message and len(message) < 300


def test_a_failed_write_leaves_no_half_and_keeps_the_old_file(
    target, folder, monkeypatch
):
    before = (folder / "model.safetensors").read_bytes()

    def disk_full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("xpress_lab.files.save_file", disk_full)
    with pytest.raises(LabError, match="No space left on device"):
        save_arm(new_arm("xpress", target), folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert not list(folder.glob("*.partial"))
