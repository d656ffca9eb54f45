"""`xpress-lab train` from nothing, at a size that takes seconds."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from xpress_lab import LabError
from xpress_lab.lab import Lab
from xpress_lab.presets import (
    ArmRecipe,
    ResponseRecipe,
    TargetRecipe,
    Tier,
    get_tier,
)
from xpress_lab.training import cards
from xpress_lab.training.pocket_workshop import PocketWorkshop

TINY = Tier(
    "pocket",
    target=replace(
        TargetRecipe(), hidden_size=32, intermediate_size=48, examples=48, steps=4
    ),
    responses=ResponseRecipe(prompts=24, max_new_tokens=24, batch=8, held_out=2),
    arm=ArmRecipe(
        rank=8, batch=4, steps=dict.fromkeys(("base", "dflash", "markov", "xpress"), 3)
    ),
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cards, "GRADED", 1)
        said = []
        PocketWorkshop(TINY, out, out / "work").run(say=said.append)
    return out, said


def named(said: list[str]) -> list[str]:
    """Stages in the order of what was said about them, one or several a line."""
    return [stage for line in said for stage in line.split(":")[0].split(", ")]


def test_all_stages_run_and_leave_loadable_weights(made):
    out, said = made
    assert named(said) == list(PocketWorkshop.stages)
    lab = Lab(TINY, out, torch.device("cpu"), torch.float32)
    for kind in ("dflash", "markov", "xpress"):
        assert lab.arm(kind).kind == kind
        found = json.loads((out / kind / "training.json").read_text("utf-8"))
        assert found["steps"] == 3 and found["response_tokens"] > 0
        assert "Greedy tau" in (out / kind / "README.md").read_text("utf-8")


def test_the_3_gram_is_counted_on_the_responses(made):
    out, _ = made
    lab = Lab(TINY, out, torch.device("cpu"), torch.float32)
    found = json.loads((out / "ngram" / "training.json").read_text("utf-8"))
    shards = (out / "work" / "responses").glob("*.json")
    answers = [a for shard in shards for _, a in json.loads(shard.read_text("utf-8"))]
    counts = lab.ngram().tables[0].counts
    assert counts.sum() == sum(map(len, answers)) == found["response_tokens"]
    assert lab.method("dflash+presto").budget == 15


def test_optional_heads_are_trained_by_name_and_lose_nothing(made, tmp_path):
    """With a confidence head beside each, whose cuts lose nothing either."""
    out, _ = made
    stages = ("markov-gated", "markov-rnn")
    arm = replace(TINY.arm, steps=dict.fromkeys(stages, 3), confidence_weight=1.0)
    tier, work = replace(TINY, arm=arm), tmp_path / "work"
    for stage in ("target", "base"):
        shutil.copytree(out / stage, tmp_path / stage)
    shutil.copytree(out / "work" / "responses", work / "responses")
    said = []
    PocketWorkshop(tier, tmp_path, work).run(stages, said.append)
    assert named(said) == list(stages)
    lab = Lab(tier, tmp_path, torch.device("cpu"), torch.float32)
    plain = lab.generate("Where does Anna live?", "ar", max_new_tokens=20)
    for stage in stages:
        assert lab.arm(stage).kind == stage
        assert lab.arm(stage).confidence.rank == TINY.arm.rank
        for threshold in (0.0, 0.2, 1.0):
            method = lab.method(stage, confidence=threshold)
            text = lab.generate("Where does Anna live?", method, max_new_tokens=20)
            assert text.tokens == plain.tokens


def test_a_second_run_finds_everything_present(made):
    out, _ = made
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    said = []
    PocketWorkshop(TINY, out, out / "work").run(say=said.append)
    assert all(line.endswith("present") for line in said)
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}


def test_the_same_seed_gives_the_same_weights(made, tmp_path):
    """Of an arm too that is trained alone, and not beside the others."""
    out, _ = made
    again = PocketWorkshop(TINY, tmp_path, tmp_path / "work")
    again.run(("target", "responses", "base", "xpress"), say=lambda _: None)
    for stage in ("target", "base", "xpress"):
        name = f"{stage}/model.safetensors"
        assert (out / name).read_bytes() == (tmp_path / name).read_bytes()


def test_every_arm_starts_from_the_same_base(made):
    out, _ = made
    lab = Lab(TINY, out, torch.device("cpu"), torch.float32)
    base, arm = lab.arm("base").drafter, lab.arm("xpress").drafter
    gaps = [
        (a - b).abs().max()
        for a, b in zip(base.parameters(), arm.parameters(), strict=True)
    ]
    assert 0 < max(gaps) < 0.1


def test_a_stage_without_its_input_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("XPRESS_LAB_DATA", str(tmp_path))
    with pytest.raises(LabError, match="No target model"):
        PocketWorkshop(TINY, tmp_path, tmp_path / "work").run(("base",), say=print)


def test_the_shipped_recipe_is_the_default():
    assert get_tier("pocket").arm == ArmRecipe()
