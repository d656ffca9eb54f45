"""transformers as an oracle: its loops around our models say what ours say.

Its dFlash mode drives the very drafter that we drive. Same weights, greedy, float32:
same drafts in every round, same text.
"""

import pytest
import torch

from xpress_lab import load_lab
from xpress_lab.benchmarks.identity import (
    compare_texts,
    first_difference,
    last_bit,
)
from xpress_lab.benchmarks.peers import (
    PEERS,
    HostedDrafter,
    generate,
    generate_dflash,
    race,
    speed_over,
)
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.presets import FAMILIES


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def prompts():
    folder = prompt_folder("pocket")
    return {name: read_prompts(folder, name, 3) for name in FAMILIES}


@pytest.mark.parametrize("kind", ["dflash", "xpress"])
def test_the_other_loop_sees_the_same_drafts(lab, prompts, kind):
    """Block by block at K = 0; the bare drafter of either arm."""
    drafter, seen = lab.arm(kind).drafter, []

    class Watched(HostedDrafter):
        def forward(self, **inputs):
            out = super().forward(**inputs)
            logits = lab.target.head(out.last_hidden_state[:, 1:])
            seen.append(logits.argmax(-1)[0].tolist())
            return out

    for texts in prompts.values():
        for prompt in texts:
            seen.clear()
            ids = lab.target.encode(prompt)
            ours = lab.generate(prompt, lab.block_method(kind, 0), max_new_tokens=96)
            theirs = generate_dflash(lab, ids, 96, Watched(drafter))
            assert ours.tokens == theirs
            blocks = [r.block[1:] for r in ours.rounds]
            # Near the limit transformers stops drafting, we draft to the end.
            assert len(blocks) - 1 <= len(seen) <= len(blocks)
            assert seen == blocks[: len(seen)]


def test_prompt_lookup_writes_the_same_text(lab, prompts):
    for texts in prompts.values():
        ids = lab.target.encode(texts[0])
        plain = generate(lab, ids, 64)
        assert generate(lab, ids, 64, **PEERS["prompt lookup"]) == plain


def test_a_race_holds_every_runner_once_a_text(lab, prompts):
    few = {name: texts[:1] for name, texts in prompts.items()}
    rows = race(lab, few, [lab.method("ar"), lab.method("xpress")], 2, 24)
    runners = {*PEERS, "dflash in transformers", "ours: ar", "ours: xpress"}
    assert set(rows["runner"]) == runners
    assert len(rows) == len(runners) * 3 * 2 and rows["same_text"].all()
    assert (rows["whole_seconds"] > rows["seconds"]).all()
    table = speed_over(rows)
    assert table.loc["generate", "speed"] == 1 and (table["low"] <= table["high"]).all()
    both = rows.pivot(index=["benchmark", "round"], columns="runner", values="seconds")
    ratio = both["ours: ar"] / both["ours: xpress"]
    over = speed_over(rows, "ours: ar").loc["ours: xpress"]
    assert over["speed"] == round(ratio.median(), 3)
    assert over["mean"] == round(ratio.mean(), 3)


def test_methods_are_compared_with_generate_text_by_text(lab, prompts):
    methods = [lab.method(name) for name in ("ar", "dflash", "xpress")]
    rows = compare_texts(lab, prompts, methods, 48)
    assert len(rows) == 3 * 3 * 3 and rows["same"].all()
    assert rows["margin"].isna().all()


def test_a_difference_is_placed_and_its_margin_is_the_target_s(lab, prompts):
    ids = lab.target.encode(prompts["chat"][0])
    plain = generate(lab, ids, 24)
    assert first_difference(lab.target, ids, plain, plain) is None
    changed = [*plain[:7], plain[7] + 1, *plain[8:]]
    found = first_difference(lab.target, ids, plain, changed)
    rows = torch.tensor([[*ids, *plain[:7]]])
    with torch.inference_mode():
        logits = lab.target.model(input_ids=rows, use_cache=False).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    assert found.place == 7 and found.margin == pytest.approx(best - second, rel=1e-3)
    assert found.ulps > 1e3  # no tie: such a difference would be a fault
    assert first_difference(lab.target, ids, plain, plain[:5]).place == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("value", [1.0, 1.5, 2.0, 7.75, 31.0, 0.3125, -5.0, 1024.0])
def test_the_last_bit_is_the_gap_to_the_next_number(value, dtype):
    here = torch.tensor(value, dtype=dtype)
    gap = torch.nextafter(here, here * 2) - here
    assert last_bit(value, dtype) == gap.abs().item()


def test_the_last_bit_at_zero_is_small_and_not_nothing():
    assert 0 < last_bit(0.0, torch.float32) <= torch.finfo(torch.float32).eps
