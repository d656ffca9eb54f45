"""Refiner and tree together: ratios from made-up rows, ranks from the shipped arms."""

import json

import pandas as pd
import pytest
import torch

from xpress_lab import load_lab
from xpress_lab.benchmarks import orthogonality
from xpress_lab.benchmarks.orthogonality import (
    BOTH,
    PLANTED,
    PRODUCT,
    REFINED,
    caught,
    layer_lines,
    layer_results,
    missed_ranks,
    over_each,
    refining_over,
    round_at,
    telling_place,
    together,
)
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.rows import COLUMNS, as_frame
from xpress_lab.errors import LabError


def rows(steps: dict[tuple, int], texts: int = 4) -> list[dict]:
    """Texts of 121 tokens; ``steps`` verifications each, of 10 ms."""
    made = []
    for (method, rescoring, budget, temperature), count in steps.items():
        for number in range(texts):
            row = dict.fromkeys(COLUMNS, 0) | {
                "method": method, "passes": "6" if method == "xpress" else "",
                "rescoring": rescoring, "budget": budget, "temperature": temperature,
                "benchmark": "math", "prompt_id": number, "new_tokens": 121,
                "verify_steps": count, "decode_seconds": 0.01 * count,
                "accepted_per_slot": json.dumps([count]),
            }  # fmt: skip
            made.append(row)
    return made


CASE = {
    ("ar", "", 0, 0.0): 120,
    ("dflash", "", 15, 0.0): 60,
    ("xpress", "", 15, 0.0): 40,
    ("dflash+ddtree", "", 16, 0.0): 30,
    ("xpress+ddtree", "marginals", 16, 0.0): 24,
    ("xpress+ddtree", "paths", 16, 0.0): 20,
}


def test_both_stand_beside_each_alone_and_the_product():
    lines = together(as_frame(rows(CASE)))
    tau = lines[lines["measure"] == "tau"].set_index("who")["ratio"]
    assert tau.to_dict() == pytest.approx(
        {REFINED: 1.5, PLANTED: 2.0, BOTH: 3.0, PRODUCT: 3.0}
    )
    assert lines[lines["who"] != PRODUCT][["low", "high"]].notna().all(axis=None)
    marginals = together(as_frame(rows(CASE)), "marginals")
    assert marginals.set_index(["measure", "who"]).loc[("tau", BOTH), "ratio"] == 2.5


def test_over_each_divides_by_each_alone():
    lines = over_each(as_frame(rows(CASE)))
    found = lines.set_index(["measure", "over"])["ratio"].to_dict()
    assert found[("tau", REFINED)] == pytest.approx(2.0)
    assert found[("tau", PLANTED)] == pytest.approx(1.5)
    assert found[("tokens a second", PLANTED)] == pytest.approx(1.5)


def test_refining_is_set_against_each_rival_of_its_own_size():
    more = {("dflash+presto", "", 16, 0.0): 25, ("dflash+presto", "", 32, 0.0): 24}
    more |= {("dflash+ddtree", "", 32, 0.0): 22, ("xpress+ddtree", "paths", 32, 0.0): 8}
    cold = CASE | more
    hot = {(m, r, b, 1.0): n for (m, r, b, _), n in cold.items()}
    hot["xpress", "", 15, 1.0] = 30
    found = refining_over(as_frame(rows(cold | hot))).set_index("temperature")
    ratio = found.loc[1.0].set_index(["budget", "over"])["ratio"]
    assert (ratio.loc[:, "a chain"] == 2.0).all()
    ratio = found.loc[0.0].set_index(["budget", "over"])["ratio"].to_dict()
    assert ratio == pytest.approx(
        {(16, "a chain"): 60 / 40, (16, "DDTree"): 30 / 20, (16, "PRESTO"): 25 / 20,
         (32, "a chain"): 60 / 40, (32, "DDTree"): 22 / 8, (32, "PRESTO"): 24 / 8}
    )  # fmt: skip
    with pytest.raises(LabError, match=r"lack dflash\+presto: .*--methods dflash,"):
        refining_over(as_frame(rows(CASE)))


def test_temperatures_are_not_mixed():
    hot = {(m, r, b, 1.0): 2 * n for (m, r, b, _), n in CASE.items()}
    hot[("xpress", "", 15, 1.0)] = 60
    lines = together(as_frame(rows(CASE | hot)))
    tau = lines[lines["measure"] == "tau"].set_index(["temperature", "who"])["ratio"]
    assert tau[(0.0, REFINED)] == 1.5 and tau[(1.0, REFINED)] == 2.0


def test_missing_arms_are_named():
    with pytest.raises(LabError, match="lack xpress, xpress.ddtree.*--rescoring paths"):
        together(as_frame(rows({k: v for k, v in CASE.items() if "dflash" in k[0]})))


def test_a_round_at_a_place_says_what_the_answer_says_there():
    lab = load_lab("pocket", device="cpu")
    prompt = read_prompts(prompt_folder("pocket"), "math", 1)[0]
    answer = lab.generate(prompt, "ar").tokens
    bare, tree = lab.method("dflash"), lab.method("xpress+ddtree", budget=24)
    gains = {}
    for place in (0, 5, 9):
        one = round_at(lab, tree, prompt, place)
        assert one.block[0] == answer[place] and len(one.block) == 25
        said = [one.block[node] for node in one.path] + [one.next_token]
        assert said == answer[place + 1 :][: len(said)]
        chain = round_at(lab, bare, prompt, place)
        gains[place] = one.accepted - chain.accepted
    best = telling_place(lab, prompt, bare, tree, tuple(gains))
    assert gains[best] == max(gains.values())


# where a chain misses --------------------------------------------------------


def test_ranks_agree_with_the_verdict_of_a_tree():
    """A word of rank r at the first missed slot is what a tree of r children holds."""
    lab = load_lab("pocket", device="cpu")
    chain = lab.method("dflash")
    prompts = read_prompts(prompt_folder("pocket"), "math", 1)
    ranks = missed_ranks(lab, prompts, {"dFlash": chain})
    assert (ranks["rank"] >= 2).all() and ranks["slot"].between(1, 15).all()
    first = lab.generate(prompts[0], "dflash").rounds[0]
    with torch.inference_mode():
        watched = orthogonality.Watched(chain)
        lab.generate(prompts[0], watched, max_new_tokens=first.accepted + 2)
    order = watched.seen[0][0, first.accepted].argsort(descending=True).tolist()
    assert order[0] == first.block[1 + first.accepted]
    assert order.index(first.next_token) + 1 == ranks["rank"][0]
    assert ranks["slot"][0] == first.accepted + 1


def test_caught_counts_the_top_of_the_list():
    ranks = pd.DataFrame({"who": ["a"] * 4 + ["b"], "rank": [2, 3, 9, 0, 2]})
    shares = caught(ranks, most=4)
    assert shares["a"].tolist() == [0.25, 0.5, 0.5]
    assert shares["b"].tolist() == [1, 1, 1]


# layers ----------------------------------------------------------------------


def test_layers_are_summed_up_by_depth(tmp_path):
    parts = [
        pd.DataFrame(rows({k: v // depth for k, v in CASE.items() if "+" not in k[0]}))
        .assign(drafter_layers=depth)
        for depth in (1, 2)
    ]  # fmt: skip
    path = tmp_path / "layers.csv"
    pd.concat(parts).to_csv(path, index=False)
    lines = layer_lines(path)
    pooled = lines[lines["benchmark"] == "all"].set_index(["drafter_layers", "arm"])
    assert pooled.loc[(1, "dflash"), "tau"] == pytest.approx(2.0)
    assert pooled.loc[(2, "dflash"), "tau"] == pytest.approx(4.0)
    pd.concat(parts).drop(columns="drafter_layers").to_csv(path, index=False)
    with pytest.raises(LabError, match="no column drafter_layers"):
        layer_lines(path)


def test_layer_results_are_looked_for_where_they_are_shipped_or_made(
    tmp_path, monkeypatch
):
    data = tmp_path / "data"
    made = tmp_path / "outputs" / "layers" / "layers.csv"
    (data / "results").mkdir(parents=True)
    monkeypatch.setenv("XPRESS_LAB_DATA", str(data))
    assert layer_results() is None
    made.parent.mkdir(parents=True)
    made.touch()
    assert layer_results() == made
    (data / "results" / "layers.csv").touch()
    assert layer_results() == data / "results" / "layers.csv"
