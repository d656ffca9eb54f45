"""Packed layers compute what plain ones do, and stand in for them everywhere.

Where the processor has no bfloat16 arithmetic that oneDNN uses, nothing is packed.
"""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from xpress_lab import load_lab
from xpress_lab.packed import PackedLinear, pack, packable

needs_packing = pytest.mark.skipif(
    not packable(torch.zeros(1, 1, dtype=torch.bfloat16)),
    reason="oneDNN has no bfloat16 products on this processor",
)


def layers(module: nn.Module) -> list[PackedLinear]:
    return [m for m in module.modules() if isinstance(m, PackedLinear)]


@needs_packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 8), (5, 16), (40,)], ids=str)
def test_products_are_those_of_the_plain_layer(shape, bias):
    torch.manual_seed(0)
    linear = nn.Linear(96, 200, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(*shape, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        ours, theirs = PackedLinear(linear.weight, linear.bias)(x), linear(x)
        exact = torch.nn.functional.linear(
            x.double(), linear.weight.double(), linear.bias.double() if bias else None
        )
    assert ours.shape == theirs.shape and ours.dtype == torch.bfloat16
    assert_close(ours, theirs, rtol=1.6e-2, atol=1e-2)
    # Rounded once, at the end, as the plain product is: by half of the last place.
    assert ((ours.double() - exact).abs() <= 1.01 * exact.abs() / 256 + 1e-5).all()


@needs_packing
def test_weights_stay_where_others_look_for_them():
    block = nn.Sequential(nn.Linear(8, 8), nn.ModuleDict({"a": nn.Linear(8, 4)}))
    block = block.to(torch.bfloat16)
    before, first = block.state_dict(), block[0].weight
    pack(block)
    assert len(layers(block)) == 2 and block[0].weight is first
    after = block.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    pack(block)  # once is enough
    assert len(layers(block)) == 2


@needs_packing
def test_a_packed_layer_is_copied_written_changed_and_cast():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)).to(torch.bfloat16)
    plain, x = copy.deepcopy(block), torch.randn(3, 16, dtype=torch.bfloat16)
    pack(block)
    twin = copy.deepcopy(block)
    again = pickle.loads(pickle.dumps(block))
    with torch.inference_mode():
        wanted = block(x)
        assert torch.equal(twin(x), wanted) and torch.equal(again(x), wanted)
        twin.load_state_dict({n: -v for n, v in plain.state_dict().items()})
        assert_close(twin(x), plain_negative(plain, x), rtol=2e-2, atol=1e-2)
        wide = block.float()
        assert_close(wide(x.float()), plain.float()(x.float()))


def plain_negative(plain: nn.Module, x: torch.Tensor) -> torch.Tensor:
    other = copy.deepcopy(plain)
    other.load_state_dict({n: -v for n, v in plain.state_dict().items()})
    return other(x)


def test_a_lab_packs_bfloat16_and_nothing_else():
    plain = load_lab("pocket", device="cpu")
    assert not layers(plain.target.model) + layers(plain.arm("xpress").drafter)
    lab = load_lab("pocket", device="cpu", dtype="bfloat16")
    modules = [*lab.target.model.modules(), *lab.arm("xpress").drafter.modules()]
    left = [m for m in modules if type(m) is nn.Linear]
    assert bool(left) != packable(lab.target.model.get_input_embeddings().weight)
    text = lab.generate("Anna lives in Oslo. Where does Anna live?", method="xpress")
    assert text.text and lab.target.model.num_parameters() == sum(
        p.numel() for p in plain.target.model.parameters()
    )
