"""`xpress-lab train` from nothing, at a size that takes seconds."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from transformers import PreTrainedTokenizerFast

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
from xpress_lab.training.depths import sweep_layers
from xpress_lab.training.loss_sweep import OFF, read_losses, sweep_losses
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


def workshop(tier: Tier, out: Path, work: Path | None = None) -> PocketWorkshop:
    """Cards from few prompts; all else as it is."""
    made = PocketWorkshop(tier, out, work or out / "work")
    made.carded = made.graded = 1
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("tiny")
    said = []
    workshop(TINY, out).run(say=said.append)
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


def weights(folder: Path) -> dict[str, bytes]:
    """Every file of an arm that a confidence head must leave alone."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.fixture(scope="module")
def afterwards(made, tmp_path_factory):
    """EAGLE-3 and two confidence heads, trained after the rest, and all cards anew."""
    out = tmp_path_factory.mktemp("afterwards")
    shutil.copytree(made[0], out, dirs_exist_ok=True)
    before = {kind: weights(out / kind) for kind in ("markov", "xpress")}
    steps = TINY.arm.steps | {"eagle": 2, "confidence": 60}
    tier, said = replace(TINY, arm=replace(TINY.arm, steps=steps)), []
    stages = ("eagle", "markov/confidence", "xpress/confidence", "cards")
    workshop(tier, out).run(stages, said.append)
    return out, before, said


def test_a_confidence_head_leaves_its_arm_as_it_was(afterwards):
    out, before, said = afterwards
    assert [line.split(":")[0] for line in said] == [
        "eagle",
        "markov/confidence",
        "xpress/confidence",
        "cards",
    ]
    for kind, files in before.items():
        after = weights(out / kind)
        del files["README.md"], after["README.md"]  # cards tell what lies beside
        assert after == files
        curve = pd.read_csv(out / kind / "confidence" / "training.csv")
        assert curve["loss"].tail(5).mean() < curve["loss"].head(5).mean()


def test_a_head_from_beside_cuts_and_loses_nothing(afterwards):
    out, *_ = afterwards
    lab = Lab(TINY, out, torch.device("cpu"), torch.float32)
    plain = lab.generate("Where does Anna live?", "ar", max_new_tokens=20)
    for kind, rank in (("markov", TINY.arm.rank), ("xpress", 0)):
        assert lab.arm(kind).confidence is None  # unless it is asked for
        assert lab.arm(kind, confidence=True).confidence.rank == rank
        for threshold in (0.2, 1.0):
            method = lab.method(kind, confidence=threshold)
            text = lab.generate("Where does Anna live?", method, max_new_tokens=20)
            assert text.tokens == plain.tokens
        assert all(len(r.block) == 1 for r in text.rounds)  # nothing reaches 1
    where = re.escape(f"--tier pocket --only dflash/confidence --out {out}")
    with pytest.raises(LabError, match=f"has no confidence head: .* {where}"):
        lab.method("dflash", confidence=0.5)
    for name in ("ar", "eagle", "xpress+ddtree"):
        with pytest.raises(LabError, match=re.escape(f"for {name} use 0")):
            lab.method(name, confidence=0.5)


def test_a_head_of_another_arm_is_refused(afterwards, tmp_path):
    shutil.copytree(afterwards[0], tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "xpress" / "confidence")
    beside = tmp_path / "markov" / "confidence"
    shutil.copytree(beside, tmp_path / "xpress" / "confidence")
    lab = Lab(TINY, tmp_path, torch.device("cpu"), torch.float32)
    with pytest.raises(LabError, match="'rank': 8.*the xpress arm needs.*'rank': 0"):
        lab.method("xpress", confidence=0.5)


def test_an_arm_with_a_head_inside_takes_none_afterwards(made, tmp_path):
    out, _ = made
    for stage in ("target", "base"):
        shutil.copytree(out / stage, tmp_path / stage)
    shutil.copytree(out / "work" / "responses", tmp_path / "work" / "responses")
    steps = {"dflash": 1, "confidence": 1}
    arm = replace(TINY.arm, steps=steps, confidence_weight=1.0)
    both = workshop(replace(TINY, arm=arm), tmp_path)
    with pytest.raises(LabError, match="was trained with a confidence head of its own"):
        both.run(("dflash", "dflash/confidence"), say=lambda _: None)


def test_cards_are_written_for_whatever_is_there(made, afterwards):
    first = ("target", "base", "dflash", "markov", "xpress", "ngram")
    assert cards.present(made[0]) == sorted(first, key=list(cards.WHAT).index)
    out = afterwards[0]
    later = {"eagle", "markov/confidence", "xpress/confidence"}
    assert set(cards.present(out)) == {*first, *later}
    for stage in cards.present(out):
        card = (out / stage / "README.md").read_text("utf-8")
        log = json.loads((out / stage / "training.json").read_text("utf-8"))
        assert f"# xpress-lab pocket: {stage}" in card and cards.WHAT[stage] in card
        assert f"seed {log['seed']}, commit {log['commit']}" in card
        assert f"{log['response_tokens']} response tokens" in card
        if stage not in ("target", "ngram", *later - {"eagle"}):
            tau = float(re.search(r"Greedy tau ([\d.]+)", card)[1])
            assert f"{stage} {tau:.2f}" in card and 1 <= tau <= 16
            assert "pooled over 3 held-out prompts" in card and "eagle" in card
    card = (out / "ngram" / "README.md").read_text("utf-8")
    tau = re.search(r"Greedy tau ([\d.]+) of dflash\+presto", card)[1]
    assert f"dflash+presto {tau}" in card
    card = (out / "xpress" / "confidence" / "README.md").read_text("utf-8")
    assert "AUROC" in card and "cut before the first draft under 0.4" in card
    assert "chain 7, unrolled 4" in (out / "eagle" / "README.md").read_text("utf-8")


def test_cards_are_written_again_when_one_is_missing(afterwards):
    out, *_ = afterwards
    assert cards.all_written(out)
    path = out / "eagle" / "README.md"
    text = path.read_text("utf-8")
    path.unlink()
    assert not cards.all_written(out)
    path.write_text(text, "utf-8")
    assert not cards.all_written(out / "work")  # nothing is there at all


def test_a_second_run_finds_everything_present(made):
    out, _ = made
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}
    said = []
    workshop(TINY, out).run(say=said.append)
    assert all(line.endswith("present") for line in said)
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file()}


def test_a_stage_that_was_interrupted_while_writing_is_not_done(tmp_path, monkeypatch):
    """Weights without a tokenizer, or one family's prompts, are not all there is."""
    shop = workshop(TINY, tmp_path)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "math.jsonl").write_text("", "utf-8")
    assert not shop.done("prompts")
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "save_pretrained", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shop.run(("target",), say=lambda _: None)
    assert not shop.done("target")
    shop.run(("target",), say=lambda _: None)
    assert shop.done("target") and shop.target.tokenizer is not None


def interrupted(*_, **__):
    raise KeyboardInterrupt


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


def test_arms_without_a_recipe_are_refused_before_any_is_trained(tmp_path):
    work = tmp_path / "work"
    for stages in (("markov-gated", "markov-rnn"), ("dflash", "markov-rnn")):
        with pytest.raises(LabError, match="no recipe for stage 'markov-"):
            PocketWorkshop(TINY, tmp_path, work).run(stages, say=print)
    assert not list(tmp_path.iterdir())


def test_depths_are_trained_and_measured_alike(made, tmp_path, monkeypatch):
    out, _ = made
    shipped = tmp_path / "data" / "checkpoints" / "pocket"
    for stage in ("target", "prompts"):
        shutil.copytree(out / stage, shipped / stage)
    monkeypatch.setenv("XPRESS_LAB_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("XPRESS_LAB_PROMPTS", raising=False)
    where, said = tmp_path / "layers", []
    lines = sweep_layers(TINY, (1, 3), where, 1, (0.0,), said.append)
    assert said == [line for line in said if not line.endswith("present")]
    for depth in (1, 3):
        config = where / f"{depth}-layers" / "xpress" / "config.json"
        assert json.loads(config.read_text("utf-8"))["num_hidden_layers"] == depth
        work = where / "work" / f"{depth}-layers"
        assert {p.name for p in work.iterdir()} == {"base", "dflash", "xpress"}
    assert len(list((where / "work" / "states").iterdir())) == 1  # of all depths
    rows = pd.read_csv(where / "layers.csv")
    assert len(rows) == 2 * 3 * 3  # depths, methods, families
    texts = rows.groupby(["benchmark", "prompt_id"])["token_hash"].nunique()
    assert (texts == 1).all()  # whatever the depth, the target's own text
    sizes = lines.groupby("drafter_layers")["drafter_parameters"].unique()
    assert sizes[3].item() > 2 * sizes[1].item()
    assert set(lines["arm"]) == {"ar", "dflash", "xpress K=6"}
    again = []
    assert len(sweep_layers(TINY, (1, 3), where, 1, (0.0,), again.append)) == len(lines)
    assert all(line.endswith("present") for line in again)
    pd.testing.assert_frame_equal(pd.read_csv(where / "layers.csv"), rows)


@pytest.mark.parametrize("depths", [(), (0,), (1, 9)])
def test_depths_that_no_drafter_can_have_are_refused(tmp_path, depths):
    with pytest.raises(LabError, match="Depths must lie in 1..4"):
        sweep_layers(TINY, depths, tmp_path)


def test_losses_are_trained_and_measured_alike(made, tmp_path, monkeypatch):
    """From one base, on one set of texts; a second run finds everything there."""
    out, _ = made
    shipped = tmp_path / "data" / "checkpoints" / "pocket"
    for stage in ("target", "prompts", "base"):
        shutil.copytree(out / stage, shipped / stage)
    monkeypatch.setenv("XPRESS_LAB_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("XPRESS_LAB_PROMPTS", raising=False)
    where, said = tmp_path / "losses", []
    lines = sweep_losses(TINY, where, (3,), 2, 1, 1, said.append)
    assert len(said) == len(OFF)
    rows = read_losses(where / "losses.csv")
    assert len(rows) == len(OFF) * 4 * 3  # losses, numbers of passes, families
    assert set(rows["passes"]) == {"0", "1", "6", "fixed"}
    texts = rows.groupby(["benchmark", "prompt_id"])["token_hash"].nunique()
    assert (texts == 1).all()
    assert list(lines["loss"].unique()) == list(OFF)
    states = [torch.load(p, weights_only=True)["rows"] for p in _states(where)]
    assert len(states) == len(OFF) and all(len(steps) == 2 for steps in states)
    first = {steps[0].get("forced") for steps in states}
    assert len(first) == 3  # same start: only CE and L1 weigh the first batch anew
    again = []
    sweep_losses(TINY, where, (3,), 2, 1, 1, again.append)
    assert again == []
    pd.testing.assert_frame_equal(read_losses(where / "losses.csv"), rows)
    with pytest.raises(LabError, match="2 steps and 1 prompts a family, not 5 and 1"):
        sweep_losses(TINY, where, (3,), 5, 1, 1)
    with pytest.raises(LabError, match="At least one training seed"):
        sweep_losses(TINY, where, ())


def _states(where: Path) -> list[Path]:
    return sorted((where / "work").glob("*/state.pt"))


def test_the_shipped_recipe_is_the_default():
    assert get_tier("pocket").arm == ArmRecipe()
