"""Shipped results as one table, and the explorer that shows any part of it."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from xpress_lab.benchmarks.rows import COLUMNS, KEY
from xpress_lab.benchmarks.shipped import on_shared_texts, shipped_rows
from xpress_lab.benchmarks.tables import labelled
from xpress_lab.errors import LabError
from xpress_lab.statistics import tau_pooled
from xpress_lab.viz.tau_explorer import EVERY, TauExplorer, compare, tau_sentence

pytestmark = pytest.mark.usefixtures("house_style")


@pytest.fixture(scope="module")
def shipped():
    return shipped_rows()


@pytest.fixture(scope="module")
def pocket(shipped):
    return shipped[shipped["tier"] == "pocket"]


def a_row(method="dflash", passes="", prompt=0, tier="pocket", **other) -> dict:
    row = dict.fromkeys(COLUMNS, 0) | {
        "tier": tier, "method": method, "passes": passes, "rescoring": "",
        "budget": 15, "temperature": 0.0, "benchmark": "math", "prompt_id": prompt,
        "batch_size": 1, "block_size": 16, "new_tokens": 31, "verify_steps": 10,
        "accepted_per_slot": "[]", "rounds_by_context": "[]", "token_hash": "ab",
    }  # fmt: skip
    return row | other


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame(rows, columns=COLUMNS).to_csv(path, index=False)


# one table -----------------------------------------------------------------------


def test_shipped_rows_hold_each_text_of_an_arm_once(shipped):
    assert not shipped.duplicated(["tier", *KEY]).any()
    assert {"ar", "dflash", "markov", "xpress"} <= set(shipped["method"])
    assert {"0", "6", "15", "fixed"} <= set(shipped["passes"])


def test_files_agree_on_texts_that_several_of_them_have(shipped):
    """Greedy texts are the target's own, whichever run and method made them."""
    greedy = shipped[shipped["temperature"] == 0]
    hashes = greedy.groupby(["tier", "benchmark", "prompt_id"])["token_hash"].nunique()
    assert (hashes[hashes.index.get_level_values("tier") == "pocket"] == 1).all()


def test_rows_come_from_tiers_and_sweeps_and_nothing_else(tmp_path):
    write(tmp_path / "pocket" / "greedy.csv", [a_row(new_tokens=21)])
    write(tmp_path / "laptop" / "greedy.csv", [a_row(tier="laptop")])
    sweep = [a_row(), a_row(prompt=1), a_row(prompt=2, batch_size=4)]
    write(tmp_path / "passes.csv", sweep)
    layers = pd.DataFrame([a_row(prompt=9)], columns=COLUMNS)
    layers.assign(drafter_layers=3).to_csv(tmp_path / "layers.csv", index=False)
    (tmp_path / "pocket" / "summary.csv").write_text("arm,tau\nar,1\n", "utf-8")
    (tmp_path / "pocket" / "empty.csv").write_text("", "utf-8")
    rows = shipped_rows(tmp_path)
    assert rows["tier"].tolist() == ["laptop", "pocket", "pocket", "pocket"]
    assert rows["new_tokens"].tolist() == [31, 21, 31, 31]  # the tier's own run wins
    assert rows["batch_size"].tolist() == [1, 1, 1, 4]
    with pytest.raises(LabError, match="make results"):
        shipped_rows(tmp_path / "nothing")


def test_arms_are_compared_on_the_texts_that_all_have():
    rows = pd.DataFrame(
        [a_row(prompt=n) for n in range(4)]
        + [a_row("xpress", "6", prompt=n) for n in (1, 3, 7)]
    )
    both = on_shared_texts(rows, ["dflash", "xpress K=6"])
    assert sorted(both["prompt_id"]) == [1, 1, 3, 3]
    assert len(on_shared_texts(rows, ["xpress K=6"])) == 3
    assert on_shared_texts(rows, ["dflash", "markov"]).empty


# compare -------------------------------------------------------------------------


def test_compare_gives_pooled_tau_inside_its_interval(pocket):
    arms = ["dflash", "xpress K=6"]
    lines = compare(pocket, arms)
    assert set(lines["benchmark"]) == {"all", "chat", "code", "math"}
    assert (lines["tau_low"] < lines["tau"]).all()
    assert (lines["tau"] < lines["tau_high"]).all()
    greedy = labelled(on_shared_texts(pocket, arms))
    greedy = greedy[(greedy["temperature"] == 0) & (greedy["arm"] == "dflash")]
    line = lines.query("temperature == 0 and benchmark == 'all' and arm == 'dflash'")
    assert line["tau"].item() == tau_pooled(greedy)
    assert set(compare(pocket, arms, "code")["benchmark"]) == {"code"}


def test_nothing_to_compare_is_said(pocket):
    with pytest.raises(LabError, match="No method is chosen"):
        compare(pocket, [])
    with pytest.raises(LabError, match="all of dflash, xpress K=99"):
        compare(pocket, ["dflash", "xpress K=99"])


def test_sentence_says_every_value():
    rows = [a_row(prompt=n) for n in range(3)]
    said = tau_sentence(compare(pd.DataFrame(rows), ["dflash"]))
    assert said == "Tau on all benchmarks. T = 0, 3 texts: dFlash 3.00."


# the explorer --------------------------------------------------------------------


def test_explorer_follows_its_controls(shipped):
    explorer = TauExplorer(shipped, tier="pocket")
    assert explorer.arms == ["dflash", "markov", "xpress K=6"]
    assert "T = 0" in explorer.sentence.value and "T = 1" in explorer.sentence.value
    names = [name for name, _ in explorer.methods.options]
    chains = ["dFlash", "Markov", "gated Markov", "RNN Markov", "xPress"]
    assert names[:5] == chains  # trees come behind
    before = explorer.picture.value
    explorer.passes.value = "0"
    assert explorer.picture.value != before
    assert explorer.arms == ["dflash", "markov", "xpress K=0"]
    explorer.temperature.value = 1.0
    assert "T = 0" not in explorer.sentence.value
    assert "15" not in explorer.passes.options  # was measured at T = 0 only
    explorer.benchmark.value = "code"
    assert explorer.sentence.value.startswith("Tau on code. T = 1")
    explorer.methods.value = ()
    assert explorer.sentence.value.startswith("No method is chosen")
    assert not plt.get_fignums()


def test_explorer_changes_tiers_and_forgets_what_is_not_there():
    rows = [a_row(), a_row("xpress", "4"), a_row("xpress", "6")]
    rows += [a_row("xpress", "5", tier="laptop", benchmark="gsm8k")]
    explorer = TauExplorer(pd.DataFrame(rows))
    assert explorer.passes.value == "6"
    explorer.tier.value = "laptop"
    assert explorer.arms == ["xpress K=5"]
    assert list(explorer.benchmark.options) == [EVERY, "gsm8k"]
    assert "xPress K=5 3.00" in explorer.sentence.value
