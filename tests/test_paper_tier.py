"""The paper tier: sizes as published, and clear words where its files or room lack."""

import shutil
from dataclasses import replace
from pathlib import Path

import foreign
import huggingface_hub
import pytest
import torch
import toys
from transformers import Qwen3Config, Qwen3ForCausalLM

from xpress_lab import lab as labs
from xpress_lab.benchmarks.costs import paper_sized
from xpress_lab.checkpoints import load_arm
from xpress_lab.errors import LabError
from xpress_lab.fetching import fetch_arms, fetch_target
from xpress_lab.lab import check_target, load_lab
from xpress_lab.pocket.tokenizer import build_tokenizer
from xpress_lab.presets import PAPER, PretrainedTarget, get_tier
from xpress_lab.target import Target, default_taps, weight_bytes
from xpress_lab.training.estimates import (
    ANEW,
    ONCE,
    memory_needs,
    multiplied,
    state_gigabytes,
    training_estimate,
    weights,
)

CPU = torch.device("cpu")
SILENT = lambda _: None  # noqa: E731


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XPRESS_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def sizes():
    return paper_sized()


# sizes -----------------------------------------------------------------------


def test_sizes_are_the_published_ones(sizes):
    """methods 1.1 and 2.1: 58 tensors, and 80.5 M parameters in the head."""
    target, drafter, head = sizes
    state = drafter.state_dict()
    assert len(state) == 58
    assert list(state["fc.weight"].shape) == [4096, 20480]
    assert list(state["layers.4.mlp.down_proj.weight"].shape) == [4096, 12288]
    assert weights(head) == pytest.approx(80.5e6, rel=0.002)
    assert weights(target) == pytest.approx(8.19e9, rel=0.002)
    assert drafter.config.target_layer_ids == PAPER.arm.target_layer_ids
    assert PAPER.arm.target_layer_ids == default_taps(36, 5)
    assert drafter.config.block_size == PAPER.arm.block_size == 16
    assert head.settings()["rank"] == PAPER.arm.rank == 256
    assert drafter.config.mask_token_id == 151_669


def test_memory_is_weights_and_caches(sizes):
    needs = memory_needs(*sizes, rows=2, tokens=1000).set_index("part")["gigabytes"]
    assert needs["target"] == pytest.approx(weights(sizes[0]) * 2 / 1e9)
    # keys and values, 36 layers of 8 heads of 128, 2 bytes
    assert needs["target's cache"] == pytest.approx(2 * 36 * 8 * 128 * 2 * 2000 / 1e9)
    assert needs["drafter's cache"] == pytest.approx(needs["target's cache"] * 5 / 36)


def test_states_of_a_token_and_operations_of_a_step(sizes):
    assert state_gigabytes(5, 4096, 1_000_000) == pytest.approx(49.156)
    recipe = replace(PAPER.arm, steps={"xpress": 10}, batch=2, anchors=3)
    found = training_estimate(
        "xpress", recipe, sizes, texts=5, text_length=7, speed=3600.0
    )
    hours = found.set_index("part")["hours"]
    target, drafter, head = map(weights, sizes)
    target, head = target - 151_936 * 4096, head - 151_936 * 256  # but the tables
    places = 10 * 2 * 3 * 16
    assert hours[ONCE] == pytest.approx(2 * target * 5 * 7 / 3600**2)
    assert hours[ANEW] == pytest.approx(2 * target * 20 * 7 / 3600**2)
    assert hours["drafter"] == pytest.approx(6 * drafter * places / 3600**2)
    # told the truth, told its own drafts, and 0, 1 or 2 passes before that
    by_hand = sum(6 + 2 * before + 6 for before in (0, 1, 2)) / 3
    assert hours["refiner"] == pytest.approx(by_hand * head * places / 3600**2)
    parts = hours[[ONCE, "drafter", "output head (frozen)", "refiner"]]
    assert hours["together"] == pytest.approx(parts.sum())
    assert list(hours.index[-2:]) == ["together", ANEW]
    twice = training_estimate(
        "xpress", replace(recipe, accumulate=2), sizes, 5, 7, 3600.0
    )
    assert twice.set_index("part")["hours"]["drafter"] == 2 * hours["drafter"]


def test_a_tied_table_is_looked_up_and_multiplied():
    free, tied = torch.nn.Embedding(5, 3), torch.nn.Embedding(5, 3)
    out = torch.nn.Linear(3, 5, bias=False)
    both = torch.nn.ModuleList([free, out])
    assert (weights(both), multiplied(both)) == (30, 15)
    out.weight = tied.weight
    assert multiplied(torch.nn.ModuleList([tied, out])) == 15


# what is missing is said -----------------------------------------------------


def test_a_target_that_was_not_fetched_is_named_with_the_command():
    for tier in ("paper", "laptop"):
        with pytest.raises(LabError, match=f"xpress-lab fetch {tier}$"):
            load_lab(tier, device="cpu")


def test_without_a_hub_both_fetches_say_what_they_tried(monkeypatch):
    def refuse(*_, **__):
        raise OSError("the Hub did not answer")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(LabError, match=r"Cannot fetch Qwen/Qwen3-8B .*did not answer"):
        fetch_target(PAPER.target, say=SILENT)
    with pytest.raises(LabError, match=r"Cannot fetch z-lab/Qwen3-8B-DFlash-b16 \(the"):
        fetch_arms(PAPER, say=SILENT)


def test_a_device_without_room_is_told_before_anything_is_read(
    target, tmp_path, monkeypatch
):
    folder = tmp_path / "config-only"
    target.config.save_pretrained(folder)
    tier = replace(PAPER, target=PretrainedTarget(str(folder)))
    needed = weight_bytes(folder, torch.bfloat16)
    assert needed == 2 * target.model.num_parameters()
    monkeypatch.setattr(labs, "memory", lambda _: needed)
    check_target(tier, CPU, torch.bfloat16)
    with pytest.raises(LabError, match=r"takes 0\.0 GB in float32, and cpu has"):
        check_target(tier, CPU, torch.float32)
    monkeypatch.setattr(labs, "memory", lambda _: None)  # nobody says: it may fit
    check_target(tier, CPU, torch.float32)


# published arms --------------------------------------------------------------


def test_arms_are_fetched_in_the_formats_of_their_authors(target, monkeypatch):
    """A pickle without a config takes that of the bare drafter; all three load."""
    write = {
        "z-lab/Qwen3-8B-DFlash-b16": ("dflash", foreign.zlab),
        "UIUC-SSAIL/Qwen3-8B-Markov-b16": ("markov", foreign.uiuc_markov),
        "UIUC-SSAIL/Qwen3-8B-XPress-b16": ("xpress", foreign.pickle),
    }
    asked = []

    def snapshot(name, local_dir, allow_patterns, **_):
        asked.append(name)
        kind, writer = write[name]
        head = None if kind == "dflash" else foreign.head_of(kind)
        drafter = toys.tiny_drafter(target, foreign.BLOCK)
        writer(Path(local_dir), drafter, head)
        if kind == "xpress":
            (Path(local_dir) / "config.json").unlink()
        assert "*refiner_cotrain*.pt" in allow_patterns

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    fetch_arms(PAPER, say=SILENT)
    assert asked == list(write)
    for kind in PAPER.published:
        assert load_arm(PAPER.folder() / kind, target).kind == kind
    fetch_arms(PAPER, say=SILENT)
    assert len(asked) == 3  # what is there is not asked for again
    shutil.rmtree(PAPER.folder() / "xpress")
    fetch_arms(PAPER, say=SILENT)
    assert asked[3:] == ["UIUC-SSAIL/Qwen3-8B-XPress-b16"]


def test_arms_lie_in_the_cache_and_shipped_tiers_in_data(cache):
    assert PAPER.folder() == cache / "paper-arms"
    assert get_tier("pocket").folder().parts[-2:] == ("checkpoints", "pocket")


# Qwen3's tokenizer -----------------------------------------------------------


def qwen_like(spare_rows: int, template: str) -> Target:
    """A tiny Qwen3 whose embedding has rows that no token uses, and no mask token."""
    tokenizer = build_tokenizer()
    tokenizer.mask_token = None
    tokenizer.chat_template = template
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer) + spare_rows,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    return Target(Qwen3ForCausalLM(config), tokenizer)


def test_the_mask_is_the_first_row_that_no_token_uses():
    target = qwen_like(5, "")
    assert target.mask_token_id == len(target.tokenizer)
    assert target.embed(torch.tensor([target.mask_token_id])).shape == (1, 16)


def test_thinking_targets_are_asked_not_to_think():
    template = (
        "{{ messages[0]['content'] }}"
        "{% if enable_thinking is not defined or enable_thinking %} yes{% endif %}"
    )
    target = qwen_like(0, template)
    assert (
        target.encode("no")
        == target.tokenizer("no", add_special_tokens=False)["input_ids"]
    )
