"""The evaluation of a tier: parts resume, batches change no tau, means weigh alike."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from xpress_lab import load_lab
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
from xpress_lab.benchmarks.tables import labelled, means, summary
from xpress_lab.errors import LabError
from xpress_lab.evaluation import Amounts, evaluate, grow
from xpress_lab.statistics import benchmark_mean, degenerate, tau_pooled

FEW = Amounts(
    prompts=5,
    raced=1,
    compared=1,
    new_tokens=24,
    raced_tokens=12,
    compared_tokens=12,
    batch=3,
    passes=(1, 6),
)
PARTS = ("tau", "speed", "identity-float32", "identity-bfloat16")


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation")
    evaluate("pocket", out, device="cpu", say=lambda _: None, amounts=FEW)
    return out


def test_everything_is_written(folder):
    for part in PARTS:
        table = pd.read_csv(folder / f"{part}.csv")
        assert set(table["benchmark"]) == {"chat", "code", "math"}
    for name in ("tau", "passes", "slots", "gains", "context", "repetition", "speed"):
        assert (folder / f"{name}.png").stat().st_size > 5_000
    exact = pd.read_csv(folder / "identity-float32.csv")
    assert exact["same"].all()


def test_a_second_run_measures_nothing_again(folder):
    before = {part: (folder / f"{part}.csv").read_bytes() for part in PARTS}
    evaluate("pocket", folder, device="cpu", say=lambda _: None, amounts=FEW)
    assert before == {p: (folder / f"{p}.csv").read_bytes() for p in PARTS}


def test_a_folder_begun_with_other_settings_is_refused(folder):
    before = (folder / "made.json").read_bytes()
    other = replace(FEW, new_tokens=48)
    with pytest.raises(LabError, match="begun with amounts .*choose another folder"):
        evaluate("pocket", folder, device="cpu", amounts=other)
    with pytest.raises(LabError, match="begun with dtype bfloat16, .* float32"):
        evaluate("pocket", folder, device="cpu", dtype="float32", amounts=FEW)
    assert before == (folder / "made.json").read_bytes()


def test_grow_adds_what_a_file_lacks(tmp_path):
    asked = []

    def measure(prompts):
        (name,) = prompts
        asked.append(name)
        return pd.DataFrame([{"benchmark": name, "count": len(prompts[name])}])

    path = tmp_path / "part.csv"
    grow(path, {"a": ["1"]}, measure)
    table = grow(path, {"a": ["1"], "b": ["1", "2"]}, measure)
    assert asked == ["a", "b"] and table["count"].tolist() == [1, 2]


def test_a_benchmark_is_in_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    """Its name says that it is done: an interruption must not leave a part of it."""
    path, rows = tmp_path / "part.csv", [{"benchmark": "b", "n": n} for n in range(9)]
    grow(path, {"a": []}, lambda _: pd.DataFrame([{"benchmark": "a", "n": 0}]))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            grow(path, {"b": []}, lambda _: pd.DataFrame(rows))
    assert path.read_bytes() == before
    assert len(grow(path, {"b": []}, lambda _: pd.DataFrame(rows))) == 10


def interrupted(*_):
    raise KeyboardInterrupt


def test_texts_side_by_side_have_the_tau_that_each_has_alone(lab, tmp_path):
    prompts = {"chat": read_prompts(prompt_folder("pocket"), "chat", 5)}
    arms = run_arms(["ar", "dflash", "xpress"], [2])
    alone = Bench(arms, prompts, (0.0, 1.0), max_new_tokens=24)
    beside = replace(alone, batch_size=2)
    path = tmp_path / "rows.csv"
    first, second = run_bench(lab, alone), run_bench(lab, beside, path)
    order = ["method", "temperature", "prompt_id"]
    first, second = first.sort_values(order), second.sort_values(order)
    for column in ("token_hash", "tau", "verify_steps", "accepted_per_slot"):
        assert first[column].tolist() == second[column].tolist()
    assert set(second["batch_size"]) == {2} and second["wall_seconds"].isna().all()
    lines = summary(second)
    assert lines["tokens_per_second"].isna().all() and lines["tau"].notna().all()
    # A file cut short goes on with the texts that it lacks, be they half a batch.
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join(whole[:-1]))
    again = run_bench(lab, beside, path)
    assert not again.duplicated(order).any()
    assert sorted(again["token_hash"]) == sorted(first["token_hash"])


def made_up(taus: dict[str, float], arm: str, distinct: float = 0.9) -> list[dict]:
    return [
        {
            "temperature": 0.0,
            "method": arm,
            "passes": "",
            "rescoring": "",
            "budget": 7,
            "confidence": 0.0,
            "benchmark": name,
            "prompt_id": number,
            "seed": 0,
            "new_tokens": 1 + int(tau * steps),
            "verify_steps": steps,
            "distinct_3": distinct,
            "longest_run": 2,
        }
        for name, tau in taus.items()
        for number, steps in enumerate((10, 20, 200))
    ]


def test_each_benchmark_counts_the_same_in_a_mean():
    few = pd.DataFrame(made_up({"a": 2.0, "b": 4.0}, "dflash"))
    more = few[(few["benchmark"] == "b") | (few["prompt_id"] == 0)]
    found = benchmark_mean(more)
    assert found.value == pytest.approx(3) and tau_pooled(more) > 3.8
    assert found.low == pytest.approx(3) and found.high == pytest.approx(3)
    better = pd.DataFrame(made_up({"a": 3.0, "b": 6.0}, "xpress"))
    assert benchmark_mean(better, few).value == pytest.approx(1.5)


def test_means_tell_circling_texts_apart():
    rows = made_up({"a": 2.0}, "dflash") + made_up({"a": 3.0}, "xpress")
    circling = made_up({"a": 8.0}, "dflash", 0.2) + made_up({"a": 8.0}, "xpress", 0.2)
    for row in circling:
        row["prompt_id"] += 10
    table = means(pd.DataFrame(rows + circling)).set_index("arm")
    assert table.loc["xpress", "degenerate"] == 0.5
    assert table.loc["xpress", "calm_tau"] == pytest.approx(3)
    assert table.loc["xpress", "calm_gain"] == pytest.approx(1.5)
    assert table.loc["xpress", "gain"] < 1.2
    long_run = pd.DataFrame({"distinct_3": [0.9], "longest_run": [16]})
    assert degenerate(long_run).tolist() == [True]


def test_the_interval_of_a_mean_covers_its_resamples():
    random = np.random.default_rng(0)
    taus = {
        name: float(t) for name, t in zip("abc", random.uniform(1, 5, 3), strict=True)
    }
    rows = pd.DataFrame(made_up(taus, "xpress"))
    rows["new_tokens"] += random.integers(0, 40, len(rows))
    found = benchmark_mean(labelled(rows))
    assert found.low < found.value < found.high
