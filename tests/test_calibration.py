"""What the confidence head says, beside what the target does.

* Every draft is observed once, nothing is cut, and the text stays the target's.
* At T = 1 a head that knows the acceptance probability is calibrated, one that is
  made more sure is not, and both are ranked alike.
* The figure draws what its table says.
"""

import copy

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from xpress_lab import load_lab
from xpress_lab.benchmarks.calibration import (
    auroc,
    calibration,
    calibration_error,
    cut_costs,
    observe,
    reliability,
    scores,
    survival_scores,
    wilson,
)
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.checkpoints import new_confidence
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.viz.calibration import cut_curves, reliability_diagram


@pytest.fixture(scope="module")
def lab():
    """The pocket lab, its xpress arm with a confidence head of no training."""
    lab = load_lab("pocket", device="cpu")
    arm = copy.copy(lab.arm("xpress"))
    torch.manual_seed(0)
    arm.confidence = new_confidence(arm).requires_grad_(False)
    lab._arms["xpress"] = arm
    return lab


@pytest.fixture(scope="module")
def prompts():
    folder = prompt_folder("pocket")
    return {name: read_prompts(folder, name, 2) for name in ("chat", "math")}


@pytest.fixture(scope="module")
def drafts(lab, prompts):
    return observe(lab, "xpress", prompts, passes=3, max_new_tokens=40)


def test_every_draft_is_observed_and_none_is_cut(lab, prompts, drafts):
    method = lab.block_method("xpress", 3)
    for name, texts in prompts.items():
        for number, prompt in enumerate(texts):
            ids = lab.target.encode(prompt)
            text = decode(lab.target, method, ids, max_new_tokens=40)
            where = (drafts["temperature"] == 0) & (drafts["benchmark"] == name)
            own = drafts[where & (drafts["prompt_id"] == number)]
            assert len(own) == sum(len(r.block) - 1 for r in text.rounds)
            kept = own.groupby("round")["kept"].sum().tolist()
            assert kept == [r.accepted for r in text.rounds]
            reached = own.groupby("round")["reached"].sum().tolist()
            assert reached == [
                min(r.accepted + 1, len(r.block) - 1) for r in text.rounds
            ]


def test_confidences_are_those_by_which_proposals_are_cut(lab, prompts, drafts):
    """The first draft under a threshold is where a cut at it ends the proposal."""
    first = drafts[(drafts["temperature"] == 0) & (drafts["round"] == 0)]
    for threshold in (0.3, 0.5, 0.7):
        method = lab.block_method("xpress", 3, confidence=threshold)
        for name, texts in prompts.items():
            for number, prompt in enumerate(texts):
                ids = lab.target.encode(prompt)
                text = decode(lab.target, method, ids, max_new_tokens=2)
                own = first[(first["benchmark"] == name)]
                own = own[own["prompt_id"] == number].sort_values("slot")
                sure = (own["confidence"] >= threshold).to_numpy()
                assert len(text.rounds[0].block) - 1 == np.cumprod(sure).sum()


def test_survival_is_the_product_of_confidences(drafts):
    for _, own in drafts.groupby(["temperature", "benchmark", "prompt_id", "round"]):
        np.testing.assert_allclose(own["survival"], own["confidence"].cumprod())
        assert list(own["slot"]) == list(range(1, 16))


def test_seeds_are_pooled_and_arms_named(lab, prompts):
    table = calibration(lab, ["xpress"], prompts, (1.0,), (0, 1), 24)
    drafts = pd.concat(
        [observe(lab, "xpress", prompts, (1.0,), 6, 24, seed) for seed in (0, 1)]
    )
    assert set(table.pop("arm")) == {"xpress"}
    pd.testing.assert_frame_equal(table, reliability(drafts))


def test_arms_without_a_head_are_refused(lab):
    with pytest.raises(LabError, match="--only markov-rnn/confidence"):
        observe(lab, "markov-rnn", {"chat": ["Who?"]})


# --- the tables ---------------------------------------------------------------


def made_up(count: int = 40_000, distortion: float = 1.0) -> pd.DataFrame:
    """Drafts kept with probability p; the head says p, its odds to a power."""
    random = np.random.default_rng(0)
    p = random.beta(2, 1.2, count)
    said = p**distortion / (p**distortion + (1 - p) ** distortion)
    return pd.DataFrame(
        {
            "temperature": 1.0,
            "slot": 1 + np.arange(count) % 4,
            "confidence": said,
            "survival": said,
            "reached": True,
            "kept": random.random(count) < p,
        }
    )


def test_a_head_that_knows_is_calibrated_and_one_that_brags_is_not():
    (honest,) = scores(made_up()).to_dict("records")
    (sure,) = scores(made_up(distortion=3.0)).to_dict("records")
    assert honest["ece"] < 0.012 and sure["ece"] > 0.1
    assert sure["brier"] > honest["brier"] + 0.01
    assert sure["auroc"] == pytest.approx(honest["auroc"])  # order is all the same
    assert honest["predicted"] == pytest.approx(honest["measured"], abs=0.01)


def test_bins_hold_every_reached_draft_once():
    drafts = made_up(5_000)
    drafts.loc[::5, "reached"] = False
    drafts.loc[7, ["confidence", "reached"]] = [1.0, True]  # the last bin's upper end
    table = reliability(drafts)
    assert table["drafts"].sum() == drafts["reached"].sum()
    assert (table["predicted"].between(table["low"], table["high"])).all()
    kept = (table["measured"] * table["drafts"]).sum()
    assert kept == pytest.approx(drafts.loc[drafts["reached"], "kept"].sum())
    inside = table["measured"].between(table["measured_low"], table["measured_high"])
    assert inside.all() and len(table) == 10


def test_prefixes_are_scored_slot_by_slot():
    drafts = made_up(8_000)
    drafts["reached"] = drafts["slot"] < 3  # whole prefixes count unreached drafts
    table = survival_scores(drafts)
    assert list(table["slot"]) == [1, 2, 3, 4]
    assert (table["drafts"] == 2_000).all()


def test_scores_by_hand():
    p, kept = np.array([0.15, 0.85, 0.85, 0.95]), np.array([0.0, 1.0, 0.0, 1.0])
    assert auroc(p, kept) == pytest.approx((2 + 1.5) / 4)
    gaps = [0.15, abs(1.7 - 1.0), 0.05]
    assert calibration_error(p, kept) == pytest.approx(sum(gaps) / 4)
    assert np.isnan(auroc(p, np.ones(4)))
    low, high = wilson(np.array([0.0, 1.0, 0.5]), np.array([10, 10, 10_000]))
    assert low[0] == pytest.approx(0, abs=1e-9) and high[1] == pytest.approx(1)
    assert 0.2 < high[0] < 0.35 and high[2] - low[2] == pytest.approx(0.0196, abs=1e-4)


# --- the figure ---------------------------------------------------------------


def test_the_diagram_draws_points_counts_and_the_diagonal():
    drafts = pd.concat([made_up(4_000), made_up(4_000).assign(temperature=0.0)])
    table = reliability(drafts)
    fig = reliability_diagram(table, "markov")
    assert [ax.get_title() for ax in fig.axes[:2]] == [
        "T = 0: 4,000 drafts",
        "T = 1: 4,000 drafts",
    ]
    at = table[table["temperature"] == 0.0]
    upper, lower = fig.axes[0], fig.axes[2]
    points = upper.lines[1].get_xydata()
    np.testing.assert_allclose(points, at[["predicted", "measured"]])
    np.testing.assert_allclose(upper.lines[0].get_xydata(), [[0, 0], [1, 1]])
    heights = [bar.get_height() for bar in lower.patches]
    assert heights == at["drafts"].tolist()
    plt.close(fig)


def test_cut_costs_are_shares_of_the_uncut_method_and_are_drawn():
    rows = pd.DataFrame(
        [
            {"method": "xpress", "temperature": 0.0, "confidence": cut, "seed": 0,
             "benchmark": "chat", "prompt_id": text, "new_tokens": 1 + 12 * rounds,
             "verify_steps": 6 * rounds * steps, "proposed": 6 * rounds * sent * steps,
             "decode_seconds": rounds * seconds}
            for cut, steps, sent, seconds in ((0.0, 1, 15, 2.0), (0.4, 2, 5, 1.6))
            for text, rounds in enumerate((1, 2, 3, 5))
        ]
    )  # fmt: skip
    other = rows.assign(method="markov", verify_steps=1)
    table = cut_costs(pd.concat([rows, other]))
    assert table["confidence"].tolist() == [0.0, 0.4]
    cut = table.iloc[1]
    for name, share in (("drafts", 1 / 3), ("tau", 1 / 2), ("speed", 2 / 1.6)):
        assert table.loc[0, name] == table.loc[0, f"{name}_low"] == 1
        assert cut[name] == pytest.approx(share) == pytest.approx(cut[f"{name}_high"])
    (ax,) = cut_curves(table).axes
    drawn = [list(line.get_ydata()) for line in ax.lines]
    assert [1.0, pytest.approx(1 / 3)] in drawn and [1.0, pytest.approx(0.5)] in drawn
    assert [text.get_text() for text in ax.texts] == ["drafts sent", "tau", "speed"]
    plt.close(ax.figure)
