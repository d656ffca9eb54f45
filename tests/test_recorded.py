"""A recorded text judges drafts as the target would.

In float64 on random toys every chain method gives, along the recording, the very rounds
of the loop: accept counts, blocks, tokens, and what is judged beyond a text's end; rows
leave and move; taps may be recorded for several methods at once. A wrong recording is
seen, a tree is refused, and the runner's rows agree on the shipped pocket.
"""

from dataclasses import replace

import pytest
import torch
from test_batching import (
    BUDGETS,
    NAMES,
    PROMPTS,
    B,
    ScriptedRows,
    all_methods,
    assert_same,
)
from torch.testing import assert_close

from xpress_lab import load_lab
from xpress_lab.batching import decode_batch
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.rows import OF_A_BATCH
from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
from xpress_lab.errors import LabError
from xpress_lab.methods import PlainDecoding
from xpress_lab.recorded import RecordedTarget

BEYOND = B - 1


@pytest.fixture(scope="module")
def methods(target):
    return all_methods(target)


@pytest.fixture(scope="module")
def recorded(target, methods):
    taps = {tap for method in methods.values() for tap in method.tap_ids}
    return RecordedTarget(target, PROMPTS, max(BUDGETS) + BEYOND, taps)


@pytest.mark.parametrize("stops", [(), (19, 4)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_rounds_are_those_of_the_loop(target, recorded, methods, name, stops):
    how = {"max_new_tokens": BUDGETS, "stop_ids": stops}
    ours = decode_batch(recorded, methods[name], PROMPTS, **how)
    assert_same(ours, decode_batch(target, methods[name], PROMPTS, **how))
    kept = sum(r.accepted for text in ours for r in text.rounds)
    assert kept or name in ("ar", "xpress cut")


def test_what_lies_beyond_a_text_is_judged_as_well(target, recorded):
    """A last round may keep more drafts than the text has room for."""
    scripted = ScriptedRows(recorded.ids.tolist(), [[B - 1, 2, B - 1]] * 5, B)
    how = {"max_new_tokens": BUDGETS, "stop_ids": ()}
    ours = decode_batch(recorded, scripted, PROMPTS, **how)
    assert_same(ours, decode_batch(target, scripted, PROMPTS, **how))
    last = [text.rounds[-1] for text in ours if text.rounds]
    assert any(r.accepted + 1 > r.emitted for r in last)


def test_taps_are_those_of_the_target(target, recorded, methods):
    taps = methods["xpress 3"].tap_ids
    ids = recorded.ids[:1, :6]
    ours = recorded.forward(ids, recorded.new_cache(len(PROMPTS), 20), taps)
    theirs = target.forward(ids, target.new_cache(1, 9), taps)
    assert_close(ours.taps[0], theirs.taps[0])
    assert torch.equal(ours.logits[0].argmax(-1), recorded.ids[0, 1:7])


def test_another_text_is_seen(target, methods):
    """The comparison above can fail: one token changed in one text changes rounds."""
    wrong = RecordedTarget(
        target, PROMPTS, max(BUDGETS) + BEYOND, methods["markov"].tap_ids
    )
    place = len(PROMPTS[0]) + 9
    wrong.ids[0, place] = (wrong.ids[0, place] + 1) % target.vocab_size
    how = {"max_new_tokens": BUDGETS, "stop_ids": ()}
    ours = decode_batch(wrong, methods["markov"], PROMPTS, **how)
    theirs = decode_batch(target, methods["markov"], PROMPTS, **how)
    assert ours[0].rounds != theirs[0].rounds
    assert_same(ours[1:], theirs[1:])


def test_what_was_not_recorded_is_refused(recorded):
    with pytest.raises(LabError, match="5 texts of 54 tokens are recorded; 2 of 39"):
        recorded.new_cache(2, 40)
    with pytest.raises(LabError, match="recorded; 5 of 59 are asked for"):
        recorded.new_cache(5, 60)
    ids, cache = recorded.ids[:, :3], recorded.new_cache(len(PROMPTS), 20)
    with pytest.raises(LabError, match="one branch: it cannot judge a tree"):
        recorded.forward(ids, cache, visible=torch.ones(1, 3, 3, dtype=torch.bool))
    with pytest.raises(LabError, match=r"Layers \[0, 99\] are asked for"):
        recorded.forward(ids, cache, (0, 99))
    with pytest.raises(LabError, match="in this order, are not the recorded ones"):
        decode_batch(recorded, PlainDecoding(), PROMPTS[::-1], max_new_tokens=9)
    prompts = {"chat": ["Hello."]}
    alone = Bench(run_arms(["ar"], (None,)), prompts, recorded=True)
    with pytest.raises(LabError, match="side by side: batch_size must be 2 or more"):
        run_bench(load_lab("pocket", device="cpu"), alone)


def test_the_runner_counts_the_same_along_recordings(tmp_path):
    lab, folder = load_lab("pocket", device="cpu"), prompt_folder("pocket")
    prompts = {"math": read_prompts(folder, "math", 5)}
    arms = run_arms(("ar", "dflash", "xpress"), (6,))
    bench = Bench(arms, prompts, max_new_tokens=120, batch_size=3)
    theirs = run_bench(lab, bench, say=lambda _: None)
    assert (theirs["new_tokens"] < 120).any()  # some texts stop by themselves
    along, path = replace(bench, recorded=True), tmp_path / "rows.csv"
    ours = run_bench(lab, along, path, say=lambda _: None)
    assert same_rows(ours, theirs)
    # A file that lacks some rows of a batch gets those, and no other ones twice.
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*whole[:3], *whole[5:-1]]))
    assert same_rows(run_bench(lab, along, path, say=lambda _: None), theirs)
    before = path.read_bytes()
    run_bench(lab, along, path, say=lambda _: None)
    assert before == path.read_bytes()


def same_rows(ours, theirs) -> bool:
    key = ["method", "passes", "benchmark", "prompt_id"]
    skip = [*OF_A_BATCH, "git_commit"]
    ours, theirs = (f.sort_values(key, ignore_index=True) for f in (ours, theirs))
    return ours.drop(columns=skip).equals(theirs.drop(columns=skip))
