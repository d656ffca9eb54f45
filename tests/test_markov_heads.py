"""DSpark's heads compute what methods 3 says, slot by slot.

* Each equals its formula written out for one slot at a time, from its own tensors.
* The teacher-forced ``bias`` of a block equals left-to-right steps.
* The RNN head's state is carried: it starts at zero in each block, and a token moves
  all later slots; the memoryless heads see the last token alone.
"""

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from xpress_lab.checkpoints import MARKOV_TYPES

VOCAB, HIDDEN, RANK = 7, 5, 4
exact = settings(deadline=None, derandomize=True, max_examples=40)


def case(kind: str, seed: int, block: int):
    """A strong head, hidden states ``[2, B, H]`` and previous tokens ``[2, B]``."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(2, block, HIDDEN, generator=generator, dtype=torch.float64)
    previous = torch.randint(VOCAB, (2, block), generator=generator)
    return (
        toys.strong_head(kind, block, VOCAB, HIDDEN, RANK, seed=seed),
        hidden,
        previous,
    )


cases = st.builds(
    case,
    st.sampled_from(list(MARKOV_TYPES)),
    st.integers(0, 10_000),
    st.integers(2, 9),
)


def written_out(head, hidden: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """Bias ``[B-1, V]`` of one row, from the published tensors and formulas."""
    w, rows = head.state_dict(), []
    state = torch.zeros(RANK, dtype=torch.float64)
    for k in range(1, len(hidden)):
        u = w["markov_w1.weight"][previous[k]]
        if "gate_proj.weight" in w:
            z = w["gate_proj.weight"] @ torch.cat([hidden[k], u]) + w["gate_proj.bias"]
            u = u / (1 + torch.exp(-z))
        if "joint_proj.weight" in w:
            z = w["joint_proj.weight"] @ torch.cat([state, u, hidden[k]])
            s, c, o = (z + w["joint_proj.bias"]).split(RANK)
            share = 1 / (1 + torch.exp(-s))
            state = share * state + (1 - share) * torch.tanh(c)
            u = torch.tanh(o)
        rows.append(w["markov_w2.weight"] @ u)
    return torch.stack(rows)


@given(cases)
@exact
def test_heads_equal_their_formulas(case):
    head, hidden, previous = case
    bias = head(hidden, previous)
    for row in range(2):
        assert_close(bias[row], written_out(head, hidden[row], previous[row]))


@given(cases)
@exact
def test_a_block_at_once_equals_its_steps(case):
    head, hidden, previous = case
    prepared, state, rows = head.prepare(hidden), None, []
    for k in range(1, hidden.shape[1]):
        bias, state = head.step(prepared[:, k], previous[:, k], state)
        rows.append(bias)
    assert_close(head.bias(prepared, previous), torch.stack(rows, dim=1))


@pytest.mark.parametrize("kind", MARKOV_TYPES)
def test_what_each_slot_depends_on(kind):
    """Entry 0 reaches nothing; entry j reaches slot j, and with a state all later."""
    head, hidden, previous = case(kind, 3, 6)
    bias = head(hidden, previous)
    for j in range(6):
        other = previous.clone()
        other[:, j] = (other[:, j] + 1) % VOCAB
        moved = (head(hidden, other) != bias).any(-1).all(0).tolist()
        last = 6 if kind == "markov-rnn" else j + 1
        assert moved == [j > 0 and j <= k < last for k in range(1, 6)]
        states = hidden.clone()
        states[:, j] += 1
        moved = (head(states, previous) != bias).any(-1).all(0).tolist()
        reads = kind != "markov"
        assert moved == [reads and j > 0 and j <= k < last for k in range(1, 6)]


@pytest.mark.parametrize("kind", MARKOV_TYPES)
def test_names_and_sizes_are_published_ones(kind):
    """methods 3: gate_proj is H + r to r, joint_proj 2r + H to 3r, both with bias."""
    head, *_ = case(kind, 0, 4)
    sizes = {
        "markov_w1.weight": [VOCAB, RANK],
        "markov_w2.weight": [VOCAB, RANK],
    }
    if kind == "markov-gated":
        sizes |= {"gate_proj.weight": [RANK, HIDDEN + RANK], "gate_proj.bias": [RANK]}
    if kind == "markov-rnn":
        joint = [3 * RANK, 2 * RANK + HIDDEN]
        sizes |= {"joint_proj.weight": joint, "joint_proj.bias": [3 * RANK]}
    assert {k: list(v.shape) for k, v in head.state_dict().items()} == sizes
