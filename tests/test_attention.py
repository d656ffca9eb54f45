"""Grouped attention: the stock function's numbers, and the owner's model untouched."""

import pytest
import torch
import toys
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

from xpress_lab import LabError
from xpress_lab.attention import NAME
from xpress_lab.decoding import decode
from xpress_lab.methods import PlainDecoding
from xpress_lab.target import Target


def llama(heads: int, shared: int) -> Target:
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=8 * heads,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // shared,
        intermediate_size=48,
    )
    torch.manual_seed(0)
    return Target(LlamaForCausalLM(config).double())


@pytest.mark.parametrize("heads, shared", [(4, 1), (4, 2), (6, 3), (4, 4)])
@pytest.mark.parametrize("new", [1, 5])
def test_it_gives_the_stock_functions_states(heads, shared, new):
    target = llama(heads, shared)
    tokens = torch.randint(40, (2, 12 + new), generator=torch.manual_seed(1))
    stock = target.model(tokens).logits
    cache = target.new_cache(2, 32)
    first = target.forward(tokens[:, :12], cache).logits
    second = target.forward(tokens[:, 12:], cache).logits
    assert_close(torch.cat([first, second], dim=1), stock)


def test_the_owners_attention_comes_back():
    target = toys.tiny_target()
    before = target.model.config._attn_implementation
    assert before != NAME
    target.forward(torch.tensor([toys.PROMPT]), target.new_cache(1, 8))
    assert target.model.config._attn_implementation == before
    with pytest.raises(LabError, match="full"):
        target.forward(torch.tensor([toys.PROMPT]), target.new_cache(1, 2))
    assert target.model.config._attn_implementation == before


def test_a_model_loaded_for_eager_attention_keeps_its_text():
    """Such a model reads masks of another kind; the loop brings its own attention."""
    stock, eager = toys.tiny_target(), toys.tiny_target()
    eager.model.config._attn_implementation = "eager"
    texts = [
        decode(target, PlainDecoding(), toys.PROMPT, max_new_tokens=24).tokens
        for target in (stock, eager)
    ]
    assert texts[0] == texts[1]
