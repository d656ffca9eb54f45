"""A few rows times a table: the same products, whatever rows are added on the way."""

import pytest
import torch
from torch.testing import assert_close

from xpress_lab.products import times_table


@pytest.mark.parametrize(
    "shape", [(1,), (2,), (1, 3), (2, 3), (1, 7), (7,), (8,), (0,)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_are_those_of_a_linear_layer(shape, dtype):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, 5, generator=generator).to(dtype)
    table = torch.randn(90, 5, generator=generator).to(dtype)
    kept = x.clone()
    found = times_table(x, table)
    assert found.shape == (*shape, 90) and found.dtype == dtype
    assert_close(found, torch.nn.functional.linear(x, table))
    found.add_(1)  # what is returned is the caller's own
    assert torch.equal(x, kept)
