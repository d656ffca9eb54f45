"""Drafters for a target from elsewhere, from its own questions to loadable arms."""

import json
from dataclasses import replace

import pytest
import torch

from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.fetching import weights_digest
from xpress_lab.lab import Lab, load_lab
from xpress_lab.methods import PlainDecoding
from xpress_lab.presets import ArmRecipe, PretrainedTarget, ResponseRecipe, Tier
from xpress_lab.training.laptop_workshop import LaptopWorkshop
from xpress_lab.training.questions import evaluated
from xpress_lab.training.tiers import open_workshop

ARM = ArmRecipe(
    block_size=4,
    target_layer_ids=None,
    drafter_layers=1,
    rank=8,
    tap_norm=True,
    intermediate_size=24,
    norm_scale=0.4,
    draft_vocabulary=60,
    bfloat16=True,
    batch=4,
    eagle_batch=4,
    accumulate=2,
    steps=dict.fromkeys(("base", "eagle", "dflash", "markov", "xpress"), 3),
)


@pytest.fixture
def tier(talker, tmp_path) -> Tier:
    """A random Llama in a local folder, as a user's own target would lie there."""
    folder = tmp_path / "target"
    talker.model.to(torch.bfloat16).save_pretrained(folder)
    talker.tokenizer.save_pretrained(folder)
    answers = ResponseRecipe(
        greedy_share=0.5,
        temperature=0.7,
        max_new_tokens=20,
        batch=8,
        own_questions=3,
        templates=30,
    )
    return Tier("laptop", PretrainedTarget(str(folder)), answers, ARM)


@pytest.fixture
def benchmarks(tmp_path):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    lines = [json.dumps({"turns": [f"How many apples, {i}?"]}) for i in range(140)]
    (folder / "apples.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_all_stages_run_and_leave_arms_that_lose_nothing(tier, benchmarks, tmp_path):
    out, said = tmp_path / "out", []
    workshop = LaptopWorkshop(tier, out, out / "work", benchmarks)
    workshop.watched, workshop.watch_every = 2, 2
    workshop.run(say=said.append)
    assert any("Draft vocabulary: 60" in line for line in said)
    assert any("12 apples prompts not evaluated" in line for line in said)
    trained = set((out / "responses" / "questions.txt").read_text("utf-8").split())
    assert not trained & evaluated(benchmarks)
    assert len(workshop.responses) == len(workshop.questions) - 2
    log = json.loads((out / "xpress" / "training.json").read_text("utf-8"))
    assert log["steps"] == 3
    curve = (out / "xpress" / "training.csv").read_text("utf-8")
    assert "tau" in curve.splitlines()[0]

    for stage in ("base", "dflash", "markov", "xpress", "ngram"):
        card = (out / stage / "README.md").read_text("utf-8")
        assert "A model in a local folder, target." in card
        assert weights_digest(tmp_path / "target") in card
        assert "12 apples prompts not evaluated" in card
        assert "pooled over 2 held-out prompts" in card

    lab = Lab(tier, out, torch.device("cpu"), torch.float32)
    prompt = lab.target.encode("How many apples ?")
    plain = decode(lab.target, PlainDecoding(), prompt, max_new_tokens=24)
    for kind in ("dflash", "markov", "xpress"):
        assert len(lab.arm(kind).draft_ids) == 60
        text = decode(lab.target, lab.method(kind), prompt, max_new_tokens=24)
        assert text.tokens == plain.tokens

    workshop.run(("eagle", "cards"), say=said.append)  # optional, on the same words
    assert torch.equal(lab.arm("eagle").draft_ids, lab.arm("base").draft_ids)
    text = decode(lab.target, lab.method("eagle"), prompt, max_new_tokens=24)
    assert text.tokens == plain.tokens

    again = []
    LaptopWorkshop(tier, out, out / "work", benchmarks).run(say=again.append)
    assert all(line.endswith("present") for line in again)


def test_the_user_s_questions_are_asked_too(tier, tmp_path):
    mine = tmp_path / "mine.jsonl"
    mine.write_text('{"turns": ["Who sings in the rain?"]}', encoding="utf-8")
    out = tmp_path / "out"
    workshop = open_workshop(tier, out, users=str(mine))
    workshop.run(("questions",), say=lambda _: None)
    assert "Who sings in the rain?" in workshop.questions
    sources = json.loads((out / "work" / "sources.json").read_text("utf-8"))
    assert sources[str(mine)] == 1


def test_fewer_texts_are_a_fair_share_of_all_sources(tier, benchmarks, tmp_path):
    few = replace(tier, responses=replace(tier.responses, prompts=10))
    workshop = LaptopWorkshop(few, tmp_path, tmp_path / "work", benchmarks)
    workshop.watched = 2
    workshop.run(("questions", "responses"), say=lambda _: None)
    assert len(workshop.questions) == 12 and len(workshop.responses) == 10
    sources = json.loads((tmp_path / "work" / "sources.json").read_text("utf-8"))
    assert sum(sources.values()) == 12
    whole = LaptopWorkshop(tier, tmp_path / "all", tmp_path / "all-work", benchmarks)
    whole.run(("questions",), say=lambda _: None)
    assert workshop.questions == whole.questions[:12]  # the same shuffle, cut short


def test_arms_for_another_target_are_used_by_name(tier, tmp_path):
    """What `train --model` makes is what `--model` with `--weights` decodes with."""
    out, name = tmp_path / "out", tier.target.name
    workshop = open_workshop(tier, out)
    workshop.run(("questions", "responses", "base", "xpress"), say=lambda _: None)
    lab = load_lab("laptop", device="cpu", folder=out, model=name)
    assert lab.target_name == name
    assert lab.trained() == ["ar", "xpress", "xpress+ddtree", "xpress+presto"]
    prompt = lab.target.encode("How many apples ?")
    text = decode(lab.target, lab.method("xpress"), prompt, max_new_tokens=12)
    plain = decode(lab.target, PlainDecoding(), prompt, max_new_tokens=12)
    assert text.tokens == plain.tokens
    with pytest.raises(LabError, match=f"{name} needs drafters of its own.*--weights"):
        load_lab("laptop", device="cpu", model=name)
    with pytest.raises(LabError, match="fetch laptop --model nobody/nothing"):
        load_lab("laptop", device="cpu", folder=out, model="nobody/nothing")
    with pytest.raises(LabError, match="--model is for the laptop tier"):
        load_lab("pocket", device="cpu", folder=out, model=name)


def test_a_damaged_shard_is_named(tier, tmp_path):
    out = tmp_path / "out"
    LaptopWorkshop(tier, out, out / "work", None).run(
        ("questions", "responses"), say=lambda _: None
    )
    shard = next((out / "work" / "responses").glob("*.json"))
    shard.write_text("[[1, 2", encoding="utf-8")
    with pytest.raises(LabError, match="damaged; delete it"):
        LaptopWorkshop(tier, out, out / "work", None).run(("base",), say=lambda _: None)


def test_a_stage_without_a_recipe_says_so(tier, tmp_path):
    workshop = LaptopWorkshop(tier, tmp_path, tmp_path / "work", None)
    with pytest.raises(LabError, match="no recipe for stage 'markov-rnn'"):
        workshop.run(("markov-rnn",), say=lambda _: None)


def test_cards_need_the_questions_that_were_kept_out(tier, tmp_path):
    workshop = LaptopWorkshop(tier, tmp_path, tmp_path / "work", None)
    with pytest.raises(LabError, match="No questions at"):
        workshop.run(("cards",), say=lambda _: None)


def test_a_tier_with_its_own_grammar_takes_no_model(tmp_path):
    pocket = Tier("pocket")
    for options in ({"model": "a/b"}, {"benchmarks": tmp_path}, {"users": "a/b"}):
        with pytest.raises(LabError, match="laptop tier"):
            open_workshop(pocket, tmp_path, **options)


def test_another_target_replaces_the_tier_s(tier, tmp_path):
    other = open_workshop(replace(tier), tmp_path, model=tier.target.name)
    assert isinstance(other, LaptopWorkshop) and other.tier.arm == tier.arm
