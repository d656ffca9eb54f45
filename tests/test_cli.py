"""The command line: every command helps, works, and fails in one clear line."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

from xpress_lab.cli import app
from xpress_lab.presets import METHODS, TREES, get_tier

COMMANDS = "generate bench tables train fetch export doctor reproduce".split()
COMMANDS += ["sweep-layers", "sweep-losses", "evaluate"]
QUESTION = "Anna lives in Oslo and works as a baker. Where does Anna live?"


TREE_WAYS = [(name,) for name in TREES]
TREE_WAYS += [("xpress+ddtree", "--rescoring", "paths")]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: CliRunner().invoke(app, list(words))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(run, command):
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"Example: xpress-lab {command}" in result.output


def test_methods_agree_on_the_text(run):
    texts = set()
    trees = [(*way, "--budget", "20") for way in TREE_WAYS]
    for way in (("ar",), ("dflash",), ("markov",), ("xpress",), *trees):
        method = way[0]
        result = run("generate", QUESTION, "--method", *way, "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        texts.add(found["text"])
        assert (found["tau"] > 1) == (method != "ar")
    assert len(texts) == 1


def test_weights_from_elsewhere_draft_for_the_shipped_target(run, tmp_path):
    """A folder as train leaves it, which need not hold a target."""
    shipped = get_tier("pocket").folder()
    shutil.copytree(shipped / "dflash", tmp_path / "dflash")
    asked = ("generate", QUESTION, "--method", "dflash", "--json")
    here, there = run(*asked), run(*asked, "--weights", str(tmp_path))
    assert json.loads(there.stdout)["tokens"] == json.loads(here.stdout)["tokens"]
    # What the folder lacks is shipped for the same target.
    other = run("generate", QUESTION, "--json", "--weights", str(tmp_path))
    assert json.loads(other.stdout)["method"].startswith("xpress")
    (tmp_path / "dflash" / "model.safetensors").unlink()
    broken = run(*asked, "--weights", str(tmp_path))
    assert broken.exit_code == 2 and str(tmp_path) in broken.stderr


def test_streamed_text_is_the_text(run):
    asked = ("generate", QUESTION, "--temperature", "1", "--seed", "3")
    text = json.loads(run(*asked, "--json").stdout)["text"]
    assert run(*asked).stdout.strip() == text.strip()
    other = json.loads(run(*asked[:-1], "4", "--json").stdout)["text"]
    assert other != text


def test_unknown_words_are_named(run):
    result = run("generate", "Where does Zaphod live?")
    assert result.exit_code == 0
    assert "Zaphod" in result.stderr
    assert "does not know" not in run("generate", " ").stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("generate", QUESTION, "--method", "nonsense"), "Unknown method"),
        (("generate", QUESTION, "--tier", "huge"), "Unknown tier"),
        (("generate", QUESTION, "--passes", "some"), "--passes takes"),
        (("generate", " "), "prompt is empty"),
        (("generate", QUESTION, "--max-new-tokens", "0"), "max_new_tokens must be"),
        (("generate", QUESTION, "--max-new-tokens", "900"), "do not fit"),
        (("generate", QUESTION, "--device", "tpu"), "Unknown device"),
        (("generate", QUESTION, "--dtype", "int3"), "Unknown dtype"),
        (("bench", "--benchmarks", "trivia"), "Unknown benchmark"),
        (("bench", "--batch-size", "4,many"), "--batch-size takes"),
        (("bench", "--batch-size", "0"), "--batch-size takes"),
        (("bench", "--batch-size", "64", "--limit", "3"), "need 64 prompts"),
        (("bench", "--batch-size", "2", "--methods", "xpress+ddtree"), "token trees"),
        (("bench", "--batch-size", "2", "--seed", "0", "--seed", "1"), "one --seed"),
        (("generate", QUESTION, QUESTION, "--method", "dflash+ddtree"), "token trees"),
        (("bench", "--budget", "16,many"), "--budget takes"),
        (("bench", "--methods", "xpress+ddtree", "--rescoring", "x"), "rescoring 'x'"),
        (("generate", QUESTION, "--rescoring", "paths"), "not for xpress"),
        (("tables", "nowhere.csv"), "No results at"),
        (("tables", __file__), "holds no results"),
        (("bench", "--limit", "1", "--out", __file__), "something else than results"),
        (("train", "--only", "everything"), "Unknown stage"),
        (("export", "--to", "gguf"), "Unknown export"),
        (("export", "--method", "markov-rnn", "--confidence"), "no confidence head"),
        (("generate", QUESTION, "--weights", "notebooks"), "No checkpoint in"),
        (("generate", QUESTION, "--confidence", "-1"), "must lie in 0..1"),
        (("generate", QUESTION, "--method", "ar", "--confidence", "1"), "for ar use 0"),
        (("bench", "--confidence", "0.4,high"), "--confidence takes"),
        (("bench", "--confidence", "-1"), "--confidence takes"),
        (
            ("bench", "--methods", "markov-rnn", "--confidence", "0.4"),
            "no confidence head",
        ),
        (("bench", "--methods", "eagle", "--budget", "x"), "--budget takes"),
        (("sweep-layers", "--layers", "1,two"), "--layers takes"),
        (("sweep-layers", "--layers", "9"), "Depths must lie in 1..4"),
        (("sweep-losses", "--seeds", "0,x"), "--seeds takes"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, words, says):
    result = run(*words)
    assert result.exit_code == 2
    assert says in result.stderr and "Traceback" not in result.output
    assert len([x for x in result.stderr.splitlines() if "xpress-lab:" in x]) == 1


def test_bench_then_tables(run, tmp_path):
    out = str(tmp_path / "mine.csv")
    asked = ["bench", "--limit", "1", "--max-new-tokens", "24", "--out", out]
    asked += ["--methods", "ar, xpress", "--passes", "1,fixed", "--json"]
    lines = json.loads(run(*asked).stdout.splitlines()[-1])
    assert {line["arm"] for line in lines} == {"ar", "xpress K=1", "xpress fixed point"}
    assert json.loads(run("tables", out, "--json").stdout) == lines
    shown = run("tables", out).stdout
    assert "published: Qwen3-8B" in shown and "GSM8K" in shown


def test_all_methods_are_those_with_weights_and_the_others_are_named(run):
    asked = ["bench", "--limit", "1", "--max-new-tokens", "8", "--benchmarks", "chat"]
    result = run(*asked, "--methods", "all", "--budget", "15", "--json")
    arms = {line["arm"] for line in json.loads(result.stdout.splitlines()[-1])}
    ran = {arm.split()[0] for arm in arms}
    found = re.search(r"Left out, .*: (.*)\. xpress-lab", result.stderr)
    left_out = set(found[1].split(", ")) if found else set()
    assert ran | left_out == set(METHODS) and not ran & left_out


def test_batches_then_tables(run, tmp_path):
    out = str(tmp_path / "batches.csv")
    asked = ["bench", "--limit", "1", "--max-new-tokens", "16", "--out", out]
    asked += ["--methods", "ar,dflash", "--batch-size", "3,1", "--turns", "1", "--json"]
    lines = json.loads(run(*asked).stdout.splitlines()[-1])
    cases = {(line["arm"], line["batch_size"]) for line in lines}
    assert cases == {("ar", 1), ("ar", 3), ("dflash", 1), ("dflash", 3)}
    assert all(line["tokens_per_second"] > 0 for line in lines)
    assert json.loads(run("tables", out, "--json").stdout) == lines
    shown = " ".join(run("tables", out).stdout.split())  # titles are wrapped
    assert "tokens a second / speed-up over ar" in shown
    assert all(f"{line['tokens_per_second']:.0f} / " in shown for line in lines)


def test_several_prompts_are_answered_side_by_side(run):
    asked = [QUESTION, "Where does Anna live?", QUESTION]
    how = ("--temperature", "1", "--max-new-tokens", "40", "--json")
    found = json.loads(run("generate", *asked, "--seed", "5", *how).stdout)
    alone = [
        json.loads(run("generate", prompt, "--seed", str(5 + i), *how).stdout)
        for i, prompt in enumerate(asked)
    ]
    assert [text["tokens"] for text in found] == [text["tokens"] for text in alone]
    assert found[0]["tokens"] != found[2]["tokens"]
    shown = run("generate", *asked, "--seed", "5", *how[:-1]).stdout
    assert all(text["text"].strip() in shown for text in found)
    assert shown.count("> ") == 3


def test_doctor_lists_what_matters(run):
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    assert found["missing"] == [] and result.exit_code == 0
    assert "torch" in found["versions"] and "threads" in found["machine"]


@pytest.mark.parametrize("to", ["folder", "vllm"])
def test_export_writes_the_serving_layout(run, tmp_path, to):
    from safetensors.torch import load_file

    result = run("export", "--method", "xpress", "--to", to, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    assert config["architectures"] == ["Qwen3XPressModel"]
    tensors = load_file(tmp_path / "model.safetensors")
    rank, block = config["xpress_rank"], config["xpress_block_size"]
    assert tensors["xpress_head.mix.L"].shape == (rank, block, block)
    assert tensors["fc.weight"].shape[0] == config["hidden_size"]
    assert ("vllm serve" in result.output) == (to == "vllm")
