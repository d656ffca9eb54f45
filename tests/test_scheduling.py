"""Drafts are sent while they are worth their time, and nothing is lost by it.

* Long when idle, short when full; against chances that do not change, the lengths come
  to those that yield most tokens a second.
* Greedy texts and the law at T > 0 stay the target's, alone and side by side.
* What a round costs is found again from rounds that were timed.
"""

import json
import math

import numpy as np
import pytest
import torch
import toys
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from xpress_lab import load_lab
from xpress_lab.batching import decode_batch
from xpress_lab.benchmarks import row_costs
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.runner import RunArm
from xpress_lab.block_method import BlockMethod
from xpress_lab.cli import app
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.sampling import Sampling
from xpress_lab.scheduling import RoundCosts, Schedule

SLOTS = 7


def logits_of(confidences, rows: int = 1) -> torch.Tensor:
    return torch.tensor([confidences] * rows).logit()


# --- the rule -----------------------------------------------------------------


def test_the_first_round_is_priced_by_bare_rounds():
    """One text: a token a second; a draft costs 0.3 s, so it must survive 0.3 times."""
    costs = RoundCosts(base=0.5, text=0.5, draft=0.3)
    assert Schedule(costs).counts(logits_of([0.9, 0.6, 0.5, 0.9]), [10]) == [2]
    free = RoundCosts(0.5, 0.5, 0.0)
    assert Schedule(free).counts(logits_of([0.9, 0.6, 0.01]), [10]) == [3]


def test_later_rounds_are_priced_by_what_the_earlier_ones_brought():
    costs = RoundCosts(0.5, 0.5, 0.1)
    schedule, confidences = Schedule(costs), [0.9] * SLOTS
    assert schedule.counts(logits_of(confidences), [10]) == [SLOTS]
    schedule.counts(logits_of(confidences), [18])  # it emitted eight tokens
    assert schedule.rate(1) == pytest.approx(8 / costs.of(1, SLOTS))
    schedule.counts(logits_of([0.1] * SLOTS), [20])
    assert schedule.tokens == pytest.approx(0.9 * 8 + 2)
    assert schedule.rounds == pytest.approx(1.9)
    assert schedule.length == pytest.approx(0.9 * SLOTS)
    each = (0.9 * 8 + 2) / 1.9
    wanted = 3 * each / costs.of(3, 0.9 * SLOTS)
    assert schedule.rate(3) == pytest.approx(wanted)


def test_fuller_batches_get_shorter_proposals():
    costs = RoundCosts(base=1.0, text=0.0, draft=0.02)
    chances, sent = [0.8] * SLOTS, []
    for rows in (1, 4, 16, 64):
        schedule = Schedule(costs)
        sent.append(schedule.counts(logits_of(chances, rows), [5] * rows)[0])
    assert sent == sorted(sent, reverse=True) and sent[0] == SLOTS and sent[-1] == 0


def test_one_length_for_all_rows_and_rows_may_leave():
    schedule = Schedule(RoundCosts(1.0, 0.0, 0.3))
    both = torch.cat([logits_of([0.99, 0.99]), logits_of([0.4, 0.1])])
    assert schedule.counts(both, [3, 9]) == [1, 1]  # means 0.7 and 0.5, of 2 a second
    schedule.keep_rows([1])
    assert schedule.starts == [9]
    schedule.counts(both[1:], [11])
    assert (schedule.tokens, schedule.rounds) == (2, 1)


@given(
    st.lists(st.floats(0.02, 0.98), min_size=1, max_size=SLOTS),
    st.floats(0.001, 1.0),
    st.floats(0.001, 0.5),
)
def test_lengths_come_to_the_best_of_all(chances, base, draft):
    """The same chances round after round: no fixed length is better by more than a
    hundredth. Emitted tokens are the expected ones, so nothing is left to luck."""
    costs = RoundCosts(base, 0.01, draft)
    survival = torch.tensor(chances, dtype=torch.float64).cumprod(0)
    yields = [1 + survival[:n].sum().item() for n in range(len(chances) + 1)]
    best = max(y / costs.of(1, n) for n, y in enumerate(yields))
    schedule, place, spent = Schedule(costs), 0.0, 0.0
    logits = torch.tensor([chances], dtype=torch.float64).logit()
    for turn in range(240):
        (length,) = schedule.counts(logits, [place])
        place += yields[length]
        if turn >= 120:
            spent += costs.of(1, length)
        else:
            before = place
    assert (place - before) / spent > 0.99 * best


# --- nothing is lost ----------------------------------------------------------

DEAR = RoundCosts(base=1.0, text=0.1, draft=0.35)
VARYING = RoundCosts(base=1.0, text=0.1, draft=0.6)  # on the enumerable target


def sent(texts) -> set[int]:
    return {len(r.block) - 1 for text in texts for r in text.rounds}


@pytest.mark.parametrize("kind", ["dflash", "markov", "markov-rnn", "xpress"])
def test_greedy_text_by_schedule(target, greedy_text, kind):
    drafter, head = toys.tiny_drafter(target, 6), None
    if kind != "dflash":
        head = toys.strong_head(kind, 6, dtype=target.dtype).fold()
    rank = head.rank if kind.startswith("markov") else 0
    sure = toys.sharp_confidence(toys.HIDDEN, rank)
    method = BlockMethod(kind, target, drafter, head, 3, None, sure, costs=DEAR)
    assert method.describe().endswith("sent by schedule")
    out = decode(target, method, toys.PROMPT, max_new_tokens=60)
    assert out.tokens == greedy_text[:60]
    assert len(sent([out])) > 1
    prompts = [toys.PROMPT, toys.PROMPT[:2], toys.PROMPT[1:]]
    alone = [decode(target, method, p, max_new_tokens=30).tokens for p in prompts]
    batch = decode_batch(target, method, prompts, max_new_tokens=30)
    assert [text.tokens for text in batch] == alone


def p_value(texts, toy) -> float:
    assert len(sent(texts)) > 1  # not all proposals were alike
    law = toys.exact_law(Sampling(1.0).probabilities(toy.logits), 1, 2, 3)
    return toys.chi_square(torch.tensor([text.tokens for text in texts]), law, 3)


def sampled(toy, method, count: int) -> list:
    """One text after another: in a batch all would share their lengths."""
    how = {"sampling": Sampling(1.0), "max_new_tokens": 3}
    return [decode(toy, method, [1, 2], seed=seed, **how) for seed in range(count)]


@pytest.mark.parametrize("kind", ["dflash", "markov", "xpress"])
def test_sampled_texts_keep_the_law(kind):
    toy = toys.EnumerableTarget(vocab=3)
    method = toy.method(kind, 4, 2, costs=VARYING)
    assert p_value(sampled(toy, method, 2_000), toy) > 1e-4


def test_sampled_texts_keep_the_law_side_by_side():
    toy = toys.EnumerableTarget(vocab=3)
    method = toy.method("xpress", 4, 2, costs=VARYING._replace(draft=0.15))
    how, texts = {"sampling": Sampling(1.0), "max_new_tokens": 3}, []
    for first in range(0, 2_000, 5):
        seeds = range(first, first + 5)
        texts += decode_batch(toy, method, [[1, 2]] * 5, seeds=seeds, **how)
    assert p_value(texts, toy) > 1e-4


def test_a_schedule_that_looks_at_the_draft_itself_is_seen(monkeypatch):
    """Told the confidences of the slots *after* the drafts, which know what the drafts
    are, it loses the law."""
    counts = Schedule.counts

    def peeking(self, logits, starts):
        return counts(self, logits.roll(-1, dims=1), starts)

    monkeypatch.setattr(Schedule, "counts", peeking)
    toy = toys.EnumerableTarget(vocab=3)
    method = toy.method("markov", 4, 2, costs=VARYING)
    assert p_value(sampled(toy, method, 2_000), toy) < 1e-6


# --- what a round costs -------------------------------------------------------


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


def test_costs_are_found_again(lab, monkeypatch):
    """Rounds that are told to take 3 + 2 N + 0.5 N n seconds."""
    watch = row_costs._watch

    def timed(*case):
        rounds, of_texts, drafts, seconds = watch(*case)
        assert seconds > 0
        return rounds, of_texts, drafts, 3.0 * rounds + 2.0 * of_texts + 0.5 * drafts

    monkeypatch.setattr(row_costs, "_watch", timed)
    prompts = read_prompts(prompt_folder("pocket"), "chat", 2)
    costs = row_costs.measure_round_costs(lab, RunArm("xpress", 2), prompts, 3, 1)
    assert costs == pytest.approx((3.0, 2.0, 0.5))


def test_a_cost_below_zero_is_none_and_the_others_are_fitted_without_it():
    parts = np.array([[4, 4, 0], [4, 4, 28], [4, 16, 0], [4, 16, 112]], dtype=float)
    truth = np.array([2.0, 0.0, 0.25])
    assert row_costs.fit(parts, parts @ truth) == pytest.approx(truth, abs=1e-9)
    noisy = parts @ truth - np.array([0, 0, 1.5, 1.5])  # more texts, and quicker
    found = row_costs.fit(parts, noisy)
    assert (found >= 0).all() and found[1] == 0
    again = np.linalg.lstsq(parts[:, [0, 2]] / noisy[:, None], np.ones(4), rcond=None)[
        0
    ]
    assert found[[0, 2]] == pytest.approx(again)


def test_arms_without_a_head_have_no_schedule(lab):
    with pytest.raises(LabError, match="confidence threshold cuts the blocks"):
        lab.method("eagle", costs=DEAR)
    arm = lab.arm("xpress")
    with pytest.raises(LabError, match="needs a confidence head"):
        BlockMethod("xpress", lab.target, arm.drafter, arm.head.fold(), 6, costs=DEAR)


@pytest.mark.parametrize("size", ["1", "3"])
def test_bench_by_schedule(size):
    words = ["bench", "--methods", "ar,xpress", "--confidence", "0,auto", "--json"]
    words += ["--limit", "1", "--max-new-tokens", "16", "--batch-size", size]
    result = CliRunner().invoke(app, [*words, "--turns", "1"])
    assert result.exit_code == 0, result.output
    lines = json.loads(result.stdout)
    assert {"ar", "xpress K=6", "xpress K=6 scheduled"} == {x["arm"] for x in lines}
    assert all(math.isfinite(line["tau"]) for line in lines)
    assert "more a draft" in result.stderr
