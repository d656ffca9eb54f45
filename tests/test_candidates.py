"""Candidate rows with a certificate: the answer of full passes, for fewer of them.

* For any head, vocabulary, C, temperature and ties the result to the fixed point is
  the one that full passes give; with a bounded K what the docstring says is final is.
* The certificate fails where it must, and what follows repairs the block.
* The parts: top candidates, the two-stage argmax, the read-out.

That the law survives at T > 0 with bounded K is shown beside the other laws, in
test_distribution.
"""

import re

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from xpress_lab import candidates as module
from xpress_lab.argmax import LANES, first_argmax
from xpress_lab.candidates import (
    default_candidates,
    solve_by_candidates,
)
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.jacobi import solve, solve_in_order
from xpress_lab.kernels.choices import GROUPS, top_candidates
from xpress_lab.kernels.plain import read_out
from xpress_lab.lab import load_lab
from xpress_lab.sampling import Sampling, gumbel_noise
from xpress_lab.screening import Screen

HIDDEN = 5
exact = settings(deadline=None, derandomize=True, max_examples=80)


class WholeNumbers:
    """A causal head without rounding, in which ties are everywhere.

    Its latent counts the tokens so far in r small counters; w2 holds -1, 0 and 1.
    """

    def __init__(self, vocab: int, generator: torch.Generator, rank: int = 2):
        self.table = torch.randint(4, (vocab, rank), generator=generator).double()
        self.w2 = torch.randint(-1, 2, (vocab, rank), generator=generator).double()

    def latent(self, prepared, previous, first=0):
        return self.table[previous].cumsum(1)[:, 1 + first :] % 4

    def bias(self, prepared, previous, first=0):
        return self.latent(prepared, previous, first) @ self.w2.T


class Problem:
    """A block to solve with a real folded head, or with whole numbers and ties."""

    def __init__(self, seed, block, vocab, ties, temperature, filters, rows):
        generator = torch.Generator().manual_seed(seed)
        self.slots, self.vocab = block - 1, vocab

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.base = 2 * normal(rows, self.slots, vocab)
        if ties:
            self.head, self.prepared = WholeNumbers(vocab, generator), None
            self.base = self.base.round()
        else:
            head = toys.strong_head("xpress", block, vocab, HIDDEN, 4, seed=seed)
            self.head = head.fold()
            self.prepared = self.head.prepare(normal(rows, block, HIDDEN))
        before, anchor = torch.randint(vocab, (2, rows), generator=generator)
        self.block = self.base, anchor, before
        self.sampling = {}
        if temperature:
            noise = gumbel_noise(self.base.shape, generator, dtype=torch.float64)
            scale = Sampling(temperature, *filters).scale
            self.sampling = {"scale": scale, "noise": noise.round() if ties else noise}

    def refine(self, previous, first=0):
        return self.base[:, first:] + self.head.bias(self.prepared, previous, first)

    def full(self, **how):
        return solve(self.refine, *self.block, **self.sampling, lock=True, **how)

    def fast(self, count, **how):
        return solve_by_candidates(
            self.head, self.prepared, *self.block, count=count, **self.sampling, **how
        )


problems = st.builds(
    Problem,
    seed=st.integers(0, 10_000),
    block=st.integers(2, 10),
    vocab=st.sampled_from([2, 7, 16, 48, 64, 130, 128, 256]),
    ties=st.booleans(),
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.5]),
    filters=st.sampled_from([(), (3,), (0, 0.8)]),
    rows=st.integers(1, 3),
)
counts = st.sampled_from([1, 2, 3, 8, 16, 300])


@given(problems, counts, st.booleans())
@exact
def test_the_fixed_point_is_that_of_full_passes(problem, count, screened):
    """Tokens at any C, and at T > 0 the scores that q is made of."""
    screen = Screen(problem.head.w2) if screened else None
    answer, found = problem.full(), problem.fast(count, screen=screen)
    assert torch.equal(found.tokens, answer.tokens)
    assert found.converged and 1 <= found.passes <= problem.slots
    if problem.sampling:
        assert_close(found.scores, answer.scores)


@given(problems, counts)
@exact
def test_bounded_full_passes_settle_what_the_docstring_says(problem, count):
    answer = problem.full().tokens
    for passes in range(1, problem.slots + 1):
        found = problem.fast(count, passes=passes, keep_trace=True)
        assert found.passes <= passes
        before, last = found.trace[-2:]
        moved = (before != last).any(0).long()
        final = max(found.passes, int((moved.cumsum(0) == 0).sum()) + 1)
        assert torch.equal(found.tokens[:, :final], answer[:, :final])
        if found.converged:
            assert torch.equal(found.tokens, answer)


@given(problems, counts)
@exact
def test_the_last_passes_are_passes_of_the_full_map(problem, count):
    """From the block that candidates end at, each step is F; its scores make q."""
    found = problem.fast(count, keep_trace=True)
    base, anchor, before = problem.block
    scale = problem.sampling.get("scale", lambda logits: logits)
    for old, new in zip(found.trace[-found.passes - 1 :], found.trace[-found.passes :]):  # noqa: B905
        previous = torch.cat([torch.stack([before, anchor], 1), old[:, :-1]], 1)
        scores = scale(problem.refine(previous))
        noisy = scores + problem.sampling.get("noise", 0.0)
        assert torch.equal(noisy.argmax(-1), new)


@given(problems)
@exact
def test_all_rows_as_candidates_are_certified_at_once(problem):
    assert problem.fast(problem.vocab).passes == 1


def test_few_candidates_fail_often_and_many_seldom():
    """Both ends occur among random problems, so that the properties say something."""
    cases = [Problem(seed, 9, 128, False, 0.0, (), 1) for seed in range(30)]
    failures = [sum(p.fast(c).passes > 1 for p in cases) for c in (1, 8, 64, 128)]
    assert failures[0] > 20 and failures[-1] == 0
    assert failures == sorted(failures, reverse=True)


def test_a_winner_outside_the_candidates_is_found():
    """The head lifts a token from the very bottom; the answer has it anyway."""
    head = WholeNumbers(20, torch.Generator().manual_seed(0))
    head.w2 = torch.zeros(20, 2, dtype=torch.float64)
    head.table, head.w2[13] = torch.ones(20, 2, dtype=torch.float64), 50.0
    base = -torch.arange(20.0, dtype=torch.float64).expand(1, 3, -1)
    ids = torch.tensor([4])
    found = solve_by_candidates(head, None, base, ids, ids, count=2)
    assert found.tokens[0, :2].tolist() == [13, 13]
    whole = solve_in_order(lambda p: base + head.bias(None, p), base, ids, ids)
    assert torch.equal(found.tokens, whole.tokens)
    assert found.passes > 1


@pytest.mark.parametrize("count", [1, 5, 30])
def test_passes_among_candidates_read_candidate_rows_only(count, monkeypatch):
    """Full rows are read once per full pass, and only behind what is settled."""
    problem, slots = Problem(3, 9, 64, False, 0.0, (), 1), []

    def counted(w2, z, base):
        slots.append(base.shape[1])
        return read_out(w2, z, base)

    monkeypatch.setattr(module, "read_out", counted)
    found = problem.fast(count)
    assert len(slots) == found.passes
    assert slots[0] == problem.slots and slots == sorted(slots, reverse=True)
    assert len(set(slots)) == len(slots)


def test_a_screen_spares_full_passes_and_repairs_what_it_cannot_clear(monkeypatch):
    """Of many blocks most are cleared without an exact pass; all end alike."""
    reads = []

    def counted(w2, z, base):
        reads.append(base.shape[1])
        return read_out(w2, z, base)

    monkeypatch.setattr(module, "read_out", counted)
    for seed in range(20):
        problem = Problem(seed, 7, 128, False, 0.0, (), 1)
        problem.base += 20 * torch.nn.functional.one_hot(
            problem.base.topk(3).indices, 128
        ).sum(-2)  # few tokens are in question
        screen = Screen(problem.head.w2)
        found = problem.fast(16, screen=screen, keep_trace=True)
        assert torch.equal(found.tokens, problem.full().tokens)
        assert torch.equal(found.trace[-1], found.tokens)
    assert 1 <= len(reads) < 10
    reads.clear()
    problem.fast(16)
    assert reads


# --- the parts ----------------------------------------------------------------

score_tables = st.builds(
    lambda seed, vocab, step: (
        torch.randn(2, 3, vocab, generator=torch.Generator().manual_seed(seed)) / step
    ).round(),
    seed=st.integers(0, 10_000),
    vocab=st.sampled_from([1, 5, GROUPS, 3 * GROUPS, LANES, 3 * LANES, 3 * LANES + 1]),
    step=st.sampled_from([1e-3, 0.5]),
)


@given(score_tables, st.integers(1, 40))
@exact
def test_top_candidates_are_the_top(scores, count):
    ids = top_candidates(scores, count)
    count = min(count, scores.shape[-1])
    assert ids.shape == (2, 3, count)
    assert (ids[..., 1:] > ids[..., :-1]).all()  # rising, so distinct too
    best = scores.topk(count, dim=-1).values.sort(dim=-1).values
    assert torch.equal(scores.gather(-1, ids).sort(dim=-1).values, best)


@given(score_tables, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
@exact
def test_two_stage_argmax_is_argmax_and_the_first_of_equals_wins(scores, dtype):
    scores = scores.to(dtype)
    first = (scores == scores.amax(-1, keepdim=True)).long().argmax(-1)
    assert torch.equal(first_argmax(scores), first)
    assert first_argmax(scores[:0]).shape == (0, 3)
    assert first_argmax(scores[0, 0]).item() == first[0, 0]


def test_read_out_leaves_its_inputs_alone():
    base, z = torch.randn(2, 3, LANES), torch.randn(2, 3, 4)
    w2, kept = torch.randn(LANES, 4), base.clone()
    assert torch.equal(read_out(w2, z, base).tokens, (base + z @ w2.T).argmax(-1))
    assert torch.equal(base, kept)


# --- as a choice of the method ------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_the_same_with_and_without(target, temperature):
    """Same seed, same noise, same drafts, same text, at T = 0 and T > 0."""
    texts = []
    for candidates in (0, 1, 8):
        method = toys.make_method("xpress", target, 7, None, candidates=candidates)
        text = decode(
            target,
            method,
            toys.PROMPT,
            sampling=Sampling(temperature),
            max_new_tokens=40,
            seed=4,
        )
        texts.append((text.tokens, [r.block for r in text.rounds]))
    assert texts[0] == texts[1] == texts[2]


def test_candidates_are_the_default_only_where_nothing_but_time_changes():
    assert default_candidates(50_000, None) > 0
    assert default_candidates(50_000, 6) == 0
    assert default_candidates(4_096, None) == 0


def test_a_lab_offers_candidates_for_xpress_alone():
    lab = load_lab("pocket", device="cpu")
    asked = lab.method("xpress", None, candidates=16)
    assert asked.candidates == 16 and "16 candidate rows" in asked.describe()
    assert lab.method("xpress", None).candidates == 0  # a small vocabulary
    for name in ("dflash", "markov", "ar", "xpress+ddtree"):
        with pytest.raises(LabError, match=re.escape(f"not for {name}")):
            lab.method(name, None, candidates=16)
    with pytest.raises(LabError, match="passes=0"):
        lab.method("xpress", 0, candidates=16)
    with pytest.raises(LabError, match="candidates must be"):
        lab.method("xpress", None, candidates=-1)


def test_a_head_that_makes_no_passes_refuses_candidates(target):
    with pytest.raises(LabError, match="markov makes none"):
        toys.make_method("markov", target, 5, candidates=4)
