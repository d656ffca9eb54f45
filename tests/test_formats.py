"""Checkpoints of other projects come in exactly, or not at all.

* Tiny folders in each published format, written by hand (tests/foreign.py), are read
  back bit by bit and draft exactly as the same weights do without a detour.
* What does not fit is refused in one sentence that names both values, before any
  model runs (pitfalls 13, 16 to 18).
* Pickles are read by an allow-list; a payload is never executed.
"""

import json
import pickle
import re
from pathlib import Path

import foreign
import pytest
import torch
import toys

from xpress_lab.block_method import BlockMethod
from xpress_lab.checkpoints import MARKOV_TYPES, Arm, load_arm
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError

BLOCK, RANK = foreign.BLOCK, foreign.RANK


def tiny(kind: str, target, anchor_first: bool = False, confidence=None) -> Arm:
    drafter = toys.tiny_drafter(target, BLOCK, foreign.TAPS, anchor_first=anchor_first)
    head = None if kind == "dflash" else foreign.head_of(kind)
    return Arm(kind, drafter, head, confidence=confidence)


# name: arm, and how it is written
FORMATS = {
    "z-lab": ("dflash", False, foreign.zlab),
    "z-lab, block size inside": (
        "dflash",
        False,
        lambda *a, **k: foreign.zlab(*a, inner_block=True, **k),
    ),
    "z-lab, rotary base inside": (
        "dflash",
        False,
        lambda *a, **k: foreign.zlab(*a, inner_rope=True, **k),
    ),
    "z-lab, three shards": (
        "dflash",
        False,
        lambda *a, **k: foreign.zlab(*a, shards=3, **k),
    ),
    "UIUC xpress": ("xpress", False, foreign.uiuc_xpress),
    "UIUC markov": ("markov", False, foreign.uiuc_markov),
    "xpress pickle": ("xpress", False, foreign.pickle),
    "markov pickle": ("markov", False, foreign.pickle),
    "DeepSpec dflash": ("dflash", True, foreign.deepspec),
    "DeepSpec vanilla": ("markov", True, foreign.deepspec),
    "DeepSpec gated": ("markov-gated", True, foreign.deepspec),
    "DeepSpec rnn": ("markov-rnn", True, foreign.deepspec),
    "speculators dflash": ("dflash", False, foreign.speculators),
    "speculators dspark": ("markov-gated", False, foreign.speculators),
    "speculators xpress": ("xpress", False, foreign.speculators),
}


def write_format(name: str, target, folder: Path, **how) -> Arm:
    kind, anchor_first, writer = FORMATS[name]
    arm = tiny(kind, target, anchor_first)
    if writer is foreign.deepspec:
        how = {"target": target} | how
    writer(folder, arm.drafter, arm.head, **how)
    return arm


def blocks(arm: Arm, target) -> list[list[int]]:
    head = None if arm.head is None else arm.head.fold()
    method = BlockMethod(arm.kind, target, arm.drafter, head, 3)
    out = decode(target, method, toys.PROMPT, max_new_tokens=40)
    assert out.tokens == toys.generate(target, toys.PROMPT, 40)
    return [r.block for r in out.rounds]


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_folder_is_read_exactly(target, tmp_path, name):
    arm = write_format(name, target, tmp_path)
    back = load_arm(tmp_path, target)
    assert back.kind == arm.kind and back.drafter.config == arm.drafter.config
    for ours, theirs in zip(arm.modules(), back.modules(), strict=True):
        expected, found = ours.state_dict(), theirs.state_dict()
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected)
        assert not theirs.training
    assert blocks(back, target) == blocks(arm, target)
    drafts = BLOCK if arm.drafter.config.sample_from_anchor else BLOCK - 1
    assert {len(block) for block in blocks(back, target)} == {drafts + 1}


def test_a_pickle_can_be_named_itself(target, tmp_path):
    write_format("xpress pickle", target, tmp_path)
    path = next(tmp_path.glob("*.pt"))
    assert load_arm(path, target).kind == "xpress"
    (tmp_path / "refiner_cotrain_100k.pt").write_bytes(path.read_bytes())
    assert load_arm(path, target).kind == "xpress"
    with pytest.raises(LabError, match="holds 2 training pickles"):
        load_arm(tmp_path, target)


def test_a_ratio_may_be_written_as_a_fraction(target, tmp_path):
    write_format("xpress pickle", target, tmp_path, flags={"mlp_ratio": 2.0})
    assert load_arm(tmp_path, target).head.trans.gate_proj.out_features == 2 * RANK


@pytest.mark.parametrize("rank", [0, RANK])
def test_deepspec_s_confidence_head_comes_along(target, tmp_path, rank):
    arm = tiny("markov", target, True, toys.sharp_confidence(toys.HIDDEN, rank))
    foreign.deepspec(
        tmp_path, arm.drafter, arm.head, target=target, confidence=arm.confidence
    )
    back = load_arm(tmp_path, target)
    for name, value in arm.confidence.state_dict().items():
        assert torch.equal(back.confidence.state_dict()[name], value)
    method = BlockMethod(
        "markov",
        target,
        back.drafter,
        back.head,
        confidence=back.confidence,
        threshold=0.5,
    )
    out = decode(target, method, toys.PROMPT, max_new_tokens=40)
    assert out.tokens == toys.generate(target, toys.PROMPT, 40)
    assert len({len(r.block) for r in out.rounds}) > 1


def test_deepspec_s_copies_may_be_absent_or_coarser(target, tmp_path):
    arm = tiny("markov", target, True)
    foreign.deepspec(tmp_path, arm.drafter, arm.head, copies=False)
    assert load_arm(tmp_path, target).kind == "markov"
    write_format("DeepSpec vanilla", target, tmp_path)
    foreign.edit_tensors(
        tmp_path,
        lambda t: t.update({"lm_head.weight": t["lm_head.weight"].bfloat16()}),
    )
    assert load_arm(tmp_path, target).kind == "markov"


def test_speculators_copies_of_the_verifier_are_checked_and_dropped(target, tmp_path):
    arm = tiny("xpress", target)
    model = target.model
    copies = {
        "embed_tokens.weight": model.get_input_embeddings().weight.clone(),
        "verifier_lm_head.weight": model.get_output_embeddings().weight.clone(),
        "verifier_norm.weight": model.get_decoder().norm.weight.clone(),
        "t2d": torch.ones(toys.VOCAB, dtype=torch.bool),
        "d2t": torch.zeros(toys.VOCAB, dtype=torch.long),
    }
    foreign.speculators(tmp_path, arm.drafter, arm.head, extra=copies)
    assert blocks(load_arm(tmp_path, target), target) == blocks(arm, target)
    copies["verifier_norm.weight"] += 1
    foreign.speculators(tmp_path, arm.drafter, arm.head, extra=copies)
    with pytest.raises(LabError, match="verifier_norm.weight differs .* up to 1"):
        load_arm(tmp_path, target)


def test_speculators_draft_vocabulary(target, tmp_path):
    """d2t gives the ids, t2d must agree, the head's rows must be the target's."""
    ids = torch.arange(0, toys.VOCAB, 3)
    allowed = torch.zeros(toys.VOCAB, dtype=torch.bool)
    allowed[ids] = True
    extra = {
        "d2t": ids - torch.arange(len(ids)),
        "t2d": allowed,
        "lm_head.weight": target.head_rows(ids)[0].clone(),
    }
    drafter = tiny("dflash", target).drafter
    size = {"draft_vocab_size": len(ids)}
    foreign.speculators(tmp_path, drafter, changes=size, extra=extra)
    back = load_arm(tmp_path, target)
    assert torch.equal(back.draft_ids, ids)
    extra["t2d"] = ~allowed
    foreign.speculators(tmp_path, drafter, changes=size, extra=extra)
    with pytest.raises(LabError, match="t2d and d2t name different tokens"):
        load_arm(tmp_path, target)


# --- refusals -----------------------------------------------------------------


def cut(name: str):
    """Drop the last column of a tensor."""
    return lambda t: t.update({name: t[name][..., :-1].contiguous()})


def inner(**changes) -> dict:
    config = foreign.zlab_config()["dflash_config"]
    return {"changes": {"dflash_config": config | changes}}


def config(**changes) -> dict:
    return {"changes": changes}


EXTRA = {"extra.weight": torch.ones(2)}
OTHER_BLOCK = {"xpress_block_size": 8, "block_size": 8}
# format, how it is written, what is done to its tensors, the sentence
REFUSALS = {
    # z-lab
    "z-lab: hidden size": ("z-lab", config(hidden_size=64), None, "is 64, .* is 32"),
    "z-lab: vocabulary": ("z-lab", config(vocab_size=41), None, "is 41, .* is 40"),
    "z-lab: layers": ("z-lab", config(num_target_layers=36), None, "36 layers.* 4"),
    "z-lab: last tap": ("z-lab", inner(target_layer_ids=[0, 3]), None, r"0, 3.*0\.\.2"),
    "z-lab: tap twice": ("z-lab", inner(target_layer_ids=[1, 1]), None, r"\[1, 1\]"),
    "z-lab: a tap less": (
        "z-lab",
        inner(target_layer_ids=[2]),
        None,
        r"64\], not .*32",
    ),
    "z-lab: named taps": (
        "z-lab",
        inner(target_layer_ids=["first", "last"]),
        None,
        "must be numbers, not",
    ),
    "z-lab: taps absent": (
        "z-lab",
        config(dflash_config={"mask_token_id": 39}),
        None,
        "does not say 'target_layer_ids'",
    ),
    "z-lab: mask": ("z-lab", inner(mask_token_id=151669), None, "151669.* 40"),
    "z-lab: block size twice": ("z-lab", inner(block_size=8), None, r"\[6, 8\]"),
    "z-lab: rotary base twice": (
        "z-lab",
        config(rope_parameters={"rope_theta": 1e6}),
        None,
        "10000.0, 1000000.0",
    ),
    "z-lab: no rotary base": ("z-lab", config(rope_theta=None), None, "'rope_theta'"),
    "z-lab: no layout": (
        "z-lab",
        config(dflash_config=None, mask_token_id=39, target_layer_ids=[0, 2]),
        None,
        "block layout is not declared",
    ),
    "z-lab: activation": (
        "z-lab",
        config(hidden_act="gelu"),
        None,
        "hidden_act 'gelu' is not supported",
    ),
    "z-lab: heads": (
        "z-lab",
        config(num_key_value_heads=3),
        None,
        "4 attention heads do not share 3",
    ),
    "z-lab: negative width": (
        "z-lab",
        config(intermediate_size=-4),
        None,
        "is -4, but must be 1 or more",
    ),
    "z-lab: settings as text": (
        "z-lab",
        config(dflash_config="none"),
        None,
        "dflash_config is 'none', not a table",
    ),
    "z-lab: missing": ("z-lab", {}, lambda t: t.pop("fc.weight"), "missing: fc.w"),
    "z-lab: extra": ("z-lab", {}, lambda t: t.update(EXTRA), "unexpected: extra"),
    "z-lab: Domino": ("z-lab", config(projector_type="gru"), None, "'gru' is not"),
    "z-lab: DFlash2": ("z-lab", inner(conv_kernel_size=2), None, "another kind"),
    "z-lab: biased attention": (
        "z-lab",
        config(attention_bias=True),
        None,
        "attention_bias",
    ),
    "z-lab: sliding": (
        "z-lab",
        config(layer_types=["sliding_attention", "full_attention"]),
        None,
        "sliding_attention",
    ),
    # UIUC-SSAIL, serving
    "xpress: anchor-first": (
        "UIUC xpress",
        config(sample_from_anchor=True),
        None,
        "anchor-first block layout is declared",
    ),
    "xpress: layout as text": (
        "UIUC xpress",
        config(sample_from_anchor="no"),
        None,
        "'no', not of kind bool",
    ),
    "xpress: rank": ("UIUC xpress", config(xpress_rank=8), None, r"6\], not .*8\]"),
    "xpress: block": ("UIUC xpress", config(xpress_block_size=16), None, "16, .* 6"),
    "xpress: both blocks": ("UIUC xpress", config(**OTHER_BLOCK), None, "mix.L"),
    "xpress: vocabulary": (
        "UIUC xpress",
        {},
        lambda t: t.update({"xpress_head.w2.weight": torch.ones(41, RANK)}),
        r"w2.weight \[41, 6\], not \[40, 6\]",
    ),
    "xpress: missing": (
        "UIUC xpress",
        {},
        lambda t: t.pop("xpress_head.mix.L"),
        "missing: mix.L",
    ),
    "xpress: folded mixer's triangle": (
        "UIUC xpress",
        {},
        lambda t: t.update({"xpress_head.mix.tril": torch.ones(6, 6)}),
        "unexpected: mix.tril",
    ),
    "markov: rank": ("UIUC markov", config(markov_rank=4), None, r"6\], not .*4\]"),
    "markov: type": (
        "UIUC markov",
        config(markov_head_type="lstm"),
        None,
        "'lstm'; known are vanilla, gated, rnn",
    ),
    "markov: another type": (
        "UIUC markov",
        config(markov_head_type="gated"),
        None,
        "missing: gate_proj",
    ),
    # the training pickle
    "pickle: ablation": (
        "xpress pickle",
        {"flags": {"no_mixer": True}},
        None,
        "no_mixer True; only False",
    ),
    "pickle: residual": (
        "xpress pickle",
        {"flags": {"no_residual": False}},
        None,
        "no_residual False; only True",
    ),
    "pickle: low-rank head": (
        "markov pickle",
        {"flags": {"lowrank_base_rank": 64}},
        None,
        "lowrank_base_rank 64; only 0",
    ),
    "pickle: rank": (
        "xpress pickle",
        {"flags": {"markov_rank": 8}},
        None,
        "do not fit",
    ),
    "pickle: rank as text": (
        "xpress pickle",
        {"flags": {"markov_rank": "6"}},
        None,
        "markov_rank is '6', not a whole number",
    ),
    "pickle: half a ratio": (
        "xpress pickle",
        {"flags": {"mlp_ratio": 1.5}},
        None,
        "mlp_ratio is 1.5, not a whole number",
    ),
    "pickle: no step": ("xpress pickle", {"global_step": None}, None, "global_step"),
    "pickle: args as table": (
        "xpress pickle",
        {"args": {"a": 1}},
        None,
        "no namespace",
    ),
    "pickle: other triangle": (
        "xpress pickle",
        {"refiner_state_dict": {"mix.tril": torch.ones(6, 6)}},
        None,
        "not a causal triangle",
    ),
    "pickle: no tensors": (
        "xpress pickle",
        {"draft_state_dict": {"fc.weight": 3}},
        None,
        "draft_state_dict holds more than tensors",
    ),
    "pickle: empty drafter": (
        "xpress pickle",
        {"draft_state_dict": {}},
        None,
        "missing: fc.weight",
    ),
    "pickle: block": ("xpress pickle", config(block_size=16), None, r"6\], not .*16"),
    # DeepSpec
    "DeepSpec: embedding tap": (
        "DeepSpec vanilla",
        config(target_layer_ids=[-1, 2]),
        None,
        r"\[-1, 2\] must lie in 0\.\.2",
    ),
    "DeepSpec: another target": (
        "DeepSpec vanilla",
        {},
        lambda t: t["embed_tokens.weight"].add_(0.5),
        "embed_tokens.weight differs .* by up to 0.5",
    ),
    "DeepSpec: another head": (
        "DeepSpec dflash",
        {},
        lambda t: t["lm_head.weight"].mul_(2),
        "trained for another target",
    ),
    "DeepSpec: longer table": (
        "DeepSpec vanilla",
        {},
        cut("embed_tokens.weight"),
        r"\[40, 31\], the target's table is \[40, 32\]",
    ),
    "DeepSpec: layout unknown": (
        "DeepSpec vanilla",
        config(num_anchors=None),
        None,
        "block layout is not declared",
    ),
    "DeepSpec: confidence promised": (
        "DeepSpec vanilla",
        config(enable_confidence_head=True, confidence_head_with_markov=True),
        None,
        "missing: proj.weight",
    ),
    "DeepSpec: confidence on nothing": (
        "DeepSpec dflash",
        config(enable_confidence_head=True, confidence_head_with_markov=True),
        None,
        "a dflash arm has no Markov head",
    ),
    # speculators
    "speculators: model": (
        "speculators xpress",
        config(speculators_model_type="eagle3"),
        None,
        "'eagle3'; known are dflash, dspark, xpress",
    ),
    "speculators: the embedding's tap": (
        "speculators xpress",
        config(aux_hidden_state_layer_ids=[0, 3]),
        None,
        r"\[-1, 2\] must lie",
    ),
    "speculators: named taps": (
        "speculators xpress",
        config(aux_hidden_state_layer_ids=["first", 3]),
        None,
        "must be numbers, not",
    ),
    "speculators: the last tap": (
        "speculators xpress",
        config(aux_hidden_state_layer_ids=[1, 4]),
        None,
        r"\[0, 3\] must lie",
    ),
    "speculators: layout": (
        "speculators xpress",
        config(sample_from_anchor=True),
        None,
        "anchor-first",
    ),
    "speculators: no layout": (
        "speculators xpress",
        config(sample_from_anchor=None),
        None,
        "does not say 'sample_from_anchor'",
    ),
    "speculators: draft vocabulary": (
        "speculators xpress",
        config(draft_vocab_size=20),
        None,
        "draft_vocab_size is 20, the target's vocab_size is 40",
    ),
    "speculators: hidden size": (
        "speculators xpress",
        {"layer": {"hidden_size": 64}},
        None,
        "is 64, the target's is 32",
    ),
    "speculators: layer type": (
        "speculators xpress",
        {"layer": {"model_type": "qwen9"}},
        None,
        "'qwen9' is not known",
    ),
    "speculators: name": (
        "speculators xpress",
        {},
        lambda t: t.update({"refiner_head.w1.weight": t.pop("refiner_head.mix_l")}),
        "missing: mix.L",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_does_not_fit_is_refused_in_one_sentence(
    target, tmp_path, case, monkeypatch
):
    name, how, change, message = REFUSALS[case]
    write_format(name, target, tmp_path, **how)
    if change is not None:
        foreign.edit_tensors(tmp_path, change)
    monkeypatch.setattr(target.model, "forward", None)  # nothing may run
    with pytest.raises(LabError) as caught:
        load_arm(tmp_path, target)
    said = str(caught.value)
    assert re.search(message, said), said
    assert "\n" not in said and len(said.replace(str(tmp_path), "")) < 300


def test_every_format_is_refused_in_several_ways():
    assert len(REFUSALS) >= 25
    assert {FORMATS[name][2] for name, *_ in REFUSALS.values()} >= {
        foreign.zlab,
        foreign.uiuc_xpress,
        foreign.uiuc_markov,
        foreign.pickle,
        foreign.deepspec,
        foreign.speculators,
    }


class Bomb:
    """Writes a file when unpickled."""

    def __init__(self, fuse: Path):
        self.fuse = fuse

    def __reduce__(self):
        return Path.touch, (self.fuse,)


@pytest.mark.parametrize("where", ["args", "refiner_state_dict", "global_step", "all"])
def test_a_payload_in_a_training_pickle_is_never_executed(target, tmp_path, where):
    fuse = tmp_path / "executed"
    folder, bomb = tmp_path / "folder", Bomb(fuse)
    if where == "all":
        write_format("xpress pickle", target, folder)
        path = next(folder.glob("*.pt"))
        path.write_bytes(pickle.dumps(bomb))
    else:
        write_format("xpress pickle", target, folder, **{where: bomb})
    with pytest.raises(LabError, match="refused"):
        load_arm(folder, target)
    assert not fuse.exists()
    bomb.__reduce__()[0](fuse)
    assert fuse.exists()  # the bomb works


@pytest.mark.parametrize("share", [0.0, 0.4, 0.95])
def test_a_training_pickle_cut_short_is_refused(target, tmp_path, share):
    write_format("xpress pickle", target, tmp_path)
    path = next(tmp_path.glob("*.pt"))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(LabError, match="refused"):
        load_arm(tmp_path, target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.clear(), "lists no tensors"),
        (lambda m: m.update({"fc.weight": "../fc.safetensors"}), "outside its folder"),
        (lambda m: m.update({"fc.weight": "gone.safetensors"}), "gone.safetensors is"),
        (lambda m: m.pop("fc.weight"), "disagree about tensor 'fc.weight'"),
        (
            lambda m: m.update({"ghost": m["fc.weight"]}),
            "disagree about tensor 'ghost'",
        ),
    ],
)
def test_a_broken_index_is_refused(target, tmp_path, change, message):
    write_format("z-lab, three shards", target, tmp_path)
    path = tmp_path / "model.safetensors.index.json"
    index = json.loads(path.read_text("utf-8"))
    change(index["weight_map"])
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(LabError, match=message):
        load_arm(tmp_path, target)


def test_formats_cover_every_arm():
    assert {kind for kind, *_ in FORMATS.values()} == {
        "dflash",
        *MARKOV_TYPES,
        "xpress",
    }
