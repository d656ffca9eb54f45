"""The rules that notebooks show as right are right, those shown as wrong are wrong.

The loop's own exactness is proved in test_distribution.py, with code of its own; here
the enumerable joint and its rules are tested, so that a notebook cannot be fooled.
"""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toys import EnumerableTarget, exact_law, full_logits, generate, tiny_target

from xpress_lab.benchmarks.identity import logits_by_width, margins
from xpress_lab.benchmarks.openings import opening_law, opening_p_value, openings
from xpress_lab.block_method import BlockDrafting
from xpress_lab.enumerable import (
    Joint,
    conditional,
    law_of_slot,
    marginals,
    total_variation,
    tour_joint,
)
from xpress_lab.exactness import (
    RIGHT,
    WRONG,
    Block,
    calibration,
    counts,
    fresh_noise,
    noise_replaces,
    p_value,
    q_one_pass_late,
    speculate,
)
from xpress_lab.jacobi import solve_in_order
from xpress_lab.sampling import Sampling, Streams

ROWS = 60_000
FINE, OFF = 1e-4, 1e-6  # p-values: right rules stay above, wrong ones fall below


def random_joint(shape=(3, 2, 3), seed: int = 4) -> Joint:
    """Every sentence is possible, none is independent of another slot."""
    table = np.random.default_rng(seed).gamma(0.7, size=shape)
    words = tuple(tuple("abc"[:size]) for size in shape)
    return Joint(words, table / table.sum())


JOINTS = {"tour": tour_joint(), "random": random_joint()}
each_joint = pytest.mark.parametrize("joint", JOINTS.values(), ids=JOINTS)


def measured(joint, rule, passes, rows=ROWS, **settings) -> float:
    return p_value(
        counts(joint, speculate(joint, rule, passes, rows, **settings)), joint.table
    )


# the laws --------------------------------------------------------------------


@each_joint
def test_law_of_a_slot_is_its_conditional_given_all_words_before(joint):
    for slot in range(joint.table.ndim):
        prefixes = list(np.ndindex(joint.table.shape[:slot]))
        seen = torch.tensor(prefixes, dtype=torch.long).view(len(prefixes), slot)
        law = law_of_slot(joint, seen, slot).numpy()
        assert law.shape == (len(prefixes), max(joint.table.shape))
        for row, prefix in zip(law, prefixes, strict=True):
            exact = conditional(joint, prefix)
            np.testing.assert_allclose(row[: len(exact)], exact)
            assert not row[len(exact) :].any()


@each_joint
def test_law_of_a_slot_is_a_marginal_given_fewer_words(joint):
    nothing = torch.empty(2, 0, dtype=torch.long)
    for slot, exact in enumerate(marginals(joint)):
        law = law_of_slot(joint, nothing, slot)
        np.testing.assert_allclose(law[1, : len(exact)].numpy(), exact)
    first = torch.tensor([[1], [0]])
    by_hand = joint.table.sum(axis=1)[1].sum(axis=tuple(range(1, joint.table.ndim - 2)))
    law = law_of_slot(joint, first, 2)[0, : len(by_hand)].numpy()
    np.testing.assert_allclose(law, by_hand / by_hand.sum())


def test_the_half_deaf_head_is_causal_and_lies_between_its_ends():
    joint = random_joint()
    block = Block(joint, torch.empty(3, 0, dtype=torch.long), passes=3)
    previous = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 0], [0, 0, 2, 1]])
    rows = block.refine(previous).exp()
    torch.testing.assert_close(rows[0, :2], rows[1, :2])  # slot 3 alone may differ
    assert (rows[0, 2] - rows[1, 2]).abs().max() > 1e-3
    assert (rows[0, 1] - rows[2, 1]).abs().max() > 1e-3
    deaf, keen = (Block(joint, block.written, 3, h) for h in (0.0, 1.0))
    torch.testing.assert_close(deaf.refine(previous), block.base)
    drafts = torch.cat([previous[:, 2:], previous[:, :1]], dim=1)
    torch.testing.assert_close(
        keen.refine(previous).exp(), block.conditionals(drafts), rtol=0, atol=1e-12
    )


def test_every_word_of_the_tour_hangs_on_earlier_ones():
    """Else a late q would be right, and settled, after a single pass."""
    joint = tour_joint()
    assert (joint.table > 0).sum() == 15 and joint.table.sum() == pytest.approx(1)
    assert total_variation(conditional(joint, (0,)), conditional(joint, (1,))) > 0.2
    anna, ben = (conditional(joint, (name, 1, 2)) for name in (0, 1))
    assert ben[0] == 0 and anna[0] == pytest.approx(0.75)


def test_the_drafter_is_partial_and_stays_a_law():
    joint = tour_joint()
    base = Block(joint, torch.empty(1, 0, dtype=torch.long), passes=0).base.exp()[0]
    torch.testing.assert_close(base.sum(-1), torch.ones(4, dtype=torch.float64))
    exact = marginals(joint)[1]
    assert base[1, 1] / base[1, 0] == pytest.approx(0.4 * exact[1] / exact[0])


def test_block_passes_end_at_left_to_right_decoding():
    joint = random_joint()
    block = Block(joint, torch.empty(500, 0, dtype=torch.long), passes=3)
    noise, ends = block.noise(Streams(0).draft), torch.zeros(500, dtype=torch.long)
    walked = solve_in_order(block.refine, block.base, ends, ends, noise=noise)
    assert torch.equal(block.solve(noise).tokens, walked.tokens)


# right and wrong -------------------------------------------------------------


@each_joint
@pytest.mark.parametrize("passes", range(5))
@pytest.mark.parametrize("rule", [*RIGHT.values(), fresh_noise])
def test_right_rules_keep_the_law(joint, rule, passes):
    assert measured(joint, rule, passes) > FINE


@pytest.mark.parametrize("hearing", [0.0, 1.0])
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_frozen_noise_keeps_the_law_however_much_is_heard(hearing, passes):
    rule = RIGHT["drawn, frozen noise"]
    assert measured(tour_joint(), rule, passes, hearing=hearing) > FINE


@pytest.mark.parametrize("passes", [0, 1, 2, 4])
@pytest.mark.parametrize("name", [n for n in WRONG if n != "q from one pass later"])
def test_wrong_rules_are_seen(name, passes):
    assert measured(tour_joint(), WRONG[name], passes) < OFF


def test_a_late_q_is_wrong_until_the_block_has_settled():
    joint = tour_joint()
    assert all(measured(joint, q_one_pass_late, k) < OFF for k in (0, 1))
    assert measured(joint, q_one_pass_late, joint.table.ndim) > FINE


def test_speculation_is_not_plain_decoding_in_disguise():
    """Drafts are kept often and rejected often, with the right rule."""
    joint = tour_joint()
    block = Block(joint, torch.empty(4_000, 0, dtype=torch.long), passes=1)
    _, verdict = RIGHT["drawn, frozen noise"](block, Streams(0))
    share = torch.bincount(verdict.accepted, minlength=5) / 4_000
    assert (share > 0.02).all()


def test_replacements_from_fresh_noise_are_right():
    """Else the control could fail for another reason than the noise it reuses."""

    class Fresh(Block):
        def solve(self, noise):
            return super().solve(self.noise(torch.Generator().manual_seed(77)))

    def rule(block, streams):
        return noise_replaces(
            Fresh(block.joint, block.written, block.passes, block.hearing), streams
        )

    assert measured(tour_joint(), rule, 1) > FINE


@pytest.mark.parametrize("passes", [0, 1, 2, 4])
def test_a_draft_is_a_draw_from_its_own_q(passes):
    """The theorem, slot by slot; a late q is another law unless the block settled."""
    lines = calibration(tour_joint(), passes, 40_000)
    lines = lines[lines["blocks"] > 200]
    sigma = np.sqrt(lines["q"] * (1 - lines["q"]) / lines["blocks"]).clip(1e-12)
    assert (np.abs(lines["share"] - lines["q"]) < 5 * sigma).all()
    late = np.abs(lines["share"] - lines["late_q"]) / sigma
    assert (late.max() > 20) == (passes < 4)
    assert len(lines) > 20


def test_calibration_groups_by_all_words_before():
    lines = calibration(random_joint(), 1, 3_000)
    first = lines[lines["slot"] == 0]
    assert first["blocks"].tolist() == [3_000] * 3
    assert first["q"].sum() == pytest.approx(1) == first["share"].sum()
    assert (lines[lines["slot"] == 1].groupby("word")["blocks"].sum() == 3_000).all()


# the test itself -------------------------------------------------------------


def test_p_value_is_scipy_s():
    from scipy.stats import chisquare

    law = np.array([[0.5, 0.2], [0.2, 0.1]])
    seen = np.array([[520, 190], [205, 85]])
    exact = chisquare(seen.ravel(), law.ravel() * 1000).pvalue
    assert p_value(seen, law) == pytest.approx(exact)
    assert p_value(np.round(law * 1000), law) == 1


def test_p_value_pools_the_rare_and_refuses_the_impossible():
    law = np.array([0.6, 0.39, 0.004, 0.004, 0.002, 0.0])
    seen = np.array([600, 388, 6, 2, 4, 0])
    pooled = p_value(np.array([600, 388, 12]), np.array([0.6, 0.39, 0.01]))
    assert p_value(seen, law) == pytest.approx(pooled)
    assert p_value(seen + np.eye(6, dtype=int)[5], law) == 0
    assert p_value(np.array([10, 0]), np.array([1.0, 0.0])) == 1


def test_p_values_of_a_law_s_own_draws_are_uniform():
    law, random = np.array([0.5, 0.3, 0.2]), np.random.default_rng(0)
    values = [p_value(random.multinomial(2_000, law), law) for _ in range(400)]
    assert abs(np.mean(values) - 0.5) < 0.06 and min(values) < 0.05 < max(values)


def test_counts_add_up():
    joint = random_joint()
    sentences = torch.tensor([[0, 1, 2], [0, 1, 2], [2, 0, 0]])
    seen = counts(joint, sentences)
    assert seen[0, 1, 2] == 2 and seen[2, 0, 0] == 1 and seen.sum() == 3


def test_the_drawn_law_is_close_too():
    joint = tour_joint()
    seen = counts(joint, speculate(joint, RIGHT["drawn, frozen noise"], 1, 20_000))
    assert total_variation(seen / seen.sum(), joint.table) < 0.02


# openings of a target --------------------------------------------------------

TABLE, START = EnumerableTarget(), [1, 2]
LAB = SimpleNamespace(target=TABLE)


def test_opening_law_is_exact():
    sampling = Sampling(0.8)
    exact = exact_law(sampling.probabilities(TABLE.logits), *START, 3)
    law = opening_law(TABLE, START, 3, sampling, least=0.0)
    assert len(law) == 27
    places = [a * 9 + b * 3 + c for a, b, c in law]
    np.testing.assert_allclose(list(law.values()), exact[places].numpy(), rtol=1e-6)
    likely = opening_law(TABLE, START, 3, sampling, least=0.05)
    assert likely == {w: c for w, c in law.items() if c >= 0.05}


def test_openings_end_at_a_stop():
    target = EnumerableTarget()
    target.stop_ids = (0,)
    law = opening_law(target, START, 2, Sampling(1.0), least=0.0)
    assert (0,) in law and not any(w[0] == 0 and len(w) > 1 for w in law)
    assert sum(law.values()) == pytest.approx(1)


class Liar(BlockDrafting):
    """Drafts the likeliest tokens and says that they were drawn (pitfall 1)."""

    def propose(self, request, sampling, *rest):
        proposal = super().propose(request, sampling, *rest)
        return proposal._replace(tokens=proposal.q.table.argmax(-1))


@pytest.mark.parametrize("honest", [True, False])
def test_openings_follow_the_law_unless_the_drafter_lies(honest):
    sampling, method = Sampling(1.0), TABLE.method("xpress", 4, 2)
    if not honest:
        method.begin = lambda capacity: Liar(method, capacity)
    said = openings(LAB, method, START, 3, sampling, texts=1_500)
    assert said.total() == 1_500
    p = opening_p_value(said, opening_law(TABLE, START, 3, sampling))
    assert p > FINE if honest else p < OFF


def test_opening_p_value_counts_the_rest_together():
    law = {(1,): 0.5, (2,): 0.3}
    said = Counter({(1,): 480, (2,): 310, (3,): 150, (4,): 60})
    exact = p_value(np.array([480, 310, 210]), np.array([0.5, 0.3, 0.2]))
    assert opening_p_value(said, law) == pytest.approx(exact)


# widths ----------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3, 4, 16])
def test_logits_are_those_of_a_fresh_pass_at_every_width(target, width):
    prompt, tokens = [3, 14, 15], generate(target, [3, 14, 15], 9)
    rows = logits_by_width(target, prompt, tokens, width)
    whole = full_logits(target, [*prompt, *tokens])[len(prompt) - 1 : -1]
    torch.testing.assert_close(rows, whole)
    assert rows.argmax(-1).tolist() == tokens
    assert logits_by_width(target, prompt, tokens[:1], width).shape[0] == 1


def test_margins_are_top_1_less_top_2():
    rows = torch.tensor([[1.0, 4.0, 2.5], [3.0, 3.0, 0.0]], dtype=torch.bfloat16)
    assert margins(rows).tolist() == [1.5, 0.0]


def test_rounding_by_width_shrinks_with_the_format():
    gaps = []
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        target = tiny_target(dtype=dtype)
        tokens = list(range(1, 30))
        one, block = (logits_by_width(target, [5, 6], tokens, w) for w in (1, 16))
        gaps.append((one.double() - block.double()).abs().max().item())
    assert gaps[0] > 1e3 * gaps[1] and gaps[1] > 1e3 * gaps[2]
