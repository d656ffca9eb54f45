"""Runner, statistics and tables: definitions agree, interrupted runs go on."""

import json

import numpy as np
import pandas as pd
import pytest

from xpress_lab import LabError, load_lab
from xpress_lab.benchmarks import runner
from xpress_lab.benchmarks.prompts import benchmark_names, prompt_folder, read_prompts
from xpress_lab.benchmarks.runner import Bench, RunArm, read_frame, run_bench
from xpress_lab.benchmarks.tables import (
    labelled,
    paper_layout,
    stage_costs,
    summary,
    tau_by_context,
)
from xpress_lab.statistics import (
    acceptance_rate,
    bootstrap,
    distinct_n,
    longest_run,
    paired_ratio,
    slot_acceptance,
    tau_per_response,
    tau_per_step,
    tau_pooled,
)

ARMS = (RunArm("ar"), RunArm("dflash"), RunArm("xpress", 2), RunArm("xpress", None))


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def bench():
    folder = prompt_folder("pocket")
    prompts = {f: read_prompts(folder, f, 2) for f in ("math", "chat")}
    return Bench(ARMS, prompts, temperatures=(0.0, 1.0), max_new_tokens=40)


@pytest.fixture(scope="module")
def rows(lab, bench, tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "rows.csv"
    run_bench(lab, bench, out)
    return read_frame(out)


def test_one_row_per_arm_prompt_and_temperature(rows, bench):
    assert len(rows) == 4 * 4 * 2
    contract = "tier target method passes temperature benchmark prompt_id seed"
    contract += " batch_size block_size new_tokens verify_steps tau accepted_per_slot"
    contract += " decode_seconds draft_seconds refine_seconds verify_seconds device"
    contract += " dtype git_commit versions"
    assert set(contract.split()) <= set(rows.columns)
    assert rows["tau"].between(1, rows["block_size"]).all()


def test_sums_agree(rows):
    drafted = rows[rows["method"] != "ar"]
    for _, row in drafted.iterrows():
        reached = json.loads(row["accepted_per_slot"])
        assert sum(reached) == row["accepted"]
        assert reached == sorted(reached, reverse=True)
        emitted = row["new_tokens"] - 1
        assert emitted <= row["accepted"] + row["verify_steps"]
        assert row["tau"] == pytest.approx(emitted / row["verify_steps"], abs=1e-4)
        stretches = json.loads(row["rounds_by_context"])
        assert sum(rounds for _, rounds, _ in stretches) == row["verify_steps"]
        assert sum(tokens for _, _, tokens in stretches) == emitted
        assert all(start % runner.CONTEXT_STEP == 0 for start, _, _ in stretches)
    stages = ["draft", "refine", "verify", "accept"]
    total = rows[[f"{s}_seconds" for s in stages]].sum(axis=1)
    np.testing.assert_allclose(total, rows["decode_seconds"], atol=1e-5)
    assert (rows["wall_seconds"] >= rows["decode_seconds"]).all()


def test_tau_by_context_adds_up_to_the_pooled_tau(rows):
    table = tau_by_context(rows)
    for (temperature, arm), part in table.groupby(["temperature", "arm"]):
        texts = labelled(rows)
        texts = texts[(texts["temperature"] == temperature) & (texts["arm"] == arm)]
        assert part["rounds"].sum() == texts["verify_steps"].sum()
        mean = (part["tau"] * part["rounds"]).sum() / part["rounds"].sum()
        assert mean == pytest.approx(tau_pooled(texts))


def test_greedy_rows_hold_the_same_text(rows):
    greedy = rows[rows["temperature"] == 0]
    assert (
        greedy.groupby(["benchmark", "prompt_id"])["token_hash"].nunique() == 1
    ).all()


def test_an_interrupted_run_resumes_and_repeats_nothing(
    lab, bench, rows, tmp_path, monkeypatch
):
    out = tmp_path / "rows.csv"
    calls = []

    def counting(*arguments, **options):
        calls.append(1)
        if len(calls) == 4 * 2 + 11:  # warm-ups, then in the middle of a prompt
            raise KeyboardInterrupt
        return decode(*arguments, **options)

    decode = runner.decode
    monkeypatch.setattr(runner, "decode", counting)
    with pytest.raises(KeyboardInterrupt):
        run_bench(lab, bench, out)
    with out.open("a", encoding="utf-8") as file:
        file.write("pocket,half a li")
    monkeypatch.setattr(runner, "decode", decode)
    run_bench(lab, bench, out)
    again = read_frame(out)
    key = list(runner.KEY)
    assert not again.duplicated(key).any()
    pd.testing.assert_series_equal(
        again.set_index(key)["token_hash"].sort_index(),
        rows.set_index(key)["token_hash"].sort_index(),
    )


def synthetic(accepted: list[list[int]], cut: int = 0) -> pd.DataFrame:
    """Rows of texts whose rounds accepted the given drafts; B = 4."""
    frame = []
    for number, rounds in enumerate(accepted):
        emitted = sum(rounds) + len(rounds) - cut
        reached = [sum(a >= k for a in rounds) for k in (1, 2, 3)]
        frame.append(
            {
                "benchmark": "x",
                "prompt_id": number,
                "seed": 0,
                "block_size": 4,
                "budget": 3,
                "new_tokens": emitted + 1,
                "verify_steps": len(rounds),
                "accepted": sum(rounds),
                "accepted_per_slot": json.dumps(reached),
                "tau": emitted / len(rounds),
            }
        )
    return pd.DataFrame(frame)


def test_the_three_taus_are_different_numbers():
    rows = synthetic([[3, 3, 0], [1]], cut=1)
    assert tau_pooled(rows) == pytest.approx((8 + 1) / 4)
    assert tau_per_step(rows) == pytest.approx(7 / 4 + 1)
    assert tau_per_response(rows) == pytest.approx((8 / 3 + 1) / 2)
    assert acceptance_rate(rows) == pytest.approx(7 / 12)
    np.testing.assert_allclose(slot_acceptance(rows), [3 / 4, 2 / 4, 2 / 4])


def test_bootstrap_covers_and_shrinks():
    random = np.random.default_rng(0)
    many = synthetic([random.integers(0, 4, 6).tolist() for _ in range(200)])
    wide, narrow = bootstrap(many[:10], tau_pooled), bootstrap(many, tau_pooled)
    assert narrow.low < tau_pooled(many) < narrow.high
    assert narrow.high - narrow.low < wide.high - wide.low


def test_paired_ratio_of_a_method_with_itself_is_one():
    rows = synthetic([[3, 1], [0, 2, 2], [1]])
    assert paired_ratio(rows, rows, tau_pooled, draws=50) == (1, 1, 1)


def test_repetition_measures():
    assert longest_run([1, 1, 2, 2, 2, 3]) == 3 and longest_run([]) == 0
    assert distinct_n([1, 2, 3, 1, 2, 3, 1], 3) == pytest.approx(3 / 5)


def test_tables_hold_every_arm(rows):
    lines = summary(rows)
    table = paper_layout(lines, 0.0)
    assert list(table.columns) == ["ar", "dflash", "xpress K=2", "xpress fixed point"]
    assert list(table.index) == ["all", "chat", "math"]
    costs = stage_costs(rows).set_index(["temperature", "arm"])
    assert costs.loc[(0.0, "ar"), "break_even_tau"] == pytest.approx(1)
    with pytest.raises(LabError, match="No rows"):
        paper_layout(lines, 0.5)


def test_prompt_folders_explain_themselves(tmp_path, monkeypatch):
    with pytest.raises(LabError, match="No prompts in"):
        prompt_folder("pocket", tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"turns": ["a"]}\n{"x": 1}\n', "utf-8")
    monkeypatch.setenv("XPRESS_LAB_PROMPTS", str(tmp_path))
    assert prompt_folder("pocket") == tmp_path
    with pytest.raises(LabError, match="line 2"):
        read_prompts(tmp_path, "mine")
    with pytest.raises(LabError, match="has mine"):
        benchmark_names(tmp_path, "yours")
