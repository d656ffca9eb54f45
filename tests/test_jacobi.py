"""The solver, the heads and the drafter compute what the method says.

* Solver: p passes fix p slots, B - 1 passes equal left-to-right decoding at T = 0 and
  T > 0, fixed points are final, and every edge case of K and B works.
* Heads and drafter: equal to explicit loops over channels, slots and heads written
  from methods 1.1 and 2.2; causal; folded equals raw; every tensor matters
  (pitfalls 18, 21, 22).
"""

import math

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config as LayerConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from xpress_lab.checkpoints import MARKOV_TYPES
from xpress_lab.errors import LabError
from xpress_lab.jacobi import pick, solve, solve_in_order, solve_sequentially
from xpress_lab.methods import Request
from xpress_lab.refiners.markov import MarkovHead
from xpress_lab.refiners.xpress import XPressHead
from xpress_lab.sampling import Sampling, gumbel_noise
from xpress_lab.verification import accept_greedy

VOCAB, HIDDEN = 7, 5
exact = settings(deadline=None, derandomize=True, max_examples=60)


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


class Problem:
    """A block to solve: random drafter outputs and a random strong head."""

    def __init__(self, seed, block, temperature=0.0, rows=2, kind="xpress"):
        self.block, self.slots, self.evaluated = block, block - 1, 0
        self.head = toys.strong_head(
            kind, block, VOCAB, HIDDEN, rank=4, seed=seed, size=2.0
        )
        self.hidden = normal(seed + 1, rows, block, HIDDEN)
        self.base = normal(seed + 2, rows, self.slots, VOCAB)
        generator = torch.Generator().manual_seed(seed + 3)
        self.before, self.anchor = torch.randint(VOCAB, (2, rows), generator=generator)
        self.sampling = {"scale": None, "noise": None}
        if temperature:
            noise = gumbel_noise(self.base.shape, generator, dtype=torch.float64)
            self.sampling = {"scale": Sampling(temperature).scale, "noise": noise}
        self.blocks = (self.base, self.anchor, self.before)

    def refine(self, previous: torch.Tensor, first: int = 0) -> torch.Tensor:
        self.evaluated += self.slots - first
        return (self.base + self.head(self.hidden, previous))[:, first:]

    def solve(self, **how):
        return solve(self.refine, *self.blocks, **self.sampling, **how)

    def in_order(self):
        return solve_in_order(self.refine, *self.blocks, **self.sampling)

    def all_passes(self) -> list[torch.Tensor]:
        """Seed and B passes, written out and without an early exit."""
        scale = self.sampling["scale"] or (lambda logits: logits)
        first = torch.stack([self.before, self.anchor], 1)
        steps = [pick(scale(self.base), self.sampling["noise"])]
        for _ in range(self.block):
            scores = scale(self.refine(torch.cat([first, steps[-1][:, :-1]], 1)))
            steps.append(pick(scores, self.sampling["noise"]))
        return steps


problems = st.builds(
    Problem,
    seed=st.integers(0, 10_000),
    block=st.integers(2, 17),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    rows=st.integers(1, 3),
    kind=st.sampled_from(["xpress", *MARKOV_TYPES]),
)


# --- the solver ---------------------------------------------------------------


@given(problems)
@exact
def test_p_passes_make_p_slots_final(problem):
    answer = problem.in_order().tokens
    for passes in range(problem.slots + 1):
        tokens = problem.solve(passes=passes).tokens
        assert torch.equal(tokens[:, :passes], answer[:, :passes])


@given(problems, st.booleans())
@exact
def test_enough_passes_equal_left_to_right_decoding(problem, lock):
    """Tokens, and the scores that q is made of."""
    answer = problem.in_order()
    for passes in (problem.slots, problem.slots + 5, None):
        solution = problem.solve(passes=passes, lock=lock)
        assert torch.equal(solution.tokens, answer.tokens)
        assert_close(solution.scores, answer.scores)
        assert solution.converged and solution.passes <= problem.slots


@given(problems)
@exact
def test_an_unchanged_prefix_never_changes_again(problem):
    steps = problem.all_passes()
    for place, (before, after) in enumerate(zip(steps, steps[1:], strict=False)):
        prefix = (before == after).cumprod(1).bool()
        for later in steps[place + 2 :]:
            assert torch.equal(later[prefix], after[prefix])


@given(problems, st.booleans())
@exact
def test_early_exit_and_lock_change_nothing(problem, lock):
    """Any K gives what K passes without exit or lock give; the trace records them."""
    steps = problem.all_passes()
    for passes in range(problem.slots + 1):
        solution = problem.solve(passes=passes, lock=lock, keep_trace=True)
        assert torch.equal(solution.tokens, steps[passes])
        for kept, step in zip(solution.trace, steps, strict=False):
            assert torch.equal(kept, step)
        assert len(solution.trace) == solution.passes + 1


@given(problems)
@exact
def test_locking_evaluates_no_settled_slot_again(problem):
    """Pass p evaluates at most S - p + 1 slots: p - 1 are final before it."""
    solution = problem.solve(passes=None, lock=True)
    most = sum(problem.slots - p for p in range(solution.passes))
    assert problem.evaluated <= most
    problem.evaluated = 0
    problem.solve(passes=None)
    assert problem.evaluated == solution.passes * problem.slots


@given(st.integers(0, 1000), st.integers(2, 17), st.integers(0, 15))
@exact
def test_a_folded_head_can_start_at_any_slot(seed, block, first):
    head = toys.strong_head("xpress", block, VOCAB, HIDDEN, rank=4, seed=seed).fold()
    prepared = head.prepare(normal(seed, 2, block, HIDDEN))
    previous = torch.randint(VOCAB, (2, block))
    whole = head.bias(prepared, previous)
    assert_close(head.bias(prepared, previous, first), whole[:, first:])


@given(problems)
@exact
def test_converged_means_final(problem):
    steps = problem.all_passes()
    for passes in range(problem.slots + 1):
        solution = problem.solve(passes=passes)
        if solution.converged:
            assert torch.equal(solution.tokens, steps[-1])


@given(problems)
@exact
def test_no_passes_is_the_bare_drafter(problem):
    solution = problem.solve(passes=0)
    scale = problem.sampling["scale"] or (lambda logits: logits)
    assert torch.equal(solution.scores, scale(problem.base))
    expected = pick(scale(problem.base), problem.sampling["noise"])
    assert torch.equal(solution.tokens, expected)
    assert solution.passes == 0
    if problem.sampling["noise"] is None:
        assert torch.equal(solution.tokens, problem.base.argmax(-1))


@given(problems)
@exact
def test_scores_are_the_ones_that_picked_the_tokens(problem):
    for passes in range(problem.slots + 1):
        solution = problem.solve(passes=passes)
        picked = pick(solution.scores, problem.sampling["noise"])
        assert torch.equal(solution.tokens, picked)


@pytest.mark.parametrize("kind", MARKOV_TYPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_serial_steps_of_a_markov_head_are_its_fixed_point(kind, temperature):
    """``step`` on single tokens, ``bias`` on blocks and Jacobi agree."""
    problem = Problem(5, 9, temperature, kind=kind)
    prepared = problem.head.prepare(problem.hidden)[:, 1:]

    def step(k, drafted, state):
        bias, state = problem.head.step(prepared[:, k], drafted[:, -1], state)
        return problem.base[:, k] + bias, state

    serial = solve_sequentially(step, problem.base, problem.anchor, **problem.sampling)
    parallel = problem.solve(passes=None)
    assert torch.equal(serial.tokens, parallel.tokens)
    assert_close(serial.scores, parallel.scores)
    assert serial.passes == problem.slots


def test_the_random_problems_are_not_trivial():
    """Most need several passes: the properties above say something."""
    solutions = [Problem(seed, 9, 0.7).solve(passes=None) for seed in range(20)]
    assert sum(solution.passes >= 3 for solution in solutions) > 15


def count_up(vocab: int):
    """A head under which each token is its predecessor plus one."""
    return lambda previous: torch.nn.functional.one_hot(
        (previous[:, 1:] + 1) % vocab, vocab
    ).double()


@pytest.mark.parametrize("block", range(2, 18))
def test_worst_case_needs_every_pass(block):
    """Counting from the anchor: pass p puts slot p right, and no other."""
    vocab, slots = 50, block - 1
    base = torch.zeros(1, slots, vocab, dtype=torch.float64)  # the seed is all 0
    anchor, before = torch.tensor([20]), torch.tensor([3])
    answer = torch.arange(21, 21 + slots)[None]
    for passes in range(slots + 1):
        solution = solve(count_up(vocab), base, anchor, before, passes=passes)
        assert torch.equal(
            solution.tokens == answer, torch.arange(slots)[None] < passes
        )
        assert solution.passes == passes
        assert solution.converged == (passes == slots)
    assert solve(count_up(vocab), base, anchor, before).passes == slots


def test_a_block_that_starts_at_its_fixed_point_takes_one_pass():
    vocab, anchor = 20, torch.tensor([4])
    base = torch.nn.functional.one_hot(torch.arange(5, 12), vocab)[None].double()
    solution = solve(count_up(vocab), base, anchor, anchor, passes=6)
    assert (solution.passes, solution.converged) == (1, True)


def test_a_block_of_the_anchor_alone_has_nothing_to_solve():
    base, ids = torch.zeros(2, 0, VOCAB), torch.zeros(2, dtype=torch.long)
    solution = solve(lambda previous: base, base, ids, ids)
    assert solution.tokens.shape == (2, 0)
    assert (solution.passes, solution.converged) == (0, True)
    assert solve_sequentially(None, base, ids).tokens.shape == (2, 0)


def test_negative_passes_are_refused():
    with pytest.raises(LabError, match="passes must be 0 or more"):
        Problem(0, 4).solve(passes=-1)


def test_previous_token_of_slot_0_is_the_one_before_the_anchor():
    seen = []

    def refine(previous):
        seen.append(previous.clone())
        return torch.zeros(1, 3, VOCAB)

    solve(refine, torch.zeros(1, 3, VOCAB), torch.tensor([5]), torch.tensor([2]))
    assert seen[0].tolist() == [[2, 5, 0, 0]]


def test_first_of_equal_logits_wins_everywhere():
    """Drafting, refining, serial decoding and verifying break ties alike."""
    tied = torch.zeros(1, 3, VOCAB, dtype=torch.float64)
    tied[..., [2, 5]] = 1.0
    ids = torch.tensor([0])
    twos = torch.full((1, 3), 2)
    assert torch.equal(pick(tied, None), twos)
    for passes in (0, 1, None):
        assert torch.equal(
            solve(lambda _: tied, tied, ids, ids, passes=passes).tokens, twos
        )
    serial = solve_sequentially(lambda k, *_: (tied[:, k], None), tied, ids)
    assert torch.equal(serial.tokens, twos)
    verdict = accept_greedy(tied[:, [0, 0, 0, 0]], twos)
    assert verdict.accepted.item() == 3 and verdict.next_token.item() == 2
    assert accept_greedy(tied[:, [0, 0, 0, 0]], twos + 3).accepted.item() == 0


# --- the xPress head ----------------------------------------------------------


def naive_head(head: XPressHead, hidden: torch.Tensor, previous: torch.Tensor):
    """Methods 2.2, steps 1 to 5, one slot and one channel at a time; one row."""
    w = head.published_state()
    block, rank = hidden.shape[0], w["mix.L"].shape[0]
    g = torch.zeros_like(hidden[0])
    for k in range(block):
        g = g + hidden[k] / block
    a = []
    for k in range(block):
        parts = [w["down_h.weight"] @ hidden[k], w["down_g.weight"] @ g]
        parts.append(w["w1.weight"][previous[k]])
        a.append(w["in_proj.weight"] @ torch.cat(parts))
    biases = []
    for k in range(1, block):
        c = a[k].clone()
        for channel in range(rank):
            for j in range(k + 1):
                c[channel] += w["mix.L"][channel, k, j] * a[j][channel]
        gate, up = w["mlp.gate_proj.weight"] @ c, w["mlp.up_proj.weight"] @ c
        z = c + w["mlp.down_proj.weight"] @ (gate / (1 + torch.exp(-gate)) * up)
        biases.append(w["w2.weight"] @ z)
    return torch.stack(biases)


heads = st.builds(
    lambda seed, block, rank: (
        toys.strong_head("xpress", block, VOCAB, HIDDEN, rank, seed=seed),
        normal(seed + 1, 2, block, HIDDEN),
        torch.randint(VOCAB, (2, block), generator=torch.Generator().manual_seed(seed)),
    ),
    seed=st.integers(0, 10_000),
    block=st.integers(2, 9),
    rank=st.integers(1, 5),
)


@given(heads)
@exact
def test_head_equals_the_formula_written_as_loops(case):
    head, hidden, previous = case
    bias = head(hidden, previous)
    for row in range(2):
        assert_close(bias[row], naive_head(head, hidden[row], previous[row]))


@given(heads)
@exact
def test_folded_head_equals_the_raw_one(case):
    head, hidden, previous = case
    folded = head.fold()
    assert_close(folded.bias(folded.prepare(hidden), previous), head(hidden, previous))


@given(heads)
@exact
def test_bias_of_a_slot_depends_on_previous_tokens_up_to_its_own(case):
    """Changing entry j moves no slot before j, and moves slot j."""
    head, hidden, previous = case
    for evaluate in (head, lambda h, t: head.fold().bias(head.fold().prepare(h), t)):
        bias = evaluate(hidden, previous)
        for j in range(previous.shape[1]):
            other = previous.clone()
            other[:, j] = (other[:, j] + 1) % VOCAB
            moved = (evaluate(hidden, other) - bias).abs().amax(dim=(0, 2))
            assert (moved[: max(j - 1, 0)] == 0).all()  # entry k - 1 is slot k
            assert moved[max(j - 1, 0)] > 0


def test_hidden_state_of_slot_0_reaches_every_slot_through_the_mean():
    head = toys.strong_head("xpress", 6, VOCAB, HIDDEN)
    with torch.no_grad():
        head.mix.L.zero_()  # the mean is the only way left
    hidden, previous = normal(1, 1, 6, HIDDEN), torch.zeros(1, 6, dtype=torch.long)
    other = hidden.clone()
    other[:, 0] += 1
    moved = (head(other, previous) - head(hidden, previous)).abs().amax(-1)
    assert (moved > 0).all()


def test_folding_leaves_the_head_raw_and_cannot_be_repeated():
    head = toys.strong_head("xpress", 6, VOCAB, HIDDEN)
    before = {k: v.clone() for k, v in head.published_state().items()}
    folded = head.fold()
    hidden, previous = normal(1, 2, 6, HIDDEN), torch.ones(2, 6, dtype=torch.long)
    folded.bias(folded.prepare(hidden), previous)
    assert before.keys() == head.published_state().keys()
    for name, tensor in head.published_state().items():
        assert torch.equal(tensor, before[name])
    assert not hasattr(folded, "fold")
    assert_close(head.fold().mixer, folded.mixer)  # a second fold starts afresh


def test_mixer_above_the_diagonal_is_ignored():
    """No triangle is stored: none can hold garbage after a load."""
    head = toys.strong_head("xpress", 5, VOCAB, HIDDEN)
    hidden, previous = normal(1, 2, 5, HIDDEN), torch.ones(2, 5, dtype=torch.long)
    bias = head(hidden, previous)
    with torch.no_grad():
        head.mix.L += 100 * torch.ones(5, 5).triu(1)
    assert torch.equal(head(hidden, previous), bias)
    assert not dict(head.named_buffers())


def test_without_hidden_inputs_mixer_and_mlp_the_head_is_markov_s():
    head = toys.strong_head("xpress", 6, VOCAB, HIDDEN, rank=4)
    markov = MarkovHead(VOCAB, 4).double()
    with torch.no_grad():
        head.fuse.down_h.weight.zero_()
        head.fuse.down_g.weight.zero_()
        head.mix.L.zero_()
        head.trans.down_proj.weight.zero_()
        of_token = head.fuse.in_proj.weight[:, 8:]
        markov.markov_w1.weight.copy_(head.fuse.w1.weight @ of_token.T)
        markov.markov_w2.weight.copy_(head.read.w2.weight)
    hidden = normal(1, 3, 6, HIDDEN)
    previous = torch.arange(18).view(3, 6) % VOCAB
    assert_close(head(hidden, previous), markov(hidden, previous))


def test_new_head_starts_with_an_identity_mixer_and_small_weights():
    torch.manual_seed(0)
    head = XPressHead(64, 300, block_size=8, rank=32)
    assert torch.equal(head.mix.matrix(), torch.eye(8).expand(32, 8, 8))
    for name, parameter in head.named_parameters():
        if name != "mix.L":
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1)


# --- the drafter --------------------------------------------------------------


def naive_drafter(drafter, block, context, positions):
    """Methods 1.1 with loops over layers, heads and slots; one row, full attention."""
    config, w = drafter.config, dict(drafter.named_parameters())
    dim, eps = config.head_dim, config.rms_norm_eps
    group = config.num_attention_heads // config.num_key_value_heads
    slots, keys = len(block), len(context) + len(block)

    def norm(x, weight):
        return x / (x.pow(2).mean() + eps).sqrt() * weight

    def turn(x, position):
        out = torch.empty_like(x)
        for i in range(dim // 2):
            angle = float(position) * config.rope_theta ** (-2 * i / dim)
            cos, sin = math.cos(angle), math.sin(angle)
            out[i] = x[i] * cos - x[i + dim // 2] * sin
            out[i + dim // 2] = x[i + dim // 2] * cos + x[i] * sin
        return out

    for layer in range(config.num_hidden_layers):
        p = lambda name, layer=layer: w[f"layers.{layer}.{name}.weight"]  # noqa: E731
        normed = [norm(x, p("input_layernorm")) for x in block]
        inputs = [*context, *normed]
        mixed = [[] for _ in range(slots)]
        for head in range(config.num_attention_heads):
            mine = slice(head * dim, (head + 1) * dim)
            shared = slice(head // group * dim, (head // group + 1) * dim)
            key_of, value_of = [], []
            for x, position in zip(inputs, positions, strict=True):
                key = norm(p("self_attn.k_proj")[shared] @ x, p("self_attn.k_norm"))
                key_of.append(turn(key, position))
                value_of.append(p("self_attn.v_proj")[shared] @ x)
            for slot in range(slots):
                query = p("self_attn.q_proj")[mine] @ normed[slot]
                query = norm(query, p("self_attn.q_norm"))
                query = turn(query, positions[keys - slots + slot])
                scores = torch.stack([query @ key / dim**0.5 for key in key_of])
                weights = scores.exp() / scores.exp().sum()
                mixed[slot].append(sum(a * v for a, v in zip(weights, value_of)))  # noqa: B905
        after = []
        for slot in range(slots):
            x = block[slot] + p("self_attn.o_proj") @ torch.cat(mixed[slot])
            y = norm(x, p("post_attention_layernorm"))
            gate, up = p("mlp.gate_proj") @ y, p("mlp.up_proj") @ y
            x = x + p("mlp.down_proj") @ (gate * torch.sigmoid(gate) * up)
            after.append(x)
        block = torch.stack(after)
    return torch.stack([norm(x, w["norm.weight"]) for x in block])


@pytest.mark.parametrize(("block_size", "context", "layers"), [(2, 1, 1), (5, 7, 2)])
@pytest.mark.parametrize("tap_norm", [False, True])
def test_drafter_equals_the_formula_written_as_loops(
    target, block_size, context, layers, tap_norm
):
    drafter = toys.tiny_drafter(target, block_size, layers=layers, tap_norm=tap_norm)
    taps = 3 * normal(1, 1, context, 2 * toys.HIDDEN)
    block = normal(2, 1, block_size, toys.HIDDEN)
    positions = torch.arange(4, 4 + context + block_size)[None]
    out = drafter(block, drafter.project(taps), positions)[0]

    weight, scale = drafter.fc.weight, drafter.hidden_norm.weight
    projected = []
    for tap in taps[0]:
        if tap_norm:
            halves = tap.split(toys.HIDDEN)
            tap = torch.cat([h / (h.pow(2).mean() + 1e-6).sqrt() for h in halves])
        x = weight @ tap
        projected.append(x / (x.pow(2).mean() + 1e-6).sqrt() * scale)
    expected = naive_drafter(drafter, block[0], projected, positions[0])
    assert_close(out, expected, rtol=1e-5, atol=1e-5)  # rotary angles are float32


def test_drafter_layer_without_context_is_transformers_qwen3_layer(target):
    drafter = toys.tiny_drafter(target, 6, layers=1)
    config = drafter.config
    theirs = Qwen3DecoderLayer(
        LayerConfig(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            attn_implementation="eager",
        ),
        layer_idx=0,
    ).double()
    theirs.load_state_dict(drafter.layers[0].state_dict())  # strict: names are equal
    block = normal(3, 2, 6, config.hidden_size)
    cos, sin = drafter.angles(torch.arange(6)[None])
    ours = drafter.layers[0](block, block[:, :0], (cos, sin), None, None, 0)
    sees_all = torch.zeros(2, 1, 6, 6, dtype=torch.float64)
    out = theirs(
        block, attention_mask=sees_all, position_embeddings=(cos[:, 0], sin[:, 0])
    )
    out = out[0] if isinstance(out, tuple) else out
    assert_close(ours, out, rtol=1e-5, atol=1e-5)  # their norms are float32


def test_rotary_angles_are_rebuilt_and_never_stored(target):
    """A drafter built without memory and filled later has right frequencies."""
    drafter = toys.tiny_drafter(target, 4)
    with torch.device("meta"):
        empty = type(drafter)(drafter.config)
    empty.load_state_dict(drafter.state_dict(), assign=True)
    assert not dict(drafter.named_buffers())
    case = normal(1, 1, 4, 32), normal(2, 1, 3, 32), torch.arange(7)[None]
    assert torch.equal(empty(*case), drafter(*case))


def test_only_relative_positions_matter_and_they_do(target):
    """Shifting all positions changes nothing; the block's alone, or one, does."""
    drafter = toys.tiny_drafter(target, 5)
    block, context = normal(1, 1, 5, 32), normal(2, 1, 6, 32)
    positions = torch.arange(11)[None]
    out = drafter(block, context, positions)
    assert_close(drafter(block, context, positions + 9), out, rtol=1e-4, atol=1e-4)
    late = positions + (torch.arange(11) >= 6)
    assert (drafter(block, context, late) - out).abs().max() > 0.01


def draft_logits(method, request) -> torch.Tensor:
    """Refined logits of one block, as the loop computes them, for fixed tokens."""
    hidden = method.begin(32).hidden_states(request)
    base = method.borrowed.logits(hidden[:, 1:])
    if method.head is None:
        return base
    previous = torch.tensor([[4, 7, 1, 2, 3]])
    return base + method.head(hidden, previous)


@pytest.mark.parametrize("name", ["dflash", *MARKOV_TYPES, "xpress"])
def test_every_tensor_of_drafter_and_head_matters(target, name):
    method = toys.make_method(name, target, 5)
    if name != "dflash":
        method.head = toys.strong_head(name, 5)  # raw: folding copies tensors
    one, before = torch.tensor([7]), torch.tensor([4])
    request = Request(one, before, normal(9, 1, 6, 64), 6, one[None])
    before = draft_logits(method, request)
    modules = [m for m in (method.drafter, method.head) if m is not None]
    for module in modules:
        for parameter in module.parameters():
            kept = parameter.clone()
            change = normal(3, *parameter.shape)
            if parameter.dim() == 3:  # mixer: the triangle without its unread row 0
                change = change.tril()
                change[:, 0] = 0
            with torch.no_grad():
                parameter += 0.3 * change
            assert (draft_logits(method, request) - before).abs().max() > 1e-3
            with torch.no_grad():
                parameter.copy_(kept)
    assert torch.equal(draft_logits(method, request), before)
