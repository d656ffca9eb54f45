"""What is replayed writes the texts that the usual way writes.

Without CUDA nothing is recorded, but all the rest is the same: buffers of fixed shape,
caches written at a place on the device, masks in place of slices, counted noise.
"""

import gc
import weakref

import pytest
import torch
import toys
from test_distribution import RIGHT, WRONG, loop_p_value
from torch.testing import assert_close

from xpress_lab.batching import decode_batch
from xpress_lab.benchmarks.identity import logits_by_width
from xpress_lab.block_method import BlockMethod
from xpress_lab.decoding import decode
from xpress_lab.draft_laws import ReadOut
from xpress_lab.errors import LabError
from xpress_lab.graphs import STEP, WARM_UPS, CachePool, Graph, LentCache
from xpress_lab.kernels import plain
from xpress_lab.lab import load_lab
from xpress_lab.methods import PlainDecoding
from xpress_lab.replayed import (
    MOST_TEMPERATURES,
    ReplayedDrafting,
    ReplayedMethod,
    ReplayedTarget,
)
from xpress_lab.sampling import Sampling

B = 5
PROMPTS = [[3], list(toys.PROMPT), list(range(2, 25))]  # shorter, longer than a block
METHODS = [
    ("dflash", 0),
    ("markov", 0),
    ("markov-rnn", 0),
    ("xpress", 0),
    ("xpress", 2),
    ("xpress", 9),
    ("xpress", None),
]


class Recorded(Graph):
    """A graph as CUDA has it: the work is run when it is made, several times, and
    outputs stay where they are."""

    @torch.inference_mode()
    def __init__(self, work, *inputs):
        super().__init__(work, *inputs)
        for _ in range(WARM_UPS + 1):
            self.run()
        kept = [None if out is None else out.clone() for out in self.outputs]

        def replay():
            for place, new in zip(kept, work(*self.inputs), strict=True):
                if place is not None:
                    place.copy_(new)

        self.outputs, self.replay = kept, replay


@pytest.fixture(autouse=True)
def recordings(monkeypatch) -> list[Graph]:
    """Every recording that a test makes, in a list."""
    made = []

    def make(*work):
        made.append(Recorded(*work))
        return made[-1]

    for module in ("replayed", "kernels.runner"):
        monkeypatch.setattr(f"xpress_lab.{module}.Graph", make)
    return made


@pytest.fixture
def target() -> ReplayedTarget:
    """A new one for each test, so that each makes its own recordings."""
    return ReplayedTarget(toys.tiny_target().model)


def pair(target, name: str, passes: int | None, **drafter):
    """The same random drafter and head, the usual way and replayed."""
    usual = toys.make_method(name, target, B, passes, **drafter)
    replayed = ReplayedMethod(name, target, usual.drafter, usual.head, passes)
    return usual, replayed


def written(texts) -> list:
    return [(t.tokens, [(r.accepted, r.block) for r in t.rounds]) for t in texts]


@pytest.mark.parametrize(
    ("name", "passes", "anchor_first"),
    [
        *((*method, False) for method in METHODS),
        ("dflash", 0, True),
        ("markov", 0, True),
    ],
)
def test_greedy_texts_are_those_of_the_usual_way(target, name, passes, anchor_first):
    """Text after text on the same buffers, of one target and of the plain one."""
    plain_target = toys.tiny_target()
    usual, replayed = pair(target, name, passes, anchor_first=anchor_first)
    how = {"max_new_tokens": 40}
    found = [decode(target, replayed, p, **how) for p in (*PROMPTS, PROMPTS[0])]
    expected = [decode(plain_target, usual, p, **how) for p in (*PROMPTS, PROMPTS[0])]
    assert written(found) == written(expected)


def test_plain_decoding_is_replayed_too(target):
    found = decode(target, PlainDecoding(), toys.PROMPT, max_new_tokens=30).tokens
    assert found == toys.generate(toys.tiny_target(), toys.PROMPT, 30)


def test_calls_are_replayed_and_not_merely_made(target, recordings):
    """One recording for each kind of work, however long the text."""
    _, replayed = pair(target, "xpress", 3)
    decode(target, replayed, toys.PROMPT, max_new_tokens=60)
    assert len(recordings) == 3  # verification, drafter, passes
    decode(target, replayed, PROMPTS[2], max_new_tokens=60)
    assert len(recordings) == 3


@pytest.mark.parametrize("candidates", [0, 2, 16])
def test_passes_to_the_fixed_point_are_recorded_too(target, recordings, candidates):
    usual, _ = pair(target, "xpress", None)
    block = "xpress", target, usual.drafter, usual.head, None
    replayed = ReplayedMethod(*block, candidates=candidates)
    how = {"max_new_tokens": 40}
    found = [decode(target, replayed, p, **how) for p in PROMPTS]
    assert written(found) == written([decode(target, usual, p, **how) for p in PROMPTS])
    assert len(recordings) == 4  # verification, drafter, the first pass, one more
    passes = [r.passes for text in found for r in text.rounds]
    assert 1 <= min(passes) <= max(passes) < B


def test_recordings_of_many_temperatures_make_room_for_each_other(target):
    _, replayed = pair(target, "xpress", 2)
    for number in range(1, MOST_TEMPERATURES + 3):
        how = {"sampling": Sampling(number / 10), "max_new_tokens": 10}
        decode(target, replayed, toys.PROMPT, **how)
    assert list(replayed.solving) == [n / 10 for n in range(3, MOST_TEMPERATURES + 3)]


def test_methods_by_name_are_recorded_once(recordings):
    lab = load_lab(replay=True)
    for prompt in ("What is 12 + 30?", "What is 7 + 5?"):
        lab.generate(prompt, "xpress", max_new_tokens=20, keep_trace=False)
    assert len(recordings) == 3


def test_outputs_of_calls_can_be_kept(target):
    text = toys.PROMPT, PROMPTS[2], 4
    found = logits_by_width(target, *text)
    assert_close(found, logits_by_width(toys.tiny_target(), *text))


def test_caches_serve_callers_outside_inference_mode(target):
    with torch.inference_mode():
        target.new_cache(1, 8)
    with torch.no_grad():
        target.forward(
            torch.tensor([PROMPTS[1]]), target.new_cache(1, 8), last_only=True
        )


@pytest.mark.parametrize(
    ("name", "passes"), [*METHODS, ("dflash", 6), ("dflash", None)]
)
def test_passes_are_those_that_were_made(target, name, passes):
    usual, replayed = pair(target, name, passes)
    texts = [
        decode(target, m, toys.PROMPT, max_new_tokens=30) for m in (usual, replayed)
    ]
    counts = [[r.passes for r in text.rounds] for text in texts]
    # A recording cannot stop early.
    assert all(a <= b for a, b in zip(*counts, strict=True))
    if name != "xpress":
        assert counts[0] == counts[1]


def test_a_method_that_nobody_holds_is_freed(target):
    _, replayed = pair(target, "xpress", 3)
    decode(target, replayed, toys.PROMPT, max_new_tokens=20)
    watched = weakref.ref(replayed)
    gc.disable()
    try:
        del replayed
        assert watched() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("name", "passes", "temperature", "candidates"),
    [
        ("dflash", 0, 1.0, 0),
        ("markov", 0, 0.6, 0),
        ("xpress", 2, 0.6, 0),
        ("xpress", None, 1.0, 0),
        ("xpress", 1, 1.0, 2),
        ("xpress", None, 0.6, 2),
    ],
)
def test_sampled_texts_follow_the_law(name, passes, temperature, candidates):
    target = toys.EnumerableTarget()
    method = replayed_on(target, name, passes, candidates=candidates)
    assert loop_p_value(method, target, Sampling(temperature)) > RIGHT


def test_q_of_other_scores_is_seen(monkeypatch):
    """The power of the test above: q of the bare drafter for refined drafts."""
    monkeypatch.setattr(plain, "scores", lambda base, *_: base)
    read_out = lambda w2, z, base, noise=None: plain.choose(  # noqa: E731
        base + torch.nn.functional.linear(z, w2), noise
    )
    monkeypatch.setattr(plain, "read_out", read_out)
    target = toys.EnumerableTarget()
    assert loop_p_value(replayed_on(target, "xpress", 2), target) < WRONG


@pytest.mark.parametrize("wrong", ["of", "at"])
def test_either_half_of_q_is_needed(monkeypatch, wrong):
    """As above: chances of drafts that are off, or the law behind a refused one."""
    right = getattr(ReadOut, wrong)
    monkeypatch.setattr(ReadOut, wrong, lambda law, *asked: right(law, *asked).sqrt())
    target = toys.EnumerableTarget()
    assert loop_p_value(replayed_on(target, "xpress", 2), target) < WRONG


def test_q_is_never_a_table(monkeypatch):
    """Of the draft's law one slot a row is made, and that once a round at most."""
    made, right = [], ReadOut.at
    monkeypatch.setattr(
        ReadOut, "at", lambda law, *asked: made.append(right(law, *asked)) or made[-1]
    )
    target = ReplayedTarget(toys.tiny_target().model)
    _, replayed = pair(target, "xpress", 2)
    how = {"sampling": Sampling(1.0), "max_new_tokens": 30}
    text = decode(target, replayed, toys.PROMPT, **how)
    assert len(made) == len(text.rounds)
    assert {tuple(law.shape) for law in made} == {(1, target.vocab_size)}


def replayed_on(target, name: str, passes: int | None, **how) -> ReplayedMethod:
    usual = target.method(name, 4, passes)
    return ReplayedMethod(name, target, usual.drafter, usual.head, passes, **how)


@pytest.mark.parametrize(("name", "passes"), METHODS)
def test_a_trace_changes_no_sampled_text(target, name, passes):
    """With a trace passes are made one by one, on the same noise."""
    _, replayed = pair(target, name, passes)
    how = {"sampling": Sampling(1.0), "max_new_tokens": 40, "seed": 3}
    plainly = decode(target, replayed, toys.PROMPT, **how)
    traced = decode(target, replayed, toys.PROMPT, keep_trace=True, **how)
    assert written([plainly]) == written([traced])
    assert plainly.tokens != decode(target, replayed, toys.PROMPT, **how | {"seed": 4})


@pytest.mark.parametrize(
    "sampling", [Sampling(0.8, top_k=5), Sampling(1.0, draft_temperature=0)]
)
def test_filters_and_argmax_drafts_draw_as_usual(target, sampling):
    usual, replayed = pair(target, "xpress", 2)
    how = {"sampling": sampling, "max_new_tokens": 40, "seed": 5}
    texts = [decode(target, m, toys.PROMPT, **how) for m in (usual, replayed)]
    assert written(texts[:1]) == written(texts[1:])


def test_batches_run_as_usual(target):
    usual, replayed = pair(target, "xpress", 2)
    for prompts in (PROMPTS, PROMPTS[:1]):
        found = decode_batch(target, replayed, prompts, max_new_tokens=30)
        expected = decode_batch(toys.tiny_target(), usual, prompts, max_new_tokens=30)
        assert written(found) == written(expected)


def test_a_tier_can_be_replayed():
    usual, replayed = load_lab(), load_lab(replay=True)
    assert isinstance(replayed.target, ReplayedTarget)
    for method in ("ar", "markov", "xpress", "xpress+ddtree"):
        texts = [
            lab.generate(
                "What is 12 + 30?", method, max_new_tokens=30, keep_trace=False
            )
            for lab in (usual, replayed)
        ]
        assert texts[0].tokens == texts[1].tokens
    assert isinstance(replayed.method("xpress").begin(64), ReplayedDrafting)
    assert type(usual.method("xpress")) is BlockMethod


# --- recordings, buffers and pools --------------------------------------------


def test_a_graph_works_on_buffers():
    graph = Graph(lambda a, b: (a + b, None), torch.zeros(2), torch.zeros(1))
    mine = torch.ones(2)
    first, nothing = graph(mine, 3)
    assert first.tolist() == [4, 4] and nothing is None
    mine.fill_(9)  # buffers are the graph's own
    assert graph.outputs[0].tolist() == [4, 4]
    with pytest.raises(RuntimeError):
        graph(torch.ones(3), 1)  # another shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_recording_that_cannot_be_made_is_replaced_by_the_work():
    def work(x):
        return (x * int(x.sum()),)  # a look at a value

    with pytest.warns(UserWarning, match="No CUDA graph"):
        graph = Graph(work, torch.ones(2, device="cuda"))
    assert graph(torch.full((2,), 2.0))[0].tolist() == [8, 8]


def cache_of(capacity: int) -> LentCache:
    return LentCache(1, 1, 1, capacity, 2)


def test_a_cache_comes_back_when_nobody_holds_it():
    pool = CachePool(cache_of)
    gc.disable()  # it must not take a collection
    try:
        first, second = pool.lend(10), pool.lend(20)
        buffers = first.keys[0].data_ptr(), second.keys[0].data_ptr()
        assert len(set(buffers)) == 2 and first.capacity == STEP
        first.advance(7)
        del first
        again = pool.lend(STEP)
        assert again.keys[0].data_ptr() == buffers[0] and again.lengths == [0]
        assert pool.lend(STEP + 1).capacity == 2 * STEP
    finally:
        gc.enable()


def test_a_text_gives_its_buffers_back(target):
    _, replayed = pair(target, "xpress", 3)
    gc.disable()
    try:
        for _ in range(3):
            decode(target, replayed, toys.PROMPT, max_new_tokens=20)
        assert [len(free) for free in target.pool.free.values()] == [1]
        assert [len(free) for free in replayed.pool.free.values()] == [1]
    finally:
        gc.enable()


def test_a_full_cache_is_refused(target):
    cache = target.new_cache(1, STEP)
    cache.advance(STEP - 2)
    with pytest.raises(LabError, match="is full"):
        target.forward(torch.tensor([[1, 2, 3]]), cache)
