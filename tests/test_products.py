"""A few rows times a table: the same products, whatever row is added on the way."""

import pytest
import torch
from torch.testing import assert_close

from xpress_lab import products
from xpress_lab.products import times_table

SHAPES = [(1,), (2,), (3,), (1, 3), (4,), (5,), (2, 3), (1, 7), (7,), (8,), (0,)]


@pytest.mark.parametrize("shape", SHAPES)
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


def test_rows_are_added_where_they_pay(monkeypatch):
    multiplied = []

    class Counting:
        pad = staticmethod(products.F.pad)

        @staticmethod
        def linear(x, table):
            multiplied.append(x.shape[:-1].numel())
            return x @ table.T

    monkeypatch.setattr(products, "F", Counting)
    for rows in range(1, 9):
        for dtype in (torch.float32, torch.float64):
            times_table(torch.ones(1, rows, 5, dtype=dtype), torch.ones(9, 5).to(dtype))
    made_up = {3: 4, 7: 8} if torch.backends.mkl.is_available() else {}
    assert multiplied[::2] == [made_up.get(rows, rows) for rows in range(1, 9)]
    assert multiplied[1::2] == list(range(1, 9))
