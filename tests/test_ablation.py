"""What the parts of the shipped head are worth: the measuring, not the figures."""

import pytest
import torch

from xpress_lab import load_lab
from xpress_lab.benchmarks.ablation import BARE, VARIANTS, WHOLE, ablate, worth
from xpress_lab.benchmarks.blocks import real_blocks
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.presets import FAMILIES


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def prompts():
    folder = prompt_folder("pocket")
    return {name: read_prompts(folder, name, limit=2) for name in FAMILIES}


@pytest.fixture(scope="module")
def rows(lab, prompts):
    return ablate(lab, prompts, (0.0, 1.0), max_new_tokens=48)


def test_real_blocks_are_what_the_loop_drafted(lab, prompts):
    flat = [prompt for texts in prompts.values() for prompt in texts]
    blocks = real_blocks(lab, flat, max_new_tokens=40)
    texts = [lab.generate(prompt, max_new_tokens=40) for prompt in flat]
    rounds = [r for text in texts for r in text.rounds]
    assert blocks.drafts.tolist() == [r.block[1:] for r in rounds]
    assert blocks.previous[:, 1:].tolist() == [r.block[:-1] for r in rounds]
    # One more pass on a block that has settled says what it says already.
    arm = lab.arm("xpress")
    again = blocks.base + arm.head(blocks.hidden, blocks.previous)
    settled = [i for i, r in enumerate(rounds) if r.trace[-1] == r.trace[-2]]
    assert len(settled) > 3
    assert torch.equal(again.argmax(-1)[settled], blocks.drafts[settled])
    # The token before the anchor comes from the text.
    first = lab.target.encode(flat[0])
    assert blocks.previous[0, 0] == first[-1]
    assert blocks.previous[0, 1] == texts[0].tokens[0]


def test_every_variant_decodes_every_text(rows):
    assert set(rows["variant"]) == {*VARIANTS, BARE}
    assert (rows.groupby(["variant", "temperature"]).size() == 6).all()
    greedy = rows[rows["temperature"] == 0]
    assert greedy["same_text"].all()  # a maimed head slows, and spoils nothing
    assert not rows[rows["temperature"] == 1]["same_text"].all()


def test_the_whole_and_the_bare_variant_are_the_lab_s_own(lab, prompts, rows):
    for variant, passes in ((WHOLE, 6), (BARE, 0)):
        own = rows[(rows["variant"] == variant) & (rows["temperature"] == 0)]
        texts = [
            lab.generate(prompt, "xpress", passes=passes, max_new_tokens=48)
            for some in prompts.values()
            for prompt in some
        ]
        assert list(own["verify_steps"]) == [len(text.rounds) for text in texts]


def test_worth_pools_and_compares(rows):
    lines = worth(rows).set_index(["temperature", "variant"])
    for (temperature, variant), line in lines.iterrows():
        at = rows[(rows["temperature"] == temperature) & (rows["variant"] == variant)]
        tau = (at["new_tokens"].sum() - len(at)) / at["verify_steps"].sum()
        assert line["tau"] == pytest.approx(tau)
        assert line["tau_low"] <= line["tau"] <= line["tau_high"]
        whole = lines.loc[(temperature, WHOLE), "tau"]
        assert line["share"] == pytest.approx(line["tau"] / whole)
    assert (lines.xs(WHOLE, level=1)[["share_low", "share_high"]] == 1).all(axis=None)
    assert lines.loc[(0.0, BARE), "share"] < 1
