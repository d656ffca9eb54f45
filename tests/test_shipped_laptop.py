"""The laptop tier's shipped weights: whole, carded, lossless on their target's shape.

SmolLM2 itself is not in the repository. A random model of its shape stands in: drafts
for it are bad, and its greedy text must come out all the same.
"""

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from xpress_lab.checkpoints import load_arm
from xpress_lab.decoding import decode
from xpress_lab.files import read_json
from xpress_lab.lab import arm_method
from xpress_lab.methods import PlainDecoding
from xpress_lab.ngram import load_ngram
from xpress_lab.presets import get_tier
from xpress_lab.target import Target

ARMS = ("dflash", "markov", "xpress")
FOLDER = get_tier("laptop").folder()
PROMPT = [1, 4093, 198, 2683, 314, 260]


@pytest.fixture(scope="module")
def shaped_like_smollm2():
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return Target(AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("kind", ARMS)
def test_arms_load_and_lose_nothing(shaped_like_smollm2, kind):
    target = shaped_like_smollm2
    arm = load_arm(FOLDER / kind, target)
    assert arm.kind == kind and len(arm.draft_ids) == 4_096
    method = arm_method(arm, target, passes=4)
    how = {"max_new_tokens": 12, "stop_ids": ()}
    text = decode(target, method, PROMPT, **how)
    assert text.tokens == decode(target, PlainDecoding(), PROMPT, **how).tokens


def test_the_three_gram_is_of_the_target_s_words():
    table = load_ngram(FOLDER / "ngram", 49_152)
    assert table is not None


def test_all_are_carded_trained_alike_and_fit_in_35_mb():
    digest = read_json(FOLDER / "responses" / "training.json")["target"]
    logs = [read_json(FOLDER / kind / "training.json") for kind in ARMS]
    assert len({(log["steps"], log["seed"]) for log in logs}) == 1
    for kind in ARMS:
        card = (FOLDER / kind / "README.md").read_text("utf-8")
        assert f"Digest of its weights: {digest}" in card
        for heading in ("**Data.**", "**Recipe.**", "**Cost.**", "**How it does.**"):
            assert heading in card
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert size < 35_000_000
