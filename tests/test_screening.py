"""A screen in bfloat16 never clears what an exact pass would refuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xpress_lab.screening import ROUNDING, Screen, screen_for

exact = settings(deadline=None, derandomize=True, max_examples=100)


def vectors(generator, kind: str, *shape: int) -> torch.Tensor:
    """Random, all of one sign, or such that each entry rounds as far as it can."""
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    if kind == "one sign":
        return values.abs()
    if kind == "worst":
        return torch.full(shape, 1 + 0.999 * ROUNDING, dtype=torch.float64)
    return values


@given(
    st.integers(0, 10_000),
    st.sampled_from(["random", "one sign", "worst"]),
    st.sampled_from([1, 3, 64, 300]),
    st.sampled_from([1e-6, 1.0, 1e4]),
)
@exact
def test_products_are_off_by_less_than_the_slack(seed, kind, rank, size):
    generator = torch.Generator().manual_seed(seed)
    w2 = vectors(generator, kind, 50, rank)
    z = size * vectors(generator, kind, 2, 3, rank)
    screen = Screen(w2)
    rough = torch.nn.functional.linear(z.bfloat16(), screen.rows).double()
    off = (rough - z @ w2.T).abs().amax(-1)
    assert (off < screen.slack(z)).all()
    if kind == "worst" and size == 1:  # nor is the slack far too wide
        assert (off > screen.slack(z) / 8).all()


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.3, 2.0]))
@exact
def test_what_is_cleared_is_the_exact_choice(seed, gap):
    """At every gap between the tokens, and some blocks are cleared, some are not."""
    generator = torch.Generator().manual_seed(seed)
    w2 = torch.randn(60, 8, generator=generator)
    z = torch.randn(1, 2, 8, generator=generator)
    base = gap * torch.randn(1, 2, 60, generator=generator)
    scores = base + z @ w2.T
    ids = scores.topk(2).indices  # the best two; anything else would be a mistake
    best = scores.amax(-1)
    assert not Screen(w2).clears(z, base, ids, best - 3 * scores.std())
    shuffled = (ids + 1) % 60
    if Screen(w2).clears(z, base, shuffled, scores.gather(-1, shuffled).amax(-1)):
        assert torch.equal(
            shuffled.gather(-1, scores.gather(-1, shuffled).argmax(-1, keepdim=True)),
            scores.argmax(-1, keepdim=True),
        )


def rival(advantage: float):
    """Token 1 is chosen; token 0 beats it by ``advantage``, unseen in bfloat16.

    Each entry of the rival's row and of z rounds down, by nearly u.
    """
    row = torch.full((8,), 1 + 0.99 * ROUNDING)
    w2, z = torch.stack([row, 0 * row]), row[None, None]
    base = torch.tensor([[[0.0, float(row @ row) - advantage]]])
    return Screen(w2), z, base, torch.tensor([[[1]]]), base[..., 1]


@pytest.mark.parametrize("advantage", [0.01, 0.0])
def test_a_rival_within_rounding_is_not_cleared(advantage):
    """It would be, were there no slack."""
    screen, *case = rival(advantage)
    assert not screen.clears(*case)
    screen.longest = torch.tensor(0.0)
    assert screen.clears(*case)


def test_a_rival_far_below_is_cleared():
    screen, *case = rival(-1.0)
    assert screen.clears(*case)


def test_one_slot_that_is_not_clear_is_enough_to_refuse():
    screen, z, base, ids, best = rival(-1.0)
    twice = [torch.cat([x, x], 1) for x in (z, base, ids, best)]
    assert screen.clears(*twice)
    twice[1][0, 1, 0] += 2.0
    assert not screen.clears(*twice)


def test_inputs_are_left_alone():
    screen, z, base, ids, best = rival(-1.0)
    kept = base.clone()
    screen.clears(z, base, ids, best)
    assert torch.equal(base, kept)


def test_only_float32_on_a_cpu_is_screened():
    for dtype in (torch.float64, torch.bfloat16):
        assert screen_for(torch.ones(64, 8, dtype=dtype), 3) is None
    assert isinstance(screen_for(torch.ones(64, 8), 3), Screen | None)
