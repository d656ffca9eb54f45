"""Runner, statistics and tables: definitions agree, interrupted runs go on."""

import copy
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from xpress_lab import LabError, load_lab
from xpress_lab.benchmarks import runner
from xpress_lab.benchmarks.prompts import benchmark_names, prompt_folder, read_prompts
from xpress_lab.benchmarks.rows import CONTEXT_STEP, KEY, read_frame
from xpress_lab.benchmarks.runner import Bench, RunArm, run_arms, run_bench
from xpress_lab.benchmarks.tables import (
    labelled,
    paper_layout,
    stage_costs,
    summary,
    tau_by_context,
)
from xpress_lab.checkpoints import new_confidence
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
        assert all(start % CONTEXT_STEP == 0 for start, _, _ in stretches)
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
    key = list(KEY)
    assert not again.duplicated(key).any()
    pd.testing.assert_series_equal(
        again.set_index(key)["token_hash"].sort_index(),
        rows.set_index(key)["token_hash"].sort_index(),
    )


def test_arms_are_every_setting_that_matters_to_a_method_once():
    arms = run_arms(
        ["ar", "xpress", "dflash+ddtree", "xpress+ddtree", "xpress+presto"],
        passes=[2, None],
        budgets=[16, 64],
        rescorings=["marginals", "paths"],
    )
    count = Counter(arm.name for arm in arms)
    assert count == {
        "ar": 1,
        "xpress": 2,
        "dflash+ddtree": 2,
        "xpress+ddtree": 4 + 2,  # marginals for each K, paths once
        "xpress+presto": 2,
    }
    assert run_arms(["xpress+ddtree"], [6]) == (RunArm("xpress+ddtree", 6),)


@pytest.fixture(scope="module")
def tree_rows(lab, bench, tmp_path_factory):
    """Trees of two budgets and kinds beside plain decoding."""
    out = tmp_path_factory.mktemp("trees") / "rows.csv"
    arms = run_arms(
        ["ar", "dflash+ddtree", "xpress+ddtree"], [2], [4, 24], ["marginals", "paths"]
    )
    short = replace(bench, arms=arms, temperatures=(0.0,))
    run_bench(lab, short, out)
    size = out.stat().st_size
    again = run_bench(lab, short, out)
    assert out.stat().st_size == size  # everything was there
    return again


def test_trees_are_told_apart_by_budget_and_rescoring(tree_rows):
    assert not tree_rows.duplicated(list(KEY)).any()
    labels = set(labelled(tree_rows)["arm"])
    assert labels == {
        "ar",
        "dflash+ddtree M=4",
        "dflash+ddtree M=24",
        "xpress+ddtree K=2 M=4",
        "xpress+ddtree K=2 M=24",
        "xpress+ddtree paths M=4",
        "xpress+ddtree paths M=24",
    }
    trees = tree_rows[tree_rows["method"] != "ar"]
    assert (trees["tree_seconds"] > 0).all()
    assert trees["tau"].between(1, trees["block_size"]).all()
    assert set(trees["budget"]) == {4, 24} and set(trees["block_size"]) == {16}
    by_text = tree_rows.groupby(["benchmark", "prompt_id"])["token_hash"]
    assert (by_text.nunique() == 1).all()
    costs = stage_costs(tree_rows)
    assert (costs.loc[costs["arm"] != "ar", "tree_ms"] > 0).all()


@pytest.fixture(scope="module")
def cut_rows(lab, bench, tmp_path_factory):
    """xpress with and without cuts, by a confidence head of no training."""
    arm = lab.arm("xpress")
    torch.manual_seed(0)
    head = new_confidence(arm).requires_grad_(False)
    cutting = copy.copy(lab)
    cutting._arms = {**lab._arms, "xpress": replace(arm, confidence=head)}
    out = tmp_path_factory.mktemp("cuts") / "rows.csv"
    arms = run_arms(["ar", "xpress"], [2], confidences=[0.0, 0.5])
    assert [a.confidence for a in arms] == [0.0, 0.0, 0.5]  # ar has no blocks to cut
    run_bench(cutting, replace(bench, arms=arms, temperatures=(0.0,)), out)
    size = out.stat().st_size
    again = run_bench(cutting, replace(bench, arms=arms, temperatures=(0.0,)), out)
    assert out.stat().st_size == size
    return again


def test_cuts_are_told_apart_and_lose_nothing(cut_rows):
    assert not cut_rows.duplicated(list(KEY)).any()
    assert set(labelled(cut_rows)["arm"]) == {"ar", "xpress K=2", "xpress K=2 cut 0.5"}
    texts = cut_rows.groupby(["benchmark", "prompt_id"])["token_hash"].nunique()
    assert (texts == 1).all()


def test_the_acceptance_rate_counts_what_was_proposed(cut_rows):
    by_cut = dict(list(cut_rows[cut_rows["method"] == "xpress"].groupby("confidence")))
    whole, cut = by_cut[0.0], by_cut[0.5]
    assert (whole["proposed"] == 15 * whole["verify_steps"]).all()
    assert cut["proposed"].sum() < 15 * cut["verify_steps"].sum()
    rate = cut["accepted"].sum() / cut["proposed"].sum()
    assert acceptance_rate(cut) == pytest.approx(rate)
    assert (cut["accepted"] <= cut["proposed"]).all()


def test_the_acceptance_rate_of_a_tree_counts_its_nodes(tree_rows):
    for _, texts in tree_rows.groupby(["method", "rescoring", "budget"]):
        if texts["method"].iloc[0] != "ar":
            proposed = texts["verify_steps"].sum() * texts["budget"].iloc[0]
            rate = texts["accepted"].sum() / proposed
            assert acceptance_rate(texts) == pytest.approx(rate)


def test_files_from_before_trees_are_read_and_not_resumed(lab, bench, rows, tmp_path):
    path = tmp_path / "old.csv"
    new = ["budget", "rescoring", "tree_seconds", "confidence", "proposed"]
    old = rows.drop(columns=new)
    old.to_csv(path, index=False)
    back = read_frame(path)
    assert set(back["budget"]) == {0, 15} and (back["tree_seconds"] == 0).all()
    assert list(labelled(back)["arm"]) == list(labelled(rows)["arm"])
    assert (back["proposed"] == rows["proposed"]).all()
    with pytest.raises(LabError, match="budget, confidence, .*another file"):
        run_bench(lab, bench, path)


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
                "proposed": 3 * len(rounds),
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
    # What no stage counts is little, so that the model comes near the clock.
    off = costs["predicted"] / costs["clock"]
    torch.testing.assert_close(
        torch.tensor(off.to_list()), torch.ones(len(off)), atol=0.1, rtol=0
    )
    untimed = paper_layout(lines.assign(speedup=float("nan")), 0.0)
    assert table.loc["all", "ar"] == "1.00x / 1.00"
    assert untimed.loc["all", "ar"] == "1.00"
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
