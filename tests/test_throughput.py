"""Throughput of batches: every size decodes the same texts, in turns, and resumes."""

import json
from dataclasses import replace

import pandas as pd
import pytest

from xpress_lab import LabError, load_lab
from xpress_lab.benchmarks import throughput
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.runner import RunArm
from xpress_lab.benchmarks.throughput import (
    KEY,
    Load,
    end_to_end,
    is_throughput,
    pool_of,
    read_frame,
    run_throughput,
    throughput_summary,
)
from xpress_lab.decoding import decode
from xpress_lab.sampling import Sampling

ARMS = (RunArm("ar"), RunArm("xpress", 3))


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def load():
    folder = prompt_folder("pocket")
    given = {name: read_prompts(folder, name, 3) for name in ("chat", "math")}
    pool = pool_of(given, (1, 2, 4))
    return Load(ARMS, pool, (1, 2, 4), (0.0, 1.0), turns=2, max_new_tokens=20)


@pytest.fixture(scope="module")
def rows(lab, load, tmp_path_factory):
    out = tmp_path_factory.mktemp("batches") / "rows.csv"
    run_throughput(lab, load, out)
    assert is_throughput(out)
    return read_frame(out)


def test_a_row_per_arm_size_turn_and_temperature(rows):
    assert len(rows) == 2 * 3 * 2 * 2
    assert not rows.duplicated(list(KEY)).any()
    assert (rows["texts"] == 4).all()
    assert set(rows["block_size"]) == {1, 16}


def test_every_size_decodes_the_same_texts(rows, lab, load):
    """Greedy texts are the same for all; sampled ones for an arm at every size."""
    greedy = rows[rows["temperature"] == 0]
    assert greedy["token_hash"].nunique() == 1
    tokens = [
        len(decode(lab.target, lab.method("ar"), ids, max_new_tokens=20).tokens)
        for ids in map(lab.target.encode, load.prompts)
    ]
    assert (greedy["new_tokens"] == sum(tokens)).all()
    sampled = rows[rows["temperature"] == 1]
    assert (sampled.groupby("method")["new_tokens"].nunique() == 1).all()
    one = decode(
        lab.target,
        lab.method("ar"),
        lab.target.encode(load.prompts[0]),
        sampling=Sampling(1.0),
        max_new_tokens=20,
        seed=load.seed,
    )
    only = replace(load, arms=ARMS[:1], prompts=load.prompts[:1], sizes=(1,), turns=1)
    (first,) = run_throughput(lab, only).query("temperature == 1")["new_tokens"]
    assert first == len(one.tokens)


def test_sums_agree(rows):
    emitted = rows["new_tokens"] - rows["texts"]
    pd.testing.assert_series_equal(
        rows["tau"], (emitted / rows["verify_steps"]).round(5), check_names=False
    )
    stages = [f"{stage}_seconds" for stage in throughput.STAGES]
    total = rows[stages].sum(axis=1)
    pd.testing.assert_series_equal(
        total, rows["decode_seconds"], check_names=False, atol=1e-6
    )
    spent = rows["decode_seconds"] + rows["prefill_seconds"]
    assert (rows["wall_seconds"] >= spent - 1e-6).all()
    single = rows["batch_size"] == 1
    assert (rows["target_calls"] <= rows["verify_steps"]).all()
    assert (rows["target_calls"] == rows["verify_steps"])[single].all()
    assert (rows["target_calls"] < rows["verify_steps"])[~single].all()
    for accepted, cell in zip(rows["accepted"], rows["accepted_per_slot"], strict=True):
        assert sum(json.loads(cell)) == accepted


def test_cases_take_turns_and_another_begins_each_turn(rows):
    cases = list(zip(rows["method"], rows["batch_size"], strict=True))
    turns = [cases[first : first + 6] for first in range(0, len(cases), 6)]
    assert turns[1] == turns[0][1:] + turns[0][:1]
    assert all(sorted(turn) == sorted(turns[0]) for turn in turns)


def test_an_interrupted_run_resumes_and_repeats_nothing(
    lab, load, rows, tmp_path, monkeypatch
):
    out, calls, measure = tmp_path / "rows.csv", [], throughput._measure

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(throughput, "_measure", failing)
    with pytest.raises(KeyboardInterrupt):
        run_throughput(lab, load, out)
    with out.open("a", encoding="utf-8") as file:
        file.write("pocket,half a li")
    run_throughput(lab, load, out)
    assert len(calls) == len(rows) + 1
    again = read_frame(out).set_index(list(KEY))["token_hash"].sort_index()
    expected = rows.set_index(list(KEY))["token_hash"].sort_index()
    pd.testing.assert_series_equal(again, expected)


def test_summary_is_medians_and_ratios_of_the_same_turn():
    """Two turns whose machine is twice as slow in the second: the ratio stands."""
    made = [
        {"method": method, "passes": passes, "temperature": 0.0, "batch_size": size}
        | {"turn": turn, "texts": size, "new_tokens": 101 * size, "tau": tau}
        | {"decode_seconds": seconds * (1 + turn), "verify_steps": 12 * size}
        | {"target_calls": 15, "confidence": 0.0, "proposed": 84 * size}
        for method, passes, tau, seconds in (
            ("ar", "", 1, 2.0),
            ("xpress", "6", 4, 0.5),
        )
        for size in (1, 4)
        for turn in (0, 1)
    ]
    lines = throughput_summary(pd.DataFrame(made)).set_index(["arm", "batch_size"])
    fast = lines.loc[("xpress K=6", 4)]
    assert fast["tokens_per_second"] == pytest.approx((800 + 400) / 2)
    assert (fast["tokens_per_second_low"], fast["tokens_per_second_high"]) == (500, 700)
    assert fast["speedup"] == fast["speedup_low"] == fast["speedup_high"] == 4
    assert (lines.loc["ar"]["speedup"] == 1).all()
    assert fast["rows_per_call"] == pytest.approx(48 / 15)
    assert fast["turns"] == 2 and fast["tau"] == 4 and fast["drafts"] == 7


def test_end_to_end_is_the_usual_methods_by_size(lab):
    said = []
    lines = end_to_end(lab, sizes=(1, 2), turns=1, say=said.append)
    cases = lines[["arm", "batch_size"]].itertuples(index=False, name=None)
    arms = ("ar", "dflash", "markov", "xpress K=6")
    assert set(cases) == {(arm, size) for arm in arms for size in (1, 2)}
    assert len(said) == len(arms) and (lines["tokens_per_second"] > 0).all()


def test_pool_mixes_benchmarks_and_fits_every_size():
    given = {"a": ["a0", "a1", "a2"], "b": ["b0", "b1"]}
    assert pool_of(given, (1, 2)) == ("a0", "b0", "a1", "b1")
    assert pool_of(given, (5,)) == ("a0", "b0", "a1", "b1", "a2")
    with pytest.raises(LabError, match="Batches of 2, 3 need 6 .* and there are 5"):
        pool_of(given, (2, 3))
