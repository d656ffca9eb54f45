"""What is said about cost: latency records, the cost model, certificate failures.

No time is asserted; what is timed, how it is reported and what is computed from it are.
"""

import json
import time
from functools import partial

import pandas as pd
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

from xpress_lab.benchmarks import cost_model, refiner_latency
from xpress_lab.benchmarks.certificates import certificate_failures
from xpress_lab.benchmarks.cost_model import (
    cost_of_round,
    published_costs,
    published_sentence,
    tune,
    verdict,
)
from xpress_lab.benchmarks.overhead import Meter, Place, replaced, round_costs
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.refiner_latency import (
    BLOCKS,
    CERTIFIED,
    FIXED,
    Arm,
    Blocks,
    Grid,
)
from xpress_lab.benchmarks.round_profile import profile_rounds
from xpress_lab.benchmarks.runner import run_arms
from xpress_lab.cli import app
from xpress_lab.decoding import decode
from xpress_lab.jacobi import solve, solve_sequentially
from xpress_lab.lab import load_lab

CPU = torch.device("cpu")
TINY = Grid(vocabularies=(96, 128), ranks=(8,), blocks=(6,), passes=(1, 2, 5))


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def prompts():
    return read_prompts(prompt_folder("pocket"), "math", 2)


@pytest.fixture(scope="module")
def records():
    """Of a vocabulary that counts as small, and of one that counts as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refiner_latency, "WORTHWHILE", 128)
        return refiner_latency.refiner_latency(CPU, grid=TINY, seconds=0.0)


# --- refiner latency ----------------------------------------------------------


def test_every_size_and_arm_has_a_record(records):
    keys = ["method", "variant", "vocab", "rank", "block", "passes"]
    found = {tuple(record[key] for key in keys) for record in records}
    expected = {
        (method, variant, vocab, 8, 6, passes)
        for vocab in TINY.vocabularies
        for variant in ("plain", "fast")
        for method, passes in [("markov", 5), *(("xpress", k) for k in TINY.passes)]
    }
    assert found == expected and len(records) == len(expected)


def test_records_are_flat_and_complete(records):
    for record in records:
        json.dumps(record)
        assert all(not isinstance(value, dict | list) for value in record.values())
        assert record["device"] == "cpu" and record["rounds"] >= 3
        assert record["microseconds"] > 0 and record["spread"] >= 0


def test_the_floor_grows_by_a_read_a_pass(records):
    of = {
        r["passes"]: r["floor_microseconds"]
        for r in records
        if (r["method"], r["variant"], r["vocab"]) == ("xpress", "plain", 128)
    }
    assert of[5] == pytest.approx(5 * of[1], rel=0.05) and of[1] > 0


def test_the_floor_is_bytes_over_the_rate_of_the_table_that_was_read(monkeypatch):
    """Of a small w2 it is a share of the time that a large table takes."""
    read = []

    def timed(work, device, repeats):
        read.append(work(0))
        return 8e-3

    monkeypatch.setattr(refiner_latency, "timed", timed)
    blocks = Blocks(128, 8, 7, CPU, torch.float32)  # 4,096 bytes
    assert blocks.floor(0.01) == pytest.approx(8e-3) and read[-1] == 1024
    assert blocks.floor(0.01, least=2**15) == pytest.approx(1e-3)
    assert read[-1] == 2**13


def test_records_say_whether_tokens_are_final(records):
    """S plain passes are; so is the fast path wherever its certificate held."""
    for record in records:
        if record["method"] == "markov":
            assert record["fixed_point"] is None
        elif record["passes"] == 5:
            assert record["fixed_point"] == 1.0
    fast = [r for r in records if (r["method"], r["variant"]) == ("xpress", "fast")]
    assert all(1 <= r["full_passes"] <= r["passes"] for r in fast)


@pytest.mark.parametrize("number", range(BLOCKS))
def test_what_is_timed_is_the_solver(number):
    """Plain passes equal ``solve`` at the same K; the made-up blocks need several."""
    blocks = Blocks(128, 8, 7, CPU, torch.float64)
    hidden, base, anchor, before = blocks.block(number)
    prepared = blocks.head.prepare(hidden)
    for arm, work in blocks.works((1, 3, 6)).items():
        if arm.method == "xpress" and arm.variant == "plain":
            answer = solve(
                lambda previous: base + blocks.head.bias(prepared, previous),
                base,
                anchor,
                before,
                passes=arm.passes,
            )
            assert torch.equal(work(number), answer.tokens)
    final = answer.tokens  # of as many passes as there are slots
    assert torch.equal(blocks.fixed_points()[number], final)
    assert not torch.equal(base.argmax(-1), final)
    for blocks.count in (0, 16):
        assert torch.equal(blocks.works((6,))[Arm("xpress", "fast", 6)](number), final)


@pytest.mark.parametrize("count", [1, 64])
def test_recorded_passes_end_at_the_fixed_point(count):
    """What CUDA has lines for, run here as it is."""
    blocks = Blocks(128, 8, 7, CPU, torch.float64)
    blocks.count, ends, made = count, blocks.fixed_points(), {}
    for arm in (FIXED, CERTIFIED):
        work = partial(blocks.end, arm=arm)
        said = refiner_latency.reached(blocks, arm, work, ends)
        assert said["fixed_point"] == 1.0
        made[arm] = said["full_passes"]
    assert 1 <= made[CERTIFIED] <= made[FIXED] <= 6
    assert (made[CERTIFIED] < made[FIXED]) == (count == 64)
    assert not {FIXED, CERTIFIED} & set(blocks.works((1,)))  # a CPU has "fast"


def test_both_markov_variants_decode_serially():
    blocks = Blocks(128, 8, 7, CPU, torch.float64)
    works = blocks.works((1,))
    for number in range(BLOCKS):
        _, base, anchor, _ = blocks.block(number)

        def step(k, drafted, state, base=base):
            bias = blocks.markov.markov_w2(blocks.markov.markov_w1(drafted[:, -1]))
            return base[:, k] + bias, state

        answer = solve_sequentially(step, base, anchor).tokens
        for variant in ("plain", "fast"):
            assert torch.equal(works[Arm("markov", variant, 6)](number), answer)


def test_turns_rotate_and_every_arm_gets_as_many():
    calls = []
    works = {
        Arm("xpress", "plain", k): lambda n, k=k: calls.append(k) for k in range(3)
    }
    times = refiner_latency.take_turns(works, CPU, 0.0)
    assert {len(taken) for taken in times.values()} == {refiner_latency.LEAST_ROUNDS}
    turns = [k for k, last in zip(calls, [None, *calls], strict=False) if k != last]
    warm_up = [0, 1, 2]
    assert turns == [*warm_up, *(0, 1, 2), *(1, 2, 0), *(2, 0, 1)]


# --- the cost model -----------------------------------------------------------


def test_break_even_is_the_cost_of_a_round_in_plain_steps():
    assert cost_of_round(1.0, 0.5, 3.0, 3.0) == 1.5


def test_tuning_follows_the_model(lab, prompts):
    passes = (0, 2, None)
    rows = tune(lab, prompts, passes, max_new_tokens=32)
    assert len(rows) == len(passes) * 4  # blocks of 2, 4, 8 and 16
    cost = (rows["draft"] + rows["refine"] + rows["verify"]) / rows["ar"]
    assert_close(
        torch.tensor(rows["break_even_tau"].to_list()), torch.tensor(cost.to_list())
    )
    gain = rows["tau"] / rows["break_even_tau"]
    assert rows["speedup"].to_list() == pytest.approx(gain.to_list())
    assert rows["speedup"].is_monotonic_decreasing
    assert (rows["tau"].between(1, rows["block"])).all()
    assert (rows["estimated"] == (rows["block"] < 16)).all()
    for k in passes:
        texts = [
            decode(lab.target, lab.method("xpress", k), ids, max_new_tokens=32)
            for ids in map(lab.target.encode, prompts)
        ]
        accepted = [r.accepted for text in texts for r in text.rounds]
        for block in (4, 16):
            tau = sum(min(a, block - 1) + 1 for a in accepted) / len(accepted)
            label = "fixed" if k is None else str(k)
            row = rows[(rows["passes"] == label) & (rows["block"] == block)]
            assert row["tau"].item() == pytest.approx(tau)


def test_published_costs_are_tau_over_speedup():
    costs = published_costs().set_index(["benchmark", "method"])
    assert len(costs) == 21
    assert costs.loc[("GSM8K", "dflash"), "implied_cost"] == pytest.approx(6.48 / 4.8)
    xpress = costs.loc[("GSM8K", "xpress")]
    assert xpress["implied_cost"] == pytest.approx(10.11 / 8.2)
    assert xpress["low"] < xpress["implied_cost"] < xpress["high"]
    refiner = 530e-6 * 110
    assert xpress["expected_cost"] == pytest.approx(6.48 / 4.8 + refiner)
    assert xpress["expected_speedup"] == pytest.approx(10.11 / (6.48 / 4.8 + refiner))


def test_the_sentence_counts_what_rounding_cannot_explain():
    costs = published_costs()
    assert "On 2 of 7 benchmarks" in published_sentence(costs)
    assert "GSM8K: 1.35 against 1.23" in published_sentence(costs)
    follows = costs.copy()  # speed-ups that do follow from tau: nothing to explain
    follows["implied_cost"] = follows["expected_cost"]
    follows["low"] = follows["high"] = follows["expected_cost"]
    assert "On 0 of 7 benchmarks" in published_sentence(follows)


@pytest.mark.parametrize(
    ("speedup", "says"), [(0.8, "slower here than"), (2, "faster")]
)
def test_the_verdict_says_slower_where_it_is(speedup, says):
    row = {"passes": "4", "block": 16, "tau": 3.0, "break_even_tau": 3 / speedup}
    measured = pd.DataFrame([row | {"speedup": speedup, "estimated": False}])
    assert says in verdict(measured, published_costs())[0]


def test_verification_is_timed_at_every_width(lab):
    seconds = cost_model.verify_seconds(lab, [5, 6, 7], (1, 4))
    assert set(seconds) == {1, 4} and min(seconds.values()) > 0


# --- certificates -------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_failures_are_counted_on_the_blocks_of_real_texts(lab, prompts, temperature):
    vocab = lab.target.vocab_size
    rows = certificate_failures(
        lab, {"math": prompts}, (1, 16, vocab), (temperature,), max_new_tokens=32
    )
    few, some, all_rows = (rows.iloc[i] for i in range(3))
    assert few["failures"] > some["failures"] >= all_rows["failures"] == 0
    assert rows["different"].sum() == 0
    assert all_rows["mean_full_passes"] == 1 < few["mean_full_passes"]
    assert (rows["failure_rate"] == rows["failures"] / rows["blocks"]).all()
    assert rows["blocks"].nunique() == 1 and few["blocks"] > 4


def test_greedy_blocks_are_counted_once_however_many_seeds(lab):
    prompts = {"math": read_prompts(prompt_folder("pocket"), "math", limit=1)}
    how = {"max_new_tokens": 16, "temperatures": (0.0, 1.0)}
    one, two = (
        certificate_failures(lab, prompts, (16,), seeds=seeds, **how)["blocks"]
        for seeds in ((0,), (0, 1))
    )
    assert one[0] == two[0] and one[1] < two[1]


# --- the loop's own time -------------------------------------------------------


def test_a_meter_counts_nested_calls_once_and_leaves_no_trace():
    class Clock:
        def outer(self):
            return self.inner() + self.inner()

        def inner(self):
            time.sleep(0.01)
            return 1

    clock, meter = Clock(), Meter(torch.device("cpu"))
    places = [Place("", clock, "outer"), Place("", clock, "inner")]
    with replaced(places, meter.timed):
        assert clock.outer() == 2
    assert 0.02 <= meter.seconds < 0.1 and not vars(clock)
    spent = meter.seconds
    clock.inner()
    assert meter.seconds == spent


def test_a_round_is_model_calls_and_the_rest(lab, prompts):
    arms = run_arms(["ar", "dflash", "markov", "xpress"], [2])
    words = lab.target.encode(prompts[0])
    table = round_costs(lab, arms, words, (20, 60), turns=2, new_tokens=12)
    assert len(table) == 2 * len(arms) and set(table["context"]) == {20, 60}
    assert (table["outside_ms"] > 0).all() and (table["model_ms"] > 0).all()
    # Model calls are most of a round, or some of them are not metered.
    assert (table["overhead"] < 0.5).all()
    assert "forward" not in vars(lab.arm("xpress").drafter)


def test_a_profile_is_the_whole_round_by_part_and_kind(lab, prompts):
    arms = run_arms(["ar", "dflash", "xpress"], [3])
    table = profile_rounds(lab, arms, prompts[:2], new_tokens=16)
    assert table.groupby("arm")["share"].sum().tolist() == pytest.approx([1, 1, 1])
    table = table.set_index(["arm", "part", "kind"])
    calls = table["calls"]
    assert calls["ar", "target", "between operations"] == 2  # body and head
    # Two products for keys and values, more for the rest; the drafter reads taps too.
    for arm in ("dflash", "xpress K=3"):
        assert calls[arm, "drafter", "matrix products"] > 10
    layers = lab.target.config.num_hidden_layers
    assert calls["xpress K=3", "target", "attention"] == layers
    assert ("dflash", "refiner", "matrix products") not in table.index
    assert 3 <= calls["xpress K=3", "refiner", "matrix products"] < 30
    assert (table["milliseconds"] > 0).all()


# --- the command line ---------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    tiny = partial(refiner_latency.refiner_latency, grid=TINY)
    monkeypatch.setattr(refiner_latency, "refiner_latency", tiny)
    monkeypatch.setattr(cost_model, "PASSES", (0, 4))
    return lambda *words: CliRunner().invoke(app, ["bench", *words])


def test_bench_prints_flat_records(run):
    """--kernels, --tune, --candidates and --context, each as one list."""
    some = ("--benchmarks", "chat", "--limit", "1", "--max-new-tokens", "24")
    for words, column in (
        (("--kernels", "--seconds", "0", "--device", "cpu"), "microseconds"),
        (("--tune", *some), "break_even_tau"),
        (("--candidates", "4,32", *some), "failure_rate"),
        (("--context", "40,80", "--turns", "1", *some), "overhead"),
        (("--stages", *some), "verify_ms"),
        (("--profile", "--methods", "xpress", *some), "milliseconds"),
    ):
        result = run(*words, "--json")
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert isinstance(found, list) and column in found[0]


def test_costs_go_to_a_file_that_says_how_they_were_made(run, tmp_path):
    file = tmp_path / "kernels.csv"
    words = ("--kernels", "--seconds", "0", "--device", "cpu", "--out", str(file))
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    found = pd.read_csv(file)
    assert len(found) == len(json.loads(result.stdout))
    assert {"microseconds", "command", "commit", "machine", "versions"} <= set(found)


def test_tuning_ends_in_words(run):
    result = run("--tune", "--benchmarks", "chat", "--limit", "1")
    assert result.exit_code == 0, result.output
    assert "plain decoding" in result.output and "Published (T=0)" in result.output


def test_published_passes_give_an_expected_speed():
    rows = cost_model.published_by_passes()
    assert set(rows["passes"]) == {*map(str, range(1, 9)), "markov"}
    one = rows[(rows["benchmark"] == "GSM8K") & (rows["passes"] == "4")].iloc[0]
    bare, step = 6.48 / 4.8, 1e6 / 110
    assert one["tau"] == 9.97
    assert one["expected_speedup"] == pytest.approx(9.97 / (bare + 379 / step))


def test_candidate_counts_must_be_numbers(run):
    result = run("--candidates", "few")
    assert result.exit_code == 2 and "--candidates takes numbers" in result.output
