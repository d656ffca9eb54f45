"""Token trees: the best ones are built, and verifying them loses nothing.

* Brute force over all prefixes, and over all trees, gives the same trees as DDTree,
  PRESTO and growth under any causal belief; a priority queue does too.
* In float64 the logits of each node are those of a plain pass over its path, and
  after every walk both caches are as if built in one go.
* Every tree method equals plain decoding at T = 0 and keeps the target's law at
  T > 0; three well-known mistakes are seen by the same chi-square.
"""

import heapq
import itertools
import json
import math

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from toys import PROMPT, EnumerableTarget, chi_square, exact_law, make_method

from xpress_lab import decoding, load_lab, trees
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.lab import Lab
from xpress_lab.methods import Proposal
from xpress_lab.ngram import Counts, NGram, load_ngram
from xpress_lab.presets import FAMILIES, TREES
from xpress_lab.sampling import Sampling, gumbel_noise
from xpress_lab.tree_methods import (
    ByNGram,
    TreeMethod,
    by_head,
    by_marginals,
    by_paths,
    tree_method,
    uses_passes,
)
from xpress_lab.trees import TokenTree, ddtree, grow, presto

ROUNDING = {"rtol": 1e-4, "atol": 1e-4}  # transformers' norms are float32


# --- which tree ---------------------------------------------------------------


def prefixes_of(tree: TokenTree) -> list[tuple[int, ...]]:
    """The drafts from the root to each node."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    return paths[1:]


def all_prefixes(vocab: int, slots: int) -> list[tuple[int, ...]]:
    depths = range(1, slots + 1)
    return [p for d in depths for p in itertools.product(range(vocab), repeat=d)]


def belief(vocab: int, slots: int, seed: int, rounded: bool = False):
    """Random causal log-probabilities: a row for every prefix, ``()`` included.

    ``rounded`` makes ties: multiples of one half, not normalised.
    """
    generator = torch.Generator().manual_seed(seed)
    table = {}
    for prefix in [(), *all_prefixes(vocab, slots - 1)]:
        row = 2 * torch.randn(vocab, generator=generator, dtype=torch.float64)
        row = row.log_softmax(-1)
        table[prefix] = (2 * row).round() / 2 if rounded else row
    return table


def scorer(table):
    """The table as a function of prefixes ``[F, k]``; counts its calls."""
    calls = []

    def score(prefixes: torch.Tensor) -> torch.Tensor:
        calls.append(len(prefixes))
        return torch.stack([table[tuple(p)] for p in prefixes.tolist()])

    return score, calls


def scores_of(table, vocab: int, slots: int) -> dict[tuple[int, ...], float]:
    """Every prefix with its score, the sum along the path."""
    return {
        prefix: sum(float(table[prefix[:k]][token]) for k, token in enumerate(prefix))
        for prefix in all_prefixes(vocab, slots)
    }


def assert_best(tree: TokenTree, scores: dict, budget: int, unique: bool) -> None:
    """The tree holds the ``budget`` best prefixes, each with its own score."""
    best = sorted(scores.values(), reverse=True)[: max(budget, 0)]
    paths = prefixes_of(tree)
    assert len(set(paths)) == len(paths) == len(tree) == len(best)
    assert_close(tree.scores, [scores[p] for p in paths])
    assert_close(sorted(tree.scores, reverse=True), best)
    assert tree.scores == sorted(tree.scores, reverse=True)
    assert all(parent < node for node, parent in enumerate(tree.parents, start=1))
    if unique:
        assert set(paths) == set(sorted(scores, key=scores.get)[-budget:][:budget])


SHAPES = {"vocab": st.integers(2, 4), "slots": st.integers(1, 4)}
CASE = {"budget": st.integers(1, 14), "seed": st.integers(0, 10_000)}
OFTEN = settings(deadline=None, derandomize=True, max_examples=150)


def independent(vocab: int, slots: int, seed: int, rounded: bool = False):
    """Log-probabilities ``[S, V]`` and the same as a table by prefix."""
    table = belief(vocab, slots, seed, rounded)
    rows = torch.stack([table[(0,) * k] for k in range(slots)])
    return rows, {prefix: rows[len(prefix)] for prefix in table}


@given(**SHAPES, **CASE, rounded=st.booleans())
@OFTEN
def test_ddtree_holds_the_most_likely_prefixes(vocab, slots, budget, seed, rounded):
    rows, table = independent(vocab, slots, seed, rounded)
    scores = scores_of(table, vocab, slots)
    assert_best(ddtree(rows, budget), scores, budget, unique=not rounded)


@given(**SHAPES, **CASE, rounded=st.booleans())
@OFTEN
def test_growth_holds_the_best_prefixes_of_any_causal_belief(
    vocab, slots, budget, seed, rounded
):
    table = belief(vocab, slots, seed, rounded)
    score, calls = scorer(table)
    tree = grow(score, slots, budget)
    assert_best(tree, scores_of(table, vocab, slots), budget, unique=not rounded)
    assert len(calls) <= slots and max(calls) <= budget


@given(**SHAPES, **CASE, weight=st.sampled_from([0.0, 0.2, 1.0, 3.0]))
@OFTEN
def test_presto_holds_the_best_prefixes_under_both_models(
    vocab, slots, budget, seed, weight
):
    rows, _ = independent(vocab, slots, seed)
    auxiliary = belief(vocab, slots, seed + 1)
    both = {p: rows[len(p)] + weight * row for p, row in auxiliary.items()}
    tree = presto(rows, scorer(auxiliary)[0], budget, weight)
    assert_best(tree, scores_of(both, vocab, slots), budget, unique=True)


@given(**SHAPES, **CASE)
@OFTEN
def test_growth_equals_a_priority_queue(vocab, slots, budget, seed):
    """One node at a time, always the best of all open ones."""
    table = belief(vocab, slots, seed)
    opened, chosen = [(0.0, ())], []
    while opened and len(chosen) <= budget:
        cost, prefix = heapq.heappop(opened)
        chosen.append(prefix)
        if len(prefix) < slots:
            for token, step in enumerate(table[prefix].tolist()):
                heapq.heappush(opened, (cost - step, (*prefix, token)))
    assert prefixes_of(grow(scorer(table)[0], slots, budget)) == chosen[1:]


@pytest.mark.parametrize(
    ("vocab", "slots", "budget"), [(2, 3, 4), (3, 2, 4), (2, 3, 6)]
)
def test_no_tree_of_as_many_nodes_is_more_likely_to_be_walked(vocab, slots, budget):
    """Over all trees: the expected length of the walk is the nodes' summed chance."""
    rows, table = independent(vocab, slots, seed=3)
    chance = {p: math.exp(s) for p, s in scores_of(table, vocab, slots).items()}
    best = max(
        sum(chance[p] for p in nodes)
        for nodes in itertools.combinations(chance, budget)
        if all(len(p) == 1 or p[:-1] in nodes for p in nodes)
    )
    assert sum(map(math.exp, ddtree(rows, budget).scores)) == pytest.approx(best)


@pytest.mark.parametrize("slots", [1, 4, 15])
def test_dominant_tokens_give_the_chain(slots):
    """A budget of B - 1 and one sure token a slot: the drafts of a chain, in order."""
    logits = torch.randn(slots, 30, generator=torch.Generator().manual_seed(slots))
    sure = logits.argmax(-1)
    logits[torch.arange(slots), sure] += 40
    rows = logits.log_softmax(-1)
    same = lambda prefixes: rows[prefixes.shape[1]].expand(len(prefixes), -1)  # noqa: E731
    for tree in (ddtree(rows, slots), grow(same, slots, slots)):
        assert tree.tokens == sure.tolist()
        assert tree.parents == list(range(slots))
        assert tree.depths == list(range(slots + 1))
        assert torch.equal(tree.visible(), torch.ones(slots + 1, slots + 1).tril() > 0)


@pytest.mark.parametrize("budget", [0, -3])
def test_no_budget_leaves_the_root(budget):
    rows, table = independent(3, 2, 0)
    for tree in (
        ddtree(rows, budget),
        grow(scorer(table)[0], 2, budget),
        presto(rows, scorer(table)[0], budget),
    ):
        assert len(tree) == 0 and tree.depths == [0]
        assert tree.visible().tolist() == [[True]]
        assert tree.walk([5]) == [0]


def test_impossible_tokens_are_never_planted():
    """Fewer nodes than the budget where the rest has no chance at all."""
    rows = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64).log()
    same = lambda prefixes: rows[prefixes.shape[1]].expand(len(prefixes), -1)  # noqa: E731
    for tree in (ddtree(rows, 9), grow(same, 2, 9)):
        assert set(prefixes_of(tree)) == {(0,), (1,), (0, 0), (1, 0)}


def test_scores_that_are_no_log_probabilities_are_refused():
    with pytest.raises(LabError, match="log-probabilities, <= 0"):
        grow(lambda prefixes: torch.full((len(prefixes), 3), 0.1), 2, 4)
    with pytest.raises(LabError, match="weight must be 0 or more, not -1"):
        presto(torch.zeros(2, 3), lambda p: torch.zeros(len(p), 3), 4, weight=-1)


def test_the_auxiliary_takes_mixtures_of_two_texts_down():
    """Two texts, 00 and 11: marginals think 01 as likely; one word of context helps."""
    rows = torch.full((2, 2), math.log(0.5), dtype=torch.float64)
    agree = torch.tensor([[0.99, 0.01], [0.01, 0.99]], dtype=torch.float64).log()

    def auxiliary(prefixes):
        return agree[prefixes[:, -1]] if prefixes.shape[1] else rows[:1]

    assert set(prefixes_of(presto(rows, auxiliary, 4))) == {(0,), (1,), (0, 0), (1, 1)}
    assert set(prefixes_of(ddtree(rows, 4))) != {(0,), (1,), (0, 0), (1, 1)}


def random_tree(nodes: int, vocab: int, seed: int) -> TokenTree:
    """Any shape, siblings with different tokens."""
    generator = torch.Generator().manual_seed(seed)
    pick = lambda n: int(torch.randint(n, (1,), generator=generator))  # noqa: E731
    tree, taken = TokenTree([], [], []), set()
    while len(tree) < nodes:
        edge = pick(len(tree) + 1), pick(vocab)
        if edge not in taken:
            taken.add(edge)
            tree.parents.append(edge[0])
            tree.tokens.append(edge[1])
            tree.scores.append(0.0)
    return tree


@given(nodes=st.integers(0, 20), seed=st.integers(0, 1000))
@OFTEN
def test_a_node_sees_its_path_and_a_walk_follows_the_choices(nodes, seed):
    tree = random_tree(nodes, 4, seed)
    paths = [(), *prefixes_of(tree)]
    sees, place = tree.visible(), {path: node for node, path in enumerate(paths)}
    for node, path in enumerate(paths):
        above = {place[path[:k]] for k in range(len(path) + 1)}
        assert set(sees[node].nonzero().flatten().tolist()) == above
        assert tree.depths[node] == len(path)
    choices = torch.randint(4, (nodes + 1,)).tolist()
    walked = tree.walk(choices)
    said = tuple(tree.tokens[node - 1] for node in walked[1:])
    assert [place[said[:k]] for k in range(len(said) + 1)] == walked
    assert all(
        choices[a] == t for a, t in zip(walked, said, strict=False)
    )  # every step is the target's choice
    assert (*said, choices[walked[-1]]) not in place  # and it went as far as it could


# --- one target call ----------------------------------------------------------


@pytest.mark.parametrize("nodes", [1, 3, 12, 40])
def test_logits_and_taps_of_a_node_are_those_of_a_plain_pass_over_its_path(
    target, greedy_text, nodes
):
    text = PROMPT + greedy_text[:9]
    tree = random_tree(nodes, toys.VOCAB - 1, seed=nodes)
    cache = target.new_cache(1, 64)
    target.forward(torch.tensor([text]), cache)
    cache.crop(len(text) - 1)  # the last token is the anchor
    block = torch.tensor([[text[-1], *tree.tokens]])
    where = trees.placed(tree, len(text) - 1, "cpu")
    out = target.forward(block, cache, (0, 2), **where)
    for node, path in enumerate([(), *prefixes_of(tree)]):
        whole = text + list(path)
        assert_close(
            out.logits[0, node], toys.full_logits(target, whole)[-1], **ROUNDING
        )
        with torch.no_grad():
            states = target.model(
                input_ids=torch.tensor([whole]), output_hidden_states=True
            ).hidden_states
        taps = torch.cat([states[i + 1][0, -1] for i in (0, 2)])
        assert_close(out.taps[0, node], taps, **ROUNDING)


class ScriptedTrees:
    """Random trees through which the target walks exactly the scheduled counts.

    The right path is hidden among decoys, its nodes anywhere behind their parents.
    With ``inner`` a real drafter runs along, so that its cache can be looked at.
    """

    name = "scripted trees"

    def __init__(self, text, schedule, block_size, budget, inner=None):
        self.text, self.schedule, self.inner = text, list(schedule), inner
        self.block_size, self.budget = block_size, budget
        self.tap_ids = () if inner is None else inner.tap_ids
        self.random = torch.Generator().manual_seed(0)
        self.look = lambda request, drafting: None

    def describe(self) -> str:
        return self.name

    def begin(self, capacity):
        self.counts = itertools.cycle(self.schedule)
        self.drafting = None if self.inner is None else self.inner.begin(capacity)
        return self

    def pick(self, count: int) -> int:
        return int(torch.randint(count, (1,), generator=self.random))

    def propose(self, request, *_) -> Proposal:
        if self.drafting is not None:
            self.look(request, self.drafting)
            self.drafting.hidden_states(request)
        ahead = self.text[request.start + 1 :] + [0] * self.block_size
        keep, tree = next(self.counts), TokenTree([], [], [])
        right, taken = [0], set()
        while len(tree) < self.budget:
            missing = keep + 1 - len(right)
            forced = missing == self.budget - len(tree)
            if missing and (forced or self.pick(3) == 0):
                edge = right[-1], ahead[len(right) - 1]
                right.append(len(tree) + 1)
            else:
                edge = self.pick(len(tree) + 1), self.pick(toys.VOCAB)
                truth = {(n, ahead[d]) for d, n in enumerate(right)}
                deep = tree.depths[edge[0]] + 1 >= self.block_size
                if edge in truth or edge in taken or deep:
                    continue
            taken.add(edge)
            tree.parents.append(edge[0])
            tree.tokens.append(edge[1])
            tree.scores.append(0.0)
        return Proposal(torch.tensor([tree.tokens], dtype=torch.long), tree=tree)


@pytest.mark.parametrize(("block_size", "budget"), [(2, 1), (4, 9), (9, 8), (9, 30)])
def test_walks_of_every_length_leave_both_caches_as_if_built_in_one_go(
    target, greedy_text, block_size, budget, monkeypatch
):
    text, drafter = PROMPT + greedy_text, None
    schedule = [k // 2 if k % 2 else block_size - 1 - k // 2 for k in range(block_size)]
    inner = make_method("dflash", target, block_size)
    method = ScriptedTrees(text, schedule, block_size, budget, inner)
    new, starts, drafter = sum(schedule) + block_size + 1, [], inner.drafter
    forward = target.forward
    with torch.no_grad():
        states = target.model(
            input_ids=torch.tensor([text]), output_hidden_states=True
        ).hidden_states
    taps = torch.cat([states[i + 1] for i in inner.tap_ids], dim=-1)

    def spy(tokens, cache, *args, **kwargs):
        if cache.length:
            fresh = target.new_cache(1, cache.length)
            forward(torch.tensor([text[: cache.length]]), fresh)
            assert_same_rows(cache, fresh, cache.length)
            starts.append(cache.length)
        return forward(tokens, cache, *args, **kwargs)

    def look(request, drafting):
        start, cache = request.start, drafting.cache
        seen = start - request.taps.shape[1]
        assert_close(request.taps, taps[:, seen:start], **ROUNDING)
        assert cache.length == seen
        fresh = drafter.new_cache(1, start + block_size)
        ids = torch.tensor([[text[seen - 1]] + [toys.MASK_ID] * (block_size - 1)])
        if seen:
            positions = torch.arange(seen + block_size)[None]
            context = drafter.project(taps[:, :seen])
            drafter(target.embed(ids), context, positions, cache=fresh)
            assert_same_rows(cache, fresh, seen)

    method.look = look
    monkeypatch.setattr(target, "forward", spy)
    out = decode(target, method, PROMPT, max_new_tokens=new)
    assert out.tokens == greedy_text[:new]
    assert [r.accepted for r in out.rounds] == schedule
    places = itertools.accumulate([len(PROMPT)] + [a + 1 for a in schedule[:-1]])
    assert starts == list(places)
    for r in out.rounds:
        assert len(r.block) == budget + 1 == len(r.parents) + 1
        assert len(r.path) == r.accepted
        assert [r.parents[node - 1] for node in r.path] == [0, *r.path][:-1]


def assert_same_rows(ours, theirs, length: int) -> None:
    for a, b in zip(ours.keys + ours.values, theirs.keys + theirs.values, strict=True):
        assert_close(a[:, :, :length], b[:, :, :length], **ROUNDING)


@pytest.mark.parametrize("new", range(1, 24))
def test_the_budget_of_tokens_is_exact_and_all_are_streamed(target, greedy_text, new):
    method = ScriptedTrees(PROMPT + greedy_text, [3, 0, 6, 1], 7, 12)
    streamed = []
    out = decode(target, method, PROMPT, max_new_tokens=new, on_tokens=streamed.append)
    assert out.tokens == greedy_text[:new] == sum(streamed, [])
    assert sum(r.emitted for r in out.rounds) + 1 == new
    assert not out.rounds or 1 <= out.tau <= 7


def test_a_stop_id_ends_a_walk_wherever_it_stands(target, greedy_text):
    seen = set()
    for keep, stop in itertools.product(range(5), dict.fromkeys(greedy_text[:30])):
        method = ScriptedTrees(PROMPT + greedy_text, [keep], 5, 9)
        out = decode(target, method, PROMPT, max_new_tokens=40, stop_ids=[stop])
        assert out.tokens == greedy_text[: greedy_text.index(stop) + 1]
        assert sum(r.emitted for r in out.rounds) + 1 == len(out.tokens)
        seen |= {(r.emitted, r.accepted) for r in out.rounds[-1:]}
    assert {(e, 4) for e in range(1, 6)} <= seen  # as each kept draft, as bonus


def test_a_text_fills_the_target_s_positions_with_a_wide_tree(target, greedy_text):
    """Nodes take rows of the cache, depth alone takes positions."""
    new = target.config.max_position_embeddings - len(PROMPT) - 4
    method = TreeMethod("x", make_method("dflash", target, 4), by_marginals, 60)
    out = decode(target, method, PROMPT, max_new_tokens=new)
    assert len(out.tokens) == new and out.tokens[:170] == greedy_text


# --- the methods at T = 0 -----------------------------------------------------


def random_ngram(vocab: int, seed: int = 0) -> NGram:
    """A 3-gram counted on nothing: random counts of random grams."""
    generator, tables = torch.Generator().manual_seed(seed), []
    for order in (1, 2, 3):
        grams = torch.randint(vocab, (8 * vocab, order), generator=generator)
        grams = grams.unique(dim=0)
        tables.append(Counts(grams, torch.randint(1, 9, (len(grams),))))
    return NGram(tables, vocab)


KINDS = {
    "dflash+ddtree": by_marginals,
    "dflash+presto": None,
    "xpress+ddtree": by_marginals,
    "xpress+ddtree paths": by_paths,
    "xpress+presto": by_head,
}


def planted(kind: str, chain, budget: int, vocab: int) -> TreeMethod:
    """A tree method of a kind on any chain."""
    plant = KINDS[kind] or ByNGram(random_ngram(vocab), chain.borrowed.draft_ids)
    return TreeMethod(kind, chain, plant, budget, kind)


@pytest.mark.parametrize("budget", [0, 1, 5, 16])
@pytest.mark.parametrize("block_size", [2, 5, 9, 16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_block_size_and_budget_is_plain_decoding(
    target, greedy_text, kind, block_size, budget
):
    chain = make_method(kind.split("+")[0], target, block_size)
    method = planted(kind, chain, budget, toys.VOCAB)
    out = decode(target, method, PROMPT, max_new_tokens=24)
    assert out.tokens == greedy_text[:24]
    assert all(len(r.block) == budget + 1 for r in out.rounds)
    assert out.block_size == block_size


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_one_token(target, kind):
    chain = make_method(kind.split("+")[0], target, 6)
    method = planted(kind, chain, 9, toys.VOCAB)
    out = decode(target, method, [5], max_new_tokens=30)
    assert out.tokens == toys.generate(target, [5], 30)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_speak_the_target_s_ids_with_a_draft_vocabulary(
    target, greedy_text, kind
):
    """Every second token may be drafted; texts stay, and only those are drafted."""
    ids = torch.arange(0, toys.VOCAB - 1, 2)
    name = kind.split("+")[0]
    head = None
    if name == "xpress":
        head = toys.strong_head(name, 5, len(ids), inputs=len(ids) + 1).fold()
    drafter = toys.tiny_drafter(target, 5)
    chain = toys.BlockMethod(name, target, drafter, head, 2, ids)
    out = decode(target, planted(kind, chain, 9, toys.VOCAB), PROMPT, max_new_tokens=40)
    assert out.tokens == greedy_text[:40]
    drafted = {token for r in out.rounds for token in r.block[1:]}
    assert drafted <= set(ids.tolist()) and len(drafted) > 5


def test_one_slot_is_scored_as_in_a_pass_over_all():
    head = toys.strong_head("xpress", 6).fold()
    hidden = torch.randn(1, 6, toys.HIDDEN, dtype=torch.float64)
    previous = torch.randint(toys.VOCAB, (7, 6))
    prepared = head.prepare(hidden)
    whole = head.bias(prepared, previous)
    for slot in range(5):
        ours = head.bias_after(prepared, previous[:, : slot + 2])
        assert_close(ours, whole[:, slot])


@pytest.mark.parametrize("budget", [1, 6, 20])
@pytest.mark.parametrize("kind", ["xpress+ddtree paths", "xpress+presto"])
def test_a_node_is_scored_by_the_head_after_its_own_path(target, kind, budget):
    """Against the unfolded pass over the whole block, node by node."""
    chain = make_method("xpress", target, 5, passes=0)
    method = planted(kind, chain, budget, toys.VOCAB)
    seen, plant = [], method.plant

    def spy(beliefs, count):
        seen.append((beliefs, plant(beliefs, count)))
        return seen[-1][1]

    method.plant = spy
    drafts = []
    method.chain.drafter.register_forward_hook(lambda _m, _i, out: drafts.append(out))
    decode(target, method, PROMPT, max_new_tokens=12)
    for (beliefs, tree), hidden in zip(seen, drafts, strict=True):
        base = target.head(hidden[:, 1:])
        assert_close(beliefs.marginals, base[0].log_softmax(-1))
        prepared = chain.head.prepare(hidden)
        for path, score in zip(prefixes_of(tree), tree.scores, strict=True):
            padded = [*beliefs.before.tolist(), *path, 0, 0, 0, 0][:5]
            refined = base + chain.head.bias(prepared, torch.tensor([padded]))
            own = refined[0].log_softmax(-1)
            rows = range(len(path))
            expected = sum(own[k, path[k]] for k in rows)
            if kind == "xpress+presto":
                marginal = sum(beliefs.marginals[k, path[k]] for k in rows)
                expected = marginal + trees.AUXILIARY_WEIGHT * expected
            assert score == pytest.approx(float(expected), abs=1e-5)


# --- the law at T > 0 ---------------------------------------------------------

RIGHT, WRONG, TEXTS, TOKENS = 1e-4, 1e-6, 2_500, 3


def p_value(target, method, sampling, texts=TEXTS) -> float:
    """Chi-square of the first three tokens of many texts."""
    law = exact_law(sampling.probabilities(target.logits), 0, 1, TOKENS)
    first = [
        decode(
            target, method, [0, 1], sampling=sampling, max_new_tokens=TOKENS, seed=seed
        ).tokens
        for seed in range(texts)
    ]
    return chi_square(torch.tensor(first), law, target.vocab_size)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("budget", [2, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_keeps_the_law(kind, budget, temperature):
    target = EnumerableTarget()
    chain = target.method(kind.split("+")[0], 4, 2)
    method = planted(kind, chain, budget, target.vocab_size)
    assert p_value(target, method, Sampling(temperature)) > RIGHT


def test_the_law_under_filters_and_with_a_draft_vocabulary():
    target = EnumerableTarget()
    chain = target.method("xpress", 4, 2, draft_ids=torch.tensor([0, 2]))
    method = planted("xpress+ddtree paths", chain, 4, target.vocab_size)
    assert p_value(target, method, Sampling(1.0, top_k=2)) > RIGHT


def bushy(target, budget=7) -> TreeMethod:
    chain = target.method("dflash", 4, 0)
    return TreeMethod("bushy", chain, by_marginals, budget)


def test_following_the_drafted_token_is_seen(monkeypatch):
    """The likeliest child instead of the target's own draw."""

    def walk(tree, choices):
        path = [0]
        while path[-1] in tree.parents:
            path.append(tree.parents.index(path[-1]) + 1)
        return path

    monkeypatch.setattr(TokenTree, "walk", walk)
    target = EnumerableTarget()
    assert p_value(target, bushy(target), Sampling(1.0)) < WRONG


def test_drawing_among_the_children_only_is_seen(monkeypatch):
    """A target's draw that is not in the tree is a correction, not a miss."""
    target, grown = EnumerableTarget(), []

    def plant(beliefs, budget):
        grown.append(by_marginals(beliefs, budget))
        return grown[-1]

    def choose_child(logits, sampling, streams):
        if len(logits) > 1:
            for node in set(grown[-1].parents):
                edges = zip(grown[-1].parents, grown[-1].tokens, strict=True)
                children = [token for parent, token in edges if parent == node]
                only = torch.full_like(logits[node], -torch.inf)
                only[children] = logits[node, children]
                logits[node] = only
        return choose(logits, sampling, streams)

    choose = decoding.choose
    monkeypatch.setattr(decoding, "choose", choose_child)
    method = TreeMethod("bushy", target.method("dflash", 4, 0), plant, 4)
    assert p_value(target, method, Sampling(1.0)) < WRONG


@pytest.mark.parametrize("reused", [True, False])
def test_drawing_with_the_noise_that_built_the_tree_is_seen(reused, monkeypatch):
    """Gumbel noise picks the tree; the target's draws must not use it again.

    The first draw would be right even so. But this tree is planted only where the
    noise of the second slot favours token 0, as a search on noisy scores may do: the
    walk goes on too often where 0 follows. With fresh noise the same trees keep the
    law.
    """
    target, generator, kept = EnumerableTarget(), torch.Generator().manual_seed(1), []

    def plant(beliefs, budget):
        noise = gumbel_noise(beliefs.marginals.shape, generator, dtype=torch.float64)
        kept.append(noise)
        return ddtree(beliefs.marginals, budget if noise[1].argmax() == 0 else 0)

    def choose_again(logits, sampling, streams):
        if len(logits) == 1 or not reused:
            return choose(logits, sampling, streams)
        return (sampling.scale(logits) + kept[-1][[0, 1, 1, 1]]).argmax(-1)

    choose = decoding.choose
    monkeypatch.setattr(decoding, "choose", choose_again)
    method = TreeMethod("noisy", target.method("dflash", 3, 0), plant, 3)
    p = p_value(target, method, Sampling(1.0))
    assert p < WRONG if reused else p > RIGHT


def test_the_toy_sees_a_wrong_mask_and_a_wrong_position():
    """Else the laws above could be right by blindness."""
    target, tree = EnumerableTarget(), TokenTree([0, 1, 2], [0, 0, 2], [0.0] * 3)

    def rows(**changed):
        cache = target.new_cache(1, 8)
        target.forward(torch.tensor([[0, 1]]), cache)
        where = trees.placed(tree, 2, "cpu") | changed
        return target.forward(torch.tensor([[2, *tree.tokens]]), cache, **where).logits

    right = rows()[0]
    pairs = [(1, 2), (2, 0), (2, 1), (1, 2)]  # of each node: its parent's and its own
    assert_close(right, torch.stack([target.logits[a, b] for a, b in pairs]))
    everything = torch.ones(1, 4, 6, dtype=torch.bool)
    assert not torch.allclose(rows(visible=everything)[0], right, equal_nan=True)
    late = torch.tensor([[2, 3, 4, 4]])
    assert not torch.allclose(rows(positions=late)[0], right, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_seed_decides_the_text_at_t_1_and_not_at_t_0(target, kind):
    chain = make_method(kind.split("+")[0], target, 5)
    method = planted(kind, chain, 8, toys.VOCAB)

    def text(temperature, seed):
        how = {"sampling": Sampling(temperature), "max_new_tokens": 24, "seed": seed}
        return decode(target, method, PROMPT, **how).tokens

    assert text(1.0, 0) == text(1.0, 0)
    assert len({tuple(text(1.0, seed)) for seed in range(5)}) == 5
    assert text(0.0, 0) == text(0.0, 1)


# --- the shipped tier, by name ------------------------------------------------


@pytest.fixture(scope="module")
def lab() -> Lab:
    return load_lab("pocket", device="cpu")


ARMS = [(name, "marginals") for name in TREES] + [("xpress+ddtree", "paths")]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_shipped_weights_give_the_target_s_own_text(lab, family):
    """A dozen prompts; trees are walked deeper than plain decoding goes."""
    plain = lab.method("ar")
    methods = [
        lab.method(name, budget=budget, rescoring=rescoring)
        for name, rescoring in ARMS
        for budget in (None, 40)
    ]
    for prompt in read_prompts(prompt_folder("pocket"), family, 12):
        ids = lab.target.encode(prompt)
        reference = decode(lab.target, plain, ids).tokens
        for method in methods:
            text = decode(lab.target, method, ids)
            assert text.tokens == reference, (method.describe(), prompt)
            assert 1.5 < text.tau <= method.block_size


@pytest.mark.parametrize(("name", "rescoring"), ARMS)
def test_methods_by_name(lab, name, rescoring):
    method = lab.method(name, 4, rescoring=rescoring)
    assert method.name == name and method.budget == method.block_size - 1 == 15
    assert ("K=4" in method.describe()) == uses_passes(name, rescoring)
    assert lab.method(name, budget=33, rescoring=rescoring).budget == 33
    text = lab.generate("Where does Anna live?", method, max_new_tokens=20)
    passes = {r.passes for r in text.rounds}
    assert max(passes) <= 4 and (passes == {0}) == (not uses_passes(name, rescoring))
    if passes != {0}:
        assert all(len(r.trace) == r.passes + 1 for r in text.rounds)


def test_the_names_stand_for_different_trees(lab):
    """With one budget on one prompt, no two methods plant the same trees."""
    grown = set()
    for name, rescoring in ARMS:
        method = lab.method(name, budget=24, rescoring=rescoring)
        text = lab.generate("Anna has 3 apples. Ben has 4.", method, max_new_tokens=30)
        grown.add(json.dumps([(r.block, r.parents) for r in text.rounds]))
    assert len(grown) == len(ARMS)


@pytest.mark.parametrize(
    ("name", "rescoring", "says"),
    [
        ("xpress+ddtree", "wholes", "Unknown rescoring 'wholes'"),
        ("dflash+ddtree", "paths", "for xpress[+]ddtree, not for dflash"),
        ("xpress", "paths", "for xpress[+]ddtree, not for xpress"),
        ("markov+ddtree", "marginals", "Unknown method"),
    ],
)
def test_what_no_method_does_is_refused(lab, name, rescoring, says):
    with pytest.raises(LabError, match=says):
        lab.method(name, rescoring=rescoring)


def test_presto_without_counts_says_what_to_run(target, tmp_path):
    chain = make_method("dflash", target, 4)
    counts = lambda: load_ngram(tmp_path, toys.VOCAB)  # noqa: E731
    with pytest.raises(LabError, match="train --only ngram"):
        tree_method("dflash+presto", chain, 5, ngram=counts)
