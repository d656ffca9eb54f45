"""Fixtures shared by the tests: targets that are slow to build more than once."""

import interpreted  # noqa: F401  before anything imports Triton
import matplotlib
import pytest
import torch
import toys
from transformers import LlamaConfig, LlamaForCausalLM

from xpress_lab.pocket.tokenizer import build_tokenizer
from xpress_lab.target import Target


@pytest.fixture(autouse=True)
def own_style():
    """Figure defaults that one test sets end with it, whatever the order of tests."""
    with matplotlib.rc_context():
        yield


@pytest.fixture
def house_style(own_style):
    """The lab's look, for a test that draws; its figures are closed behind it."""
    from matplotlib import pyplot

    from xpress_lab.viz.style import use_style

    use_style()
    yield
    pyplot.close("all")


@pytest.fixture(scope="session")
def target():
    """A random float64 Qwen3 with a tied head."""
    return toys.tiny_target(tied=True)


@pytest.fixture(scope="session")
def untied_target():
    return toys.tiny_target(tied=False)


@pytest.fixture(scope="session")
def greedy_text(target):
    """The tied target's greedy continuation of ``toys.PROMPT``, by transformers."""
    return toys.generate(target, toys.PROMPT, 170)


@pytest.fixture
def talker():
    """A tiny random Llama with the pocket tokenizer, which has a chat template."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=list(range(5, 40)),  # ends soon
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    return Target(LlamaForCausalLM(config), tokenizer)
