"""Texts decoded side by side are the texts decoded one by one.

In float64 on random toys every method gives the same ids, round by round, whatever the
prompts' lengths, the accept counts, the stop ids and the budgets of the rows:

* at T = 0 and, row by row with the same seeds, at T > 0; neighbours change nothing;
* scripted accept counts leave both caches of every row as if built in one go;
* rows that are finished leave, and cost no target call, no row of one and no copy but
  one;
* laws at T > 0 hold for rows side by side (chi-square);
* shared or equal streams, wrong positions and visible padding are seen.

On the shipped pocket weights sixteen prompts agree in float32.
"""

import itertools
from dataclasses import replace

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from test_confidence import cut_method
from test_eagle import tiny_eagle
from torch.testing import assert_close
from toys import PROMPT, EnumerableTarget, chi_square, exact_law, make_method

from xpress_lab import batching, load_lab
from xpress_lab.batching import close_gaps, decode_batch
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.block_method import BlockDrafting
from xpress_lab.cache import KVCache
from xpress_lab.decoding import decode
from xpress_lab.eagle_method import EagleMethod
from xpress_lab.errors import LabError
from xpress_lab.methods import PlainDecoding, Proposal
from xpress_lab.presets import FAMILIES
from xpress_lab.sampling import RowStreams, Sampling, Streams, draw, uniform
from xpress_lab.tree_methods import tree_method
from xpress_lab.verification import accept

ROUNDING = {"rtol": 1e-4, "atol": 1e-4}  # transformers' norms are float32
PROMPTS = [PROMPT, [5], [7, 30, 2, 2, 19, 8, 1, 33, 4], [5, 17], [12, 3, 28]]
BUDGETS = [40, 1, 23, 31, 17]
SEEDS = [4, 0, 9, 4, 123]
B = 6


def all_methods(target) -> dict:
    """Every kind of chain, by a name for the test."""
    methods = {"ar": PlainDecoding(), "eagle": EagleMethod(target, tiny_eagle(target))}
    for kind in ("dflash", "markov", "markov-gated", "markov-rnn"):
        methods[kind] = make_method(kind, target, B)
    for passes in (0, 1, 3, None):
        methods[f"xpress {passes}"] = make_method("xpress", target, B, passes)
    methods["anchor-first"] = make_method("markov", target, B, anchor_first=True)
    for kind in ("dflash", "markov-rnn", "xpress"):
        methods[f"{kind} cut"] = cut_method(kind, target, 0.5)
    return methods


NAMES = [
    "ar", "eagle", "dflash", "markov", "markov-gated", "markov-rnn", "xpress 0",
    "xpress 1", "xpress 3", "xpress None", "anchor-first", "dflash cut",
    "markov-rnn cut", "xpress cut",
]  # fmt: skip


@pytest.fixture(scope="module")
def methods(target):
    found = all_methods(target)
    assert list(found) == NAMES
    return found


def alone(target, method, prompts=PROMPTS, budgets=BUDGETS, seeds=SEEDS, **how):
    """The reference: one text after another."""
    each = zip(prompts, budgets, seeds, strict=True)
    return [
        decode(target, method, prompt, max_new_tokens=budget, seed=seed, **how)
        for prompt, budget, seed in each
    ]


def together(target, method, prompts=PROMPTS, budgets=BUDGETS, seeds=SEEDS, **how):
    return decode_batch(
        target, method, prompts, max_new_tokens=budgets, seeds=seeds, **how
    )


def bare(rounds) -> list:
    """What belongs to a row alone; passes are the batch's."""
    return [replace(r, passes=0, trace=[]) for r in rounds]


def assert_same(ours, theirs) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.prompt == other.prompt and one.block_size == other.block_size
        assert one.tokens == other.tokens
        assert bare(one.rounds) == bare(other.rounds)


# --- the same texts -----------------------------------------------------------


@pytest.mark.parametrize("stops", [(), (19, 4)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_rows_are_those_of_single_runs(target, methods, name, stops):
    ours = together(target, methods[name], stop_ids=stops)
    assert_same(ours, alone(target, methods[name], stop_ids=stops))
    plain = alone(target, PlainDecoding(), stop_ids=stops)
    assert [text.tokens for text in ours] == [text.tokens for text in plain]


FILTERED, ARGMAX_DRAFTS = Sampling(0.6, top_p=0.9), Sampling(1.0, draft_temperature=0)
SAMPLED = [(name, Sampling(1.0)) for name in NAMES]
SAMPLED += [("markov", FILTERED), ("xpress 3", FILTERED), ("eagle", FILTERED)]
SAMPLED += [("dflash", ARGMAX_DRAFTS), ("xpress cut", ARGMAX_DRAFTS)]


@pytest.mark.parametrize(("name", "sampling"), SAMPLED, ids=str)
def test_sampled_rows_are_those_of_single_runs(target, methods, name, sampling):
    """Token for token: each row draws from its own streams, as often as alone."""
    ours = together(target, methods[name], sampling=sampling, stop_ids=(19,))
    assert_same(ours, alone(target, methods[name], sampling=sampling, stop_ids=(19,)))
    assert len({text.tokens[0] for text in ours}) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["markov", "xpress None", "xpress cut", "eagle"])
def test_neighbours_and_their_order_change_nothing(target, methods, name, temperature):
    how = {"sampling": Sampling(temperature)}
    whole = together(target, methods[name], **how)
    order = [3, 0, 2]
    some = [[given[i] for i in order] for given in (PROMPTS, BUDGETS, SEEDS)]
    assert_same(
        together(target, methods[name], *some, **how), [whole[i] for i in order]
    )
    (single,) = together(target, methods[name], [PROMPT], [40], [4], **how)
    assert_same([single], whole[:1])


def test_traces_end_in_the_block_and_begin_with_the_single_run_s(target, methods):
    """A batch may go on with passes when a row has settled; they change nothing."""
    how = {"keep_trace": True}
    ours = together(target, methods["xpress None"], **how)
    theirs = alone(target, methods["xpress None"], **how)
    longer = 0
    for one, other in zip(ours, theirs, strict=True):
        for r, s in zip(one.rounds, other.rounds, strict=True):
            assert len(r.trace) == r.passes + 1 >= s.passes + 1
            assert r.trace[: len(s.trace)] == s.trace
            assert all(step == r.block[1:] for step in r.trace[len(s.trace) :])
            longer += len(r.trace) > len(s.trace)
    assert longer > 0


def test_defaults_are_one_budget_own_stops_and_seeds_by_number(target, monkeypatch):
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", [19, 4])
    sampling, plain = Sampling(1.0), PlainDecoding()
    ours = decode_batch(target, plain, PROMPTS, sampling=sampling, max_new_tokens=30)
    seeds = range(len(PROMPTS))
    theirs = alone(target, plain, PROMPTS, [30] * 5, seeds, sampling=sampling)
    assert_same(ours, theirs)
    assert len({len(text.tokens) for text in ours}) > 2


# --- forced accept counts -----------------------------------------------------


class ScriptedRows:
    """Drafts that make the target accept scheduled counts, row by row.

    texts: of each row, prompt and greedy continuation. With ``inner`` a real drafter
    runs along, so that its cache and states can be looked at.
    """

    name, batched = "scripted rows", True

    def __init__(self, texts, schedules, block_size, inner=None):
        self.texts, self.schedules, self.inner = texts, schedules, inner
        self.block_size, self.budget = block_size, block_size - 1
        self.tap_ids = () if inner is None else inner.tap_ids
        self.after_draft = lambda request, hidden: None

    def begin(self, capacity, rows=1):
        self.rows = list(range(rows))
        self.counts = [itertools.cycle(schedule) for schedule in self.schedules]
        if self.inner is not None:
            self.drafting = self.inner.begin(capacity, rows)
        return self

    def keep_rows(self, rows):
        self.rows = [self.rows[row] for row in rows]
        if self.inner is not None:
            self.drafting.keep_rows(rows)

    def propose(self, request, *_):
        if self.inner is not None:
            self.after_draft(request, self.drafting.hidden_states(request))
        drafts = []
        for row, start in zip(self.rows, request.starts, strict=True):
            ahead = (self.texts[row] + [0] * self.block_size)[start + 1 :]
            keep = next(self.counts[row])
            drafts.append(
                [
                    ahead[slot] if slot < keep else (ahead[slot] + 7) % toys.VOCAB
                    for slot in range(self.budget)
                ]
            )
        ids = torch.tensor(drafts, dtype=torch.long)
        return Proposal(ids.view(len(drafts), self.budget))


@pytest.fixture(scope="module")
def texts(target):
    """Prompts of several lengths with 60 tokens of their greedy continuation."""
    return [prompt + toys.generate(target, prompt, 60) for prompt in PROMPTS]


def until(tokens: list[int], stops) -> list[int]:
    end = next((i for i, t in enumerate(tokens) if t in stops), len(tokens) - 1)
    return tokens[: end + 1]


@given(
    which=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    schedules=st.lists(
        st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=6, max_size=6
    ),
    budgets=st.lists(st.integers(1, 24), min_size=6, max_size=6),
    stops=st.sets(st.integers(0, toys.VOCAB - 1), max_size=3),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_any_accept_counts_budgets_and_stops(
    target, texts, which, schedules, budgets, stops
):
    """Every row is cut where it should be, and accepts as its script says."""
    rows = [texts[i] for i in which]
    prompts = [PROMPTS[i] for i in which]
    budgets = budgets[: len(rows)]
    method = ScriptedRows(rows, schedules[: len(rows)], 5)
    ours = together(target, method, prompts, budgets, which, stop_ids=stops)
    for row, text in enumerate(ours):
        greedy = rows[row][len(prompts[row]) :][: budgets[row]]
        assert text.tokens == until(greedy, stops)
        assert sum(r.emitted for r in text.rounds) + 1 == len(text.tokens)
        accepted = [r.accepted for r in text.rounds]
        script = itertools.cycle(schedules[row])
        assert accepted == [next(script) for _ in accepted]
        assert all(r.emitted == r.accepted + 1 for r in text.rounds[:-1])


SCHEDULES = [[0, 5, 1, 4], [5], [2, 0], [1, 3, 5, 0], [0]]


def watch_calls(target, method, monkeypatch) -> list:
    """Of each target call: the rows that take part, their lengths before it, tokens
    and logits."""
    calls, forward = [], target.forward

    def spy(tokens, cache, *args, **kwargs):
        before = list(cache.lengths)
        out = forward(tokens, cache, *args, **kwargs)
        calls.append((list(method.rows), before, tokens.tolist(), out.logits))
        return out

    monkeypatch.setattr(target, "forward", spy)
    return calls


def test_forced_accept_counts_leave_the_target_s_cache_right(
    target, texts, monkeypatch
):
    """Rows hold their committed tokens alone: logits are those of fresh passes."""
    method = ScriptedRows(texts, SCHEDULES, B)
    calls = watch_calls(target, method, monkeypatch)
    ours = together(target, method)
    assert len({tuple(lengths) for _, lengths, *_ in calls}) > 10
    for rows, lengths, blocks, logits in calls[1:]:
        for row, length, block, found in zip(
            rows, lengths, blocks, logits, strict=True
        ):
            assert block[0] == texts[row][length]
            fresh = toys.full_logits(target, texts[row][:length] + block)
            assert_close(found, fresh[length:], **ROUNDING)
    for row, text in enumerate(ours):
        places = [c[1][c[0].index(row)] for c in calls[1:] if row in c[0]]
        held = len(PROMPTS[row])
        for place, r in zip(places, text.rounds, strict=True):
            assert place == held
            held += r.accepted + 1


def test_forced_accept_counts_leave_the_drafter_s_cache_right(target, texts):
    """Keys of every row are those of one call on its committed taps; nothing of a
    block or of padding is left, and what the block's states are made of is right."""
    inner = make_method("dflash", target, B)
    method, drafter, compared = (
        ScriptedRows(texts, SCHEDULES, B, inner),
        inner.drafter,
        [],
    )
    taps = []
    for text in texts:
        cache = target.new_cache(1, len(text))
        taps.append(target.forward(torch.tensor([text]), cache, inner.tap_ids).taps)

    def compare(request, hidden):
        cache = method.drafting.cache
        assert cache.lengths == request.starts
        compared.append(cache.ragged)
        for place, (row, start) in enumerate(
            zip(method.rows, request.starts, strict=True)
        ):
            ids = torch.tensor([[texts[row][start]] + [toys.MASK_ID] * (B - 1)])
            fresh = drafter.new_cache(1, start + B)
            context = drafter.project(taps[row][:, :start])
            positions = torch.arange(start + B)[None]
            expected = drafter(target.embed(ids), context, positions, cache=fresh)
            assert_close(hidden[place], expected[0], **ROUNDING)
            for ours, theirs in zip(
                cache.keys + cache.values, fresh.keys + fresh.values, strict=True
            ):
                assert_close(ours[place, :, :start], theirs[0, :, :start], **ROUNDING)

    method.after_draft = compare
    together(target, method)
    assert sum(compared) > 10


# --- rows that leave ----------------------------------------------------------


def test_calls_carry_the_unfinished_rows_alone(target, texts, monkeypatch):
    """One target call a round for all; its rows are those that still write."""
    method = ScriptedRows(texts, SCHEDULES, B)
    calls = watch_calls(target, method, monkeypatch)
    ours = together(target, method)
    rounds = [len(text.rounds) for text in ours]
    assert len(calls) == 1 + max(rounds) and min(rounds) == 0
    for number, (rows, _, tokens, _) in enumerate(calls[1:]):
        assert len(tokens) == len(rows)
        assert sorted(rows) == [row for row in range(5) if rounds[row] > number]


def test_leaving_copies_one_row_a_gap_and_allocates_nothing(target, monkeypatch):
    """The drafter's buffers and the target's stay where they were allocated."""
    made, where, kept = [], [], []
    new_cache, keep_rows = target.new_cache, KVCache.keep_rows

    def watched(rows, capacity):
        made.append(new_cache(rows, capacity))
        where.append([k.untyped_storage().data_ptr() for k in made[-1].keys])
        return made[-1]

    def counting(cache, rows):
        before = len(cache.lengths)
        moved = sum(row != place for place, row in enumerate(rows))
        kept.append((before - len(rows), moved))
        keep_rows(cache, rows)

    monkeypatch.setattr(target, "new_cache", watched)
    monkeypatch.setattr(KVCache, "keep_rows", counting)
    together(target, make_method("xpress", target, B))
    (cache,) = made
    assert where == [[k.untyped_storage().data_ptr() for k in cache.keys]]
    assert sum(left for left, _ in kept) == 2 * len(PROMPTS)
    assert all(moved <= left for left, moved in kept)


@given(finished=st.lists(st.booleans(), max_size=12))
@settings(derandomize=True)
def test_gaps_are_closed_by_the_last_rows(finished):
    left = close_gaps(finished)
    unfinished = [row for row, done in enumerate(finished) if not done]
    assert sorted(left) == unfinished
    for place, row in enumerate(left):
        assert row == place or (row >= len(left) and finished[place])


def test_seconds_are_the_batch_s_until_a_text_left_it(target):
    ours = together(target, make_method("xpress", target, B))
    by_rounds = sorted(ours, key=lambda text: len(text.rounds))
    times = [text.decode_seconds for text in by_rounds]
    assert times == sorted(times) and times[0] == 0 < times[1] < times[-1]
    assert len({text.seconds["prefill"] for text in ours}) == 1


# --- random numbers -----------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_draw_what_they_would_draw_alone(dtype):
    rows = RowStreams([Streams(seed) for seed in (3, 1, 3, 8)])
    counts = [5, 0, 5, 2]
    numbers = uniform((4, 5), rows.accept, dtype=dtype, counts=counts)
    more = uniform((4, 7, 2), rows.accept, dtype=dtype)
    p = torch.rand(6, 9, dtype=dtype, generator=torch.Generator().manual_seed(0))
    drawn = [draw(p[:4], rows.residual), draw(p[2:], rows.residual)]
    for row, (seed, count) in enumerate(zip((3, 1, 3, 8), counts, strict=True)):
        own = Streams(seed)
        alone = torch.rand((1, count), generator=own.accept, dtype=dtype)
        assert torch.equal(numbers[row, :count], alone[0])
        assert (numbers[row, count:] == 1).all()
        then = torch.rand((1, 7, 2), generator=own.accept, dtype=dtype)
        assert torch.equal(more[row], then[0])
        assert drawn[0][row] == draw(p[row : row + 1], own.residual)
        assert drawn[1][row] == draw(p[row + 2 : row + 3], own.residual)


@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 1.0]),
    one_hot=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_padding_behind_a_short_proposal_is_never_judged(
    counts, temperature, one_hot, seed
):
    """A row's verdict is that of its own drafts, verified alone."""
    generator, rows = torch.Generator().manual_seed(seed), len(counts)
    logits = torch.randn(rows, 5, 3, generator=generator, dtype=torch.float64)
    q = torch.rand(rows, 4, 3, generator=generator, dtype=torch.float64)
    q = q / q.sum(-1, keepdim=True)
    drafts = torch.randint(3, (rows, 4), generator=generator)
    drafts = torch.where(torch.rand(rows, 4) < 0.5, logits[:, :4].argmax(-1), drafts)
    sampling = Sampling(temperature)
    streams = RowStreams([Streams(seed + row) for row in range(rows)])
    q = None if one_hot else q
    ours = accept(logits, drafts, q, sampling, streams, counts)
    for row, count in enumerate(counts):
        one, width = slice(row, row + 1), slice(count)
        own = q if q is None else q[one, width]
        case = (logits[one, : count + 1], drafts[one, width], own)
        theirs = accept(*case, sampling, Streams(seed + row))
        assert ours.accepted[row] == theirs.accepted <= count
        assert ours.next_token[row] == theirs.next_token


# --- laws ---------------------------------------------------------------------

STARTS = [[0, 1], [1, 2, 2], [2], [2, 0, 1, 1, 0], [0, 1, 2]]
RIGHT, WRONG = 1e-4, 1e-6
V, TOKENS, REPEATS = 3, 3, 400


def law_p_values(method, target, sampling, streams=None) -> list[float]:
    """Chi-square of each start's texts, several rows of every start in one batch."""
    prompts = [start for _ in range(8) for start in STARTS]
    seen = {tuple(start): [] for start in STARTS}
    for repeat in range(REPEATS // 8):
        out = decode_batch(
            target,
            method,
            prompts,
            sampling=sampling,
            max_new_tokens=TOKENS,
            seeds=[repeat * len(prompts) + row for row in range(len(prompts))],
        )
        for prompt, text in zip(prompts, out, strict=True):
            seen[tuple(prompt)].append(text.tokens)
    p = sampling.probabilities(target.logits)
    values = []
    for start, found in seen.items():
        ends = (start * 2)[-2:]  # the table's view of a text of one token
        law = exact_law(p, *ends, TOKENS)
        values.append(chi_square(torch.tensor(found), law, V))
    return values


@pytest.mark.parametrize(
    ("name", "passes", "sampling", "threshold"),
    [
        ("dflash", 0, Sampling(1.0), 0.0),
        ("markov", 0, Sampling(0.7, top_p=0.9), 0.0),
        ("xpress", 2, Sampling(1.0), 0.0),
        ("xpress", None, Sampling(1.0, draft_temperature=0), 0.0),
        ("markov-rnn", 0, Sampling(1.0), 0.55),
        ("xpress", 1, Sampling(1.0), 0.55),
    ],
)
def test_rows_side_by_side_keep_the_law(name, passes, sampling, threshold):
    target = EnumerableTarget(V)
    method = target.method(name, 4, passes, threshold=threshold)
    assert min(law_p_values(method, target, sampling)) > RIGHT


def test_rows_that_share_their_numbers_are_seen(monkeypatch):
    """Each row by itself would look right; eight equal rows are one text."""

    def echo(rows):
        echoes = [Streams(0) for _ in rows[1:]]
        for name, generator in vars(rows[0].streams).items():
            for streams in echoes:
                getattr(streams, name).set_state(generator.get_state())
        return RowStreams([rows[0].streams, *echoes])

    monkeypatch.setattr(batching, "streams_of", echo)
    target = EnumerableTarget(V)
    method = target.method("xpress", 4, 2)
    assert max(law_p_values(method, target, Sampling(1.0))) < WRONG


# --- mistakes that the comparisons must see -----------------------------------


def differs(target, method, temperature) -> bool:
    how = {"sampling": Sampling(temperature)}
    ours, theirs = together(target, method, **how), alone(target, method, **how)
    return any(
        bare(a.rounds) != bare(b.rounds) for a, b in zip(ours, theirs, strict=True)
    )


def one_stream_for_all(monkeypatch, _target):
    first = []

    def shared(rows):
        first.append(rows[0].streams)
        return RowStreams([first[0]] * len(rows))

    monkeypatch.setattr(batching, "streams_of", shared)


def padding_is_seen(monkeypatch, _target):
    places = BlockDrafting._places
    monkeypatch.setattr(
        BlockDrafting, "_places", lambda self, request: (places(self, request)[0], None)
    )


def blocks_stand_behind_the_padding(monkeypatch, _target):
    """Positions go on after the padding, as its keys do."""
    places = BlockDrafting._places

    def late(self, request):
        positions, visible = places(self, request)
        new = request.taps.shape[1]
        return positions[:, :1] + torch.arange(new + B), visible

    monkeypatch.setattr(BlockDrafting, "_places", late)


def all_rows_stand_where_the_longest_does(monkeypatch, target):
    forward = target.forward

    def shifted(tokens, cache, *args, **kwargs):
        new = tokens.shape[1]
        places = (cache.length + torch.arange(new)).expand(len(tokens), -1)
        keys = torch.arange(cache.length + new)
        held = torch.tensor(cache.lengths)[:, None] + torch.arange(new)
        visible = keys <= held[:, :, None]
        wrong = {"positions": places, "visible": visible}
        return forward(tokens, cache, *args, **(kwargs | wrong))

    monkeypatch.setattr(target, "forward", shifted)


@pytest.mark.parametrize(
    ("mistake", "temperature"),
    [
        (one_stream_for_all, 1.0),
        (padding_is_seen, 0.0),
        (blocks_stand_behind_the_padding, 0.0),
        (all_rows_stand_where_the_longest_does, 0.0),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_mistakes_are_seen(mistake, temperature, monkeypatch):
    target = toys.tiny_target()
    method = make_method("xpress", target, B)
    assert not differs(target, method, temperature)
    mistake(monkeypatch, target)
    assert differs(target, method, temperature)


# --- refusals -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "how", "message"),
    [
        ([], {}, "no prompts"),
        ([[3], []], {}, "prompt is empty"),
        ([[3], [toys.VOCAB]], {}, "must lie in 0..39"),
        ([[3], [4] * 240], {"max_new_tokens": 16}, "Prompt of 240 and 16 new tokens"),
        ([[3], [4]], {"max_new_tokens": [5, 0]}, "must be 1 or more, not 0"),
        ([[3], [4]], {"max_new_tokens": [5]}, "1 values of max_new_tokens for 2"),
        ([[3]], {"seeds": [1, 2]}, "2 seeds for 1 prompts"),
    ],
)
def test_impossible_requests_are_refused_before_any_model_runs(
    target, prompts, how, message, monkeypatch
):
    monkeypatch.setattr(target, "forward", None)
    with pytest.raises(LabError, match=message):
        decode_batch(target, PlainDecoding(), prompts, **how)


@pytest.mark.parametrize("rows", [1, 2])
def test_trees_are_refused(target, rows):
    method = tree_method("xpress+ddtree", make_method("xpress", target, B))
    with pytest.raises(LabError, match=r"xpress\+ddtree drafts token trees"):
        decode_batch(target, method, PROMPTS[:rows])


# --- real weights -------------------------------------------------------------


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def exact_lab():
    return load_lab("pocket", device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def questions():
    """Sixteen prompts, in turns from the three families."""
    folder = prompt_folder("pocket")
    families = [read_prompts(folder, family, 6) for family in FAMILIES]
    return [prompt for row in zip(*families, strict=True) for prompt in row][:16]


@pytest.mark.parametrize("kind", ["ar", "dflash", "markov", "xpress"])
def test_sixteen_pocket_prompts_are_answered_as_one_by_one(lab, questions, kind):
    """Greedy in float32, each ending where it ends."""
    prompts = [lab.target.encode(question) for question in questions]
    method = lab.method(kind)
    ours = decode_batch(lab.target, method, prompts)
    theirs = [decode(lab.target, method, prompt) for prompt in prompts]
    assert [t.tokens for t in ours] == [t.tokens for t in theirs]
    assert [t.text for t in ours] == [t.text for t in theirs]
    assert len({len(prompt) for prompt in prompts}) > 8
    assert len({len(t.tokens) for t in ours}) > 8
    assert sum(t.tokens[-1] in lab.target.stop_ids for t in ours) > 8


@pytest.mark.parametrize("kind", ["ar", "dflash", "markov", "xpress"])
def test_sixteen_sampled_answers_are_those_of_single_runs(exact_lab, questions, kind):
    """In float64, where no draw lies within rounding of a threshold."""
    lab = exact_lab
    prompts = [lab.target.encode(question) for question in questions]
    method, seeds, how = lab.method(kind), range(16), {"sampling": Sampling(1.0)}
    ours = together(lab.target, method, prompts, [48] * 16, seeds, **how)
    theirs = alone(lab.target, method, prompts, [48] * 16, seeds, **how)
    assert [t.tokens for t in ours] == [t.tokens for t in theirs]
