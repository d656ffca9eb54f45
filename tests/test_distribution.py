"""Speculation at T > 0 leaves the target's distribution alone.

A broken acceptance rule never shows in the text, so the laws are tested: a target
that is a table of probabilities, whose first three tokens have 64 exact chances, and a
chi-square over 1e5 texts.  Proved here:

* every acceptance rule gives the exact law with every head, at every number of
  passes, every temperature and under filters (pitfalls 1, 2, 5);
* candidate rows keep it, at bounded K too;
* the same chi-square rejects five well-known mistakes (pitfalls 1 to 3), and
  candidates that slots share;
* acceptance probabilities equal their closed forms (pitfalls 4, 5);
* seeds and first-token entropy behave (pitfall 6).

The texts are decoded side by side: the pure functions of the loop on N rows.  The
loop itself is run on the same target at the end.
"""

import math

import pytest
import torch
from toys import (
    PROMPT,
    EnumerableTarget,
    chi_square,
    exact_law,
    make_method,
    strong_head,
)

from xpress_lab import candidates
from xpress_lab.checkpoints import MARKOV_TYPES
from xpress_lab.decoding import choose, decode
from xpress_lab.jacobi import solve, solve_sequentially
from xpress_lab.methods import PlainDecoding
from xpress_lab.sampling import Sampling, Streams, draw, gumbel_noise
from xpress_lab.verification import Verdict, accept_by_rejection, accept_exact_match

V, B, TOKENS = 4, 4, 3
ROWS = 100_000
START = (1, 2)  # the token before the anchor, and the anchor
TOP_CANDIDATES = candidates.top_candidates
RIGHT, WRONG = 1e-4, 1e-6  # p-values: above the first passes, below the second fails


class Bench:
    """An enumerable target, a random drafter and random strong heads, for N rows.

    The "drafter" is a table too: for every two last tokens the hidden states ``[B, 6]``
    of a block and its base logits, which are the target's own marginals, blurred.
    """

    def __init__(self, temperature: float = 1.0, seed: int = 1, **filters):
        generator = torch.Generator().manual_seed(seed)
        self.sampling = Sampling(temperature, **filters)

        def table(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.target_logits = table(V, V, V)
        self.hidden = table(V, V, B, 6)
        self.p = self.sampling.probabilities(self.target_logits)
        plain = self.target_logits.softmax(-1)
        ahead, marginals = plain, [plain]  # ahead: [first, second, token k places on]
        for _ in range(B - 2):
            ahead = torch.einsum("abc,bcd->abd", plain, ahead)
            marginals.append(ahead)
        self.base = torch.stack(marginals, 2).log() + 0.4 * table(V, V, B - 1, V)
        self.law = exact_law(self.p, *START, TOKENS)
        self.heads = {
            kind: strong_head(kind, B, V, hidden=6, rank=3, size=0.7)
            for kind in (*MARKOV_TYPES, "xpress")
        }

    def draft(self, kind: str, passes: int, before, anchor, scale, noise):
        """The solver on N rows, exactly as the loop calls it."""
        hidden, base = self.hidden[before, anchor], self.base[before, anchor]
        head = self.heads[kind if kind != "dflash" else "xpress"]
        prepared = head.prepare(hidden)
        if head.sequential:

            def step(k, drafted, state):
                bias, state = head.step(prepared[:, k + 1], drafted[:, -1], state)
                return base[:, k] + bias, state

            return solve_sequentially(step, base, anchor, scale=scale, noise=noise)
        return solve(
            lambda previous, first: (base + head.bias(prepared, previous))[:, first:],
            base,
            anchor,
            before,
            passes=passes if kind == "xpress" else 0,
            scale=scale,
            noise=noise,
            lock=True,
        )

    def target_rows(self, before, anchor, drafts) -> torch.Tensor:
        """``[N, S + 1, V]`` target probabilities at the drafts' places and after."""
        path = torch.cat([before[:, None], anchor[:, None], drafts], dim=1)
        return self.p[path[:, :-1], path[:, 1:]]

    def texts(self, rule, kind="xpress", passes=2, rows=ROWS, seed=5) -> torch.Tensor:
        """The first tokens of ``rows`` texts, round after round until all have them."""
        streams = Streams(seed)
        before = torch.full((rows,), START[0])
        anchor = torch.full((rows,), START[1])
        kept = torch.zeros(rows, dtype=torch.long)
        text = torch.zeros(rows, TOKENS + B, dtype=torch.long)
        places = torch.arange(B)
        while int(kept.min()) < TOKENS:
            drafts, verdict = rule(self, kind, passes, before, anchor, streams)
            block = torch.cat([drafts, verdict.next_token[:, None]], dim=1)
            block.scatter_(1, verdict.accepted[:, None], verdict.next_token[:, None])
            where = (kept[:, None] + places).clamp_max(TOKENS + B - 1)
            text.scatter_(1, where, block)  # what lies past the verdict is overwritten
            kept = (kept + verdict.accepted + 1).clamp_max(TOKENS)
            full = torch.cat([before[:, None], anchor[:, None], drafts], dim=1)
            before = full.gather(1, verdict.accepted[:, None] + 1).squeeze(1)
            anchor = verdict.next_token
        return text[:, :TOKENS]

    def p_value(self, rule, **settings) -> float:
        return chi_square(self.texts(rule, **settings), self.law, V)


# --- the rules that are right -------------------------------------------------


def sampled_drafts(bench, kind, passes, before, anchor, streams):
    """Drafts drawn with frozen noise; q is the softmax of the scores that drew them."""
    noise = gumbel_noise((len(anchor), B - 1, V), streams.draft, dtype=torch.float64)
    scale = bench.sampling.scale
    solution = bench.draft(kind, passes, before, anchor, scale, noise)
    p = bench.target_rows(before, anchor, solution.tokens)
    q = solution.scores.softmax(-1)
    return solution.tokens, accept_by_rejection(p, q, solution.tokens, streams)


def argmax_drafts(bench, kind, passes, before, anchor, streams):
    """Drafts chosen outright; q is one-hot."""
    drafts = bench.draft(kind, passes, before, anchor, None, None).tokens
    p = bench.target_rows(before, anchor, drafts)
    return drafts, accept_by_rejection(p, None, drafts, streams)


def exact_match(bench, kind, passes, before, anchor, streams):
    """Keep argmax drafts while they equal the target's own draws."""
    drafts = bench.draft(kind, passes, before, anchor, None, None).tokens
    p = bench.target_rows(before, anchor, drafts)
    return drafts, accept_exact_match(p, drafts, streams)


def candidate_drafts(count: int, select=TOP_CANDIDATES):
    """Drafts of passes among C candidates and ``passes`` full ones after them.

    The head is strong: winners are often no candidates, and bounded passes often end
    before the fixed point.
    """
    head = strong_head("xpress", B, V, hidden=6, rank=3, size=4.0, seed=5).fold()

    def rule(bench, kind, passes, before, anchor, streams):
        noise = gumbel_noise(
            (len(anchor), B - 1, V), streams.draft, dtype=torch.float64
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(candidates, "top_candidates", select)
            solution = candidates.solve_by_candidates(
                head,
                head.prepare(bench.hidden[before, anchor]),
                bench.base[before, anchor],
                anchor,
                before,
                count=count,
                passes=passes,
                scale=bench.sampling.scale,
                noise=noise,
            )
        p = bench.target_rows(before, anchor, solution.tokens)
        q = solution.scores.softmax(-1)
        return solution.tokens, accept_by_rejection(p, q, solution.tokens, streams)

    return rule


RULES = [sampled_drafts, argmax_drafts, exact_match]
SOLVERS = [("xpress", k) for k in range(B)]
SOLVERS += [(kind, 0) for kind in (*MARKOV_TYPES, "dflash")]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.5])
@pytest.mark.parametrize(("kind", "passes"), SOLVERS)
def test_sampled_drafts_keep_the_law(kind, passes, temperature):
    bench = Bench(temperature)
    assert bench.p_value(sampled_drafts, kind=kind, passes=passes) > RIGHT


@pytest.mark.parametrize(("kind", "passes"), SOLVERS)
@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: rule.__name__)
def test_argmax_drafts_keep_the_law(rule, kind, passes):
    assert Bench(1.0).p_value(rule, kind=kind, passes=passes) > RIGHT


@pytest.mark.parametrize("temperature", [0.3, 1.5])
@pytest.mark.parametrize("rule", RULES[1:], ids=lambda rule: rule.__name__)
def test_argmax_drafts_keep_the_law_at_other_temperatures(rule, temperature):
    assert Bench(temperature).p_value(rule) > RIGHT


@pytest.mark.parametrize("count", [1, 2, V])
@pytest.mark.parametrize("passes", [1, 2, None])
def test_candidate_rows_keep_the_law(count, passes):
    """Certified or not: at K = 1 most blocks are not at their fixed point."""
    assert Bench(1.0).p_value(candidate_drafts(count), passes=passes) > RIGHT


def test_candidate_rows_keep_the_law_under_filters():
    bench = Bench(1.0, top_k=3, top_p=0.8)
    assert bench.p_value(candidate_drafts(2), passes=1) > RIGHT


@pytest.mark.parametrize(
    "filters", [{"top_k": 2}, {"top_p": 0.7}, {"top_k": 3, "top_p": 0.8}], ids=str
)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_filters_keep_the_law(rule, filters):
    """The law under filters gives some words no chance at all: none may appear."""
    bench = Bench(1.0, **filters)
    assert (bench.law == 0).any()
    assert bench.p_value(rule) > RIGHT


# --- mistakes that the same chi-square must see -------------------------------


def argmax_draft_with_softmax_q(bench, kind, passes, before, anchor, streams):
    solution = bench.draft(kind, passes, before, anchor, None, None)
    p = bench.target_rows(before, anchor, solution.tokens)
    q = bench.sampling.probabilities(solution.scores)
    return solution.tokens, accept_by_rejection(p, q, solution.tokens, streams)


def q_at_another_temperature(bench, kind, passes, before, anchor, streams):
    noise = gumbel_noise((len(anchor), B - 1, V), streams.draft, dtype=torch.float64)
    scale = bench.sampling.scale
    solution = bench.draft(kind, passes, before, anchor, scale, noise)
    p = bench.target_rows(before, anchor, solution.tokens)
    q = (solution.scores / 2).softmax(-1)
    return solution.tokens, accept_by_rejection(p, q, solution.tokens, streams)


def q_without_the_filter(bench, kind, passes, before, anchor, streams):
    """Drafts come from filtered logits, q from unfiltered ones of the same pass."""
    noise = gumbel_noise((len(anchor), B - 1, V), streams.draft, dtype=torch.float64)
    raw = []

    def scale(logits):  # later passes evaluate the last slots alone
        settled = B - 1 - logits.shape[1]
        raw.append(torch.cat([*(r[:, :settled] for r in raw[-1:]), logits], dim=1))
        return bench.sampling.scale(logits)

    drafts = bench.draft(kind, passes, before, anchor, scale, noise).tokens
    p = bench.target_rows(before, anchor, drafts)
    return drafts, accept_by_rejection(p, raw[-1].softmax(-1), drafts, streams)


def reused_noise(depth: int, where: str):
    """The noise that chose draft number ``depth`` decides once more.

    ``where`` is ``accept`` (the test uses the uniform behind the draft's own noise)
    or ``residual`` (the replacement is an argmax over the same Gumbel noise).  At
    the other depths randomness is fresh, so each depth is tested on its own.
    """

    def rule(bench, kind, passes, before, anchor, streams):
        rows, slot = len(anchor), depth - 1
        noise = gumbel_noise((rows, B - 1, V), streams.draft, dtype=torch.float64)
        scale = bench.sampling.scale
        solution = bench.draft(kind, passes, before, anchor, scale, noise)
        drafts, q = solution.tokens, solution.scores.softmax(-1)
        p = bench.target_rows(before, anchor, drafts)
        chosen = drafts[..., None]
        ratio = (p[:, :-1].gather(2, chosen) / q.gather(2, chosen)).squeeze(2)
        uniform = torch.rand(ratio.shape, generator=streams.accept, dtype=torch.float64)
        if where == "accept":
            own = noise[:, slot].gather(1, chosen[:, slot]).squeeze(1)
            uniform[:, slot] = torch.exp(-torch.exp(-own))
        accepted = (uniform < ratio).long().cumprod(1).sum(1)
        each = torch.arange(rows)
        law, rejected = p[each, accepted], accepted < B - 1
        left = (law - q[each, accepted.clamp_max(B - 2)]).clamp_min(0)
        law = torch.where(rejected[:, None], left, law)
        next_token = draw(law, streams.residual)
        if where == "residual":
            again = (law.log() + noise[:, slot]).argmax(-1)
            next_token = torch.where(accepted == slot, again, next_token)
        return drafts, Verdict(accepted, next_token)

    rule.__name__ = f"{where}_reuses_noise_of_draft_{depth}"
    return rule


BLATANT = [reused_noise(depth, "accept") for depth in range(1, B)]
SUBTLE = [reused_noise(depth, "residual") for depth in range(1, B)]


@pytest.mark.parametrize(
    "rule",
    [argmax_draft_with_softmax_q, q_at_another_temperature, *BLATANT, *SUBTLE],
    ids=lambda rule: rule.__name__,
)
@pytest.mark.parametrize("passes", [0, 2])
def test_mistakes_are_seen(rule, passes):
    rows = 2 * ROWS if rule in SUBTLE else ROWS
    assert Bench(1.0).p_value(rule, passes=passes, rows=rows) < WRONG


def pooled_candidates(scores: torch.Tensor, count: int) -> torch.Tensor:
    """All slots share their candidates: earlier ones then hear of later noise."""
    ids = TOP_CANDIDATES(scores, count).flatten(1)
    return ids.sort(-1).values[:, None].expand(-1, scores.shape[1], -1)


def test_pooled_candidates_are_seen_unless_passes_go_to_the_fixed_point():
    rule = candidate_drafts(1, pooled_candidates)
    assert Bench(1.0).p_value(rule, passes=1) < WRONG
    assert Bench(1.0).p_value(rule, passes=None) > RIGHT


def test_mistaken_filter_is_seen():
    assert Bench(1.0, top_k=2).p_value(q_without_the_filter) < WRONG


def test_hand_written_rule_of_the_controls_is_right_without_its_mistake():
    """Else the controls could fail for a reason other than the reused noise."""
    assert Bench(1.0).p_value(reused_noise(1, "nowhere")) > RIGHT


# --- how much is accepted -----------------------------------------------------


def within_error(measured: torch.Tensor, chance: float) -> bool:
    """Whether a share of booleans agrees with its probability, at five sigma."""
    sigma = math.sqrt(chance * (1 - chance) / len(measured))
    return abs(measured.double().mean().item() - chance) < 5 * sigma


@pytest.mark.parametrize(("kind", "passes"), SOLVERS)
def test_first_draft_is_accepted_as_often_as_the_closed_form_says(kind, passes):
    """Rejection: sum of min(p, q) = 1 - TV.  Exact match: sum of p * q.

    Slot 1 depends on the anchor alone, so that its p and q are two known rows.
    """
    bench, streams = Bench(1.0), Streams(3)
    before, anchor = torch.full((ROWS,), START[0]), torch.full((ROWS,), START[1])
    noise = gumbel_noise((ROWS, B - 1, V), streams.draft, dtype=torch.float64)
    solution = bench.draft(kind, passes, before, anchor, bench.sampling.scale, noise)
    drafts, q = solution.tokens, solution.scores.softmax(-1)
    p = bench.target_rows(before, anchor, drafts)
    p1, q1 = p[0, 0], q[0, 0]

    rejection = accept_by_rejection(p, q, drafts, streams).accepted > 0
    assert within_error(rejection, 1 - 0.5 * (p1 - q1).abs().sum().item())
    match = accept_exact_match(p, drafts, streams).accepted > 0
    assert within_error(match, (p1 * q1).sum().item())

    best = bench.draft(kind, passes, before, anchor, None, None).tokens
    p_best = bench.target_rows(before, anchor, best)
    for verdict in (
        accept_by_rejection(p_best, None, best, streams),
        accept_exact_match(p_best, best, streams),
    ):  # a one-hot q: both rules keep it with the target's own probability
        assert within_error(verdict.accepted > 0, p1[best[0, 0]].item())


def test_rejection_keeps_more_than_exact_match():
    for seed in range(5):
        bench = Bench(1.0, seed)
        q = bench.sampling.probabilities(bench.base[START][0])
        p = bench.p[START]
        assert torch.minimum(p, q).sum() > (p * q).sum()


def test_independent_samples_of_a_coherent_block_are_accepted_less():
    """Why block drafters propose argmax (pitfall 4).

    The target says 0000000 or 1111111, evenly.  The drafter's marginals are perfect:
    one half everywhere.  Sampled independently, each draft agrees with the first by
    chance: 1 + 1/2 + 1/4 + ... stays under 2 however long the block.  Argmax drafts
    are all 0: half of the blocks are wrong at once and half are right throughout.
    """
    rows, slots = 20_000, 7
    streams = Streams(1)
    q = torch.full((rows, slots, 2), 0.5, dtype=torch.float64)
    noise = gumbel_noise(q.shape, streams.draft, dtype=torch.float64)
    sampled = (q.log() + noise).argmax(-1)
    fair = torch.full((rows, 1, 2), 0.5, dtype=torch.float64)

    def target_rows(drafts):
        first = torch.nn.functional.one_hot(drafts[:, :1], 2).double()
        return torch.cat([fair, first.expand(-1, slots, -1)], dim=1)

    kept = accept_by_rejection(target_rows(sampled), q, sampled, streams).accepted
    zeros = torch.zeros_like(sampled)
    kept_argmax = accept_by_rejection(target_rows(zeros), None, zeros, streams).accepted
    expected = sum(0.5**k for k in range(slots))
    assert kept.double().mean().item() == pytest.approx(expected, abs=0.05)
    assert kept_argmax.double().mean().item() == pytest.approx(slots / 2, abs=0.1)


# --- the loop itself ----------------------------------------------------------

LOOP_TEXTS = 2_500
PLAIN = Sampling(1.0)


def loop_p_value(method, target, sampling=PLAIN) -> float:
    """Chi-square of ``decode``'s first three tokens over many seeds."""
    law = exact_law(sampling.probabilities(target.logits), 0, 1, TOKENS)
    texts = [
        decode(
            target, method, [0, 1], sampling=sampling, max_new_tokens=TOKENS, seed=seed
        ).tokens
        for seed in range(LOOP_TEXTS)
    ]
    return chi_square(torch.tensor(texts), law, target.vocab_size)


def test_plain_loop_keeps_the_law():
    assert loop_p_value(PlainDecoding(), EnumerableTarget()) > RIGHT


@pytest.mark.parametrize(
    ("name", "passes", "sampling"),
    [
        ("dflash", 0, PLAIN),
        ("markov", 0, PLAIN),
        ("markov-gated", 0, PLAIN),
        ("markov-rnn", 0, PLAIN),
        ("xpress", 1, PLAIN),
        ("xpress", 2, Sampling(0.7, top_p=0.9)),
        ("xpress", None, Sampling(1.0, draft_temperature=0)),
    ],
)
def test_loop_keeps_the_law(name, passes, sampling):
    target = EnumerableTarget()
    method = target.method(name, B, passes)
    assert loop_p_value(method, target, sampling) > RIGHT


def test_loop_with_a_lying_method_is_seen():
    """Argmax drafts that are declared as sampled: the power of the tests above."""

    class Liar:
        def __init__(self, method):
            self.method = method
            self.name, self.tap_ids = "liar", method.tap_ids
            self.block_size, self.budget = method.block_size, method.budget

        def begin(self, capacity):
            self.drafting = self.method.begin(capacity)
            return self

        def propose(self, request, sampling, *rest):
            proposal = self.drafting.propose(request, sampling, *rest)
            return proposal._replace(tokens=proposal.q.table.argmax(-1))

    target = EnumerableTarget()
    assert loop_p_value(Liar(target.method("xpress", B, 2)), target) < WRONG


# --- seeds and the first token ------------------------------------------------


@pytest.mark.parametrize("name", ["dflash", "markov", "xpress"])
def test_seed_decides_the_text_at_t_1_and_not_at_t_0(target, name):
    method = make_method(name, target, 5)

    def text(temperature, seed):
        sampling = Sampling(temperature)
        out = decode(
            target, method, PROMPT, sampling=sampling, max_new_tokens=24, seed=seed
        )
        return out.tokens

    assert text(1.0, 0) == text(1.0, 0)
    assert len({tuple(text(1.0, seed)) for seed in range(6)}) == 6
    assert text(0.0, 0) == text(0.0, 1)


def test_streams_of_neighbouring_seeds_share_nothing():
    """3 streams of 200 seeds: 600 different first numbers."""
    first = {
        torch.rand((), generator=stream, dtype=torch.float64).item()
        for seed in range(200)
        for stream in vars(Streams(seed)).values()
    }
    assert len(first) == 600


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_entropy_of_the_first_token_is_the_target_s(temperature):
    """``choose`` on 2e5 rows; the bias of the plug-in estimate is (V - 1) / 2N."""
    sampling, rows = Sampling(temperature), 200_000
    logits = Bench().target_logits[START]
    drawn = choose(logits.expand(rows, V), sampling, Streams(0))
    share = torch.bincount(drawn, minlength=V).double() / rows
    p = sampling.probabilities(logits)
    entropy, expected = (-(x * x.log()).sum().item() for x in (share, p))
    assert entropy == pytest.approx(expected, abs=0.01)
