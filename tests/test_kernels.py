"""Kernels and their plain twins compute the same; runners solve as the solver does.

Without a GPU the Triton kernels run in Triton's own interpreter, and are skipped
where Triton is not installed (pip install 'xpress-lab[kernels]').
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toys
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import xpress_lab
from xpress_lab.argmax import first_argmax
from xpress_lab.borrowed import Borrowed
from xpress_lab.draft_laws import ReadOut
from xpress_lab.jacobi import solve, solve_sequentially
from xpress_lab.kernels import plain
from xpress_lab.kernels.choices import Chosen, Lines
from xpress_lab.kernels.noise import Noise, gumbel, philox, uniform
from xpress_lab.kernels.runner import (
    Solved,
    ToFixedPoint,
    choosing,
    kernels_for,
    parallel,
    recorded,
    serial,
)
from xpress_lab.sampling import Sampling

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HIDDEN = 6
few = settings(deadline=None, derandomize=True, max_examples=6)  # interpreted: slow


def load_fused():
    """The Triton kernels, interpreted without a GPU; ``None`` without Triton."""
    try:
        from xpress_lab.kernels import fused
    except ModuleNotFoundError:
        return None
    return fused


FUSED = load_fused()
needs_triton = pytest.mark.skipif(FUSED is None, reason="Triton is not installed")
both = pytest.mark.parametrize(
    "kernels", [plain, pytest.param(FUSED, marks=needs_triton)], ids=["plain", "fused"]
)


def normal(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE)


def key(number: int) -> torch.Tensor:
    return torch.tensor([number], device=DEVICE)


class Block:
    """A float32 block and a strong folded head."""

    def __init__(self, seed=0, rows=2, block=6, vocab=90, rank=5, kind="xpress"):
        raw = toys.strong_head(
            kind, block, vocab, HIDDEN, rank, torch.float32, seed, size=3.0
        )
        self.head = raw.to(DEVICE).fold()
        self.hidden = normal(seed, rows, block, HIDDEN)
        self.base = normal(seed + 1, rows, block - 1, vocab)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(vocab, (2, rows), generator=generator).to(DEVICE)
        self.anchor, self.before = ids
        previous = torch.randint(vocab, (rows, block), generator=generator)
        self.previous = previous.to(DEVICE)
        self.inputs = self.hidden, self.base, self.anchor, self.before

    def drawing(self, number: int, temperature: float) -> dict:
        """How :meth:`solve` draws with the noise of a key; nothing at T = 0."""
        if not temperature:
            return {}
        noise = gumbel(key(number), self.base.shape)
        return {"sampling": Sampling(temperature), "noise": noise}

    def solve(self, passes, sampling=None, noise=None):
        prepared = self.head.prepare(self.hidden)
        return solve(
            lambda previous: self.base + self.head.bias(prepared, previous),
            self.base,
            self.anchor,
            self.before,
            passes=passes,
            scale=None if sampling is None else sampling.scale,
            noise=noise,
        ).tokens


# --- noise by counter ---------------------------------------------------------


@pytest.mark.parametrize(
    ("key_of", "place", "words"),
    [  # known answers of Random123 for Philox 4x32-10, counter words 2 and 3 zero
        (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ],
)
def test_philox_gives_known_answers(key_of, place, words):
    found = philox(key(key_of), torch.tensor([place], device=DEVICE))
    assert [f"{int(word):08x}" for word in found] == words.split()


def test_numbers_depend_on_every_bit_of_key_and_place():
    place = torch.tensor([12345], device=DEVICE)
    seen = {float(uniform(key(1 << bit), place)) for bit in range(63)}
    assert len(seen) > 60
    places = 1 << torch.arange(63, device=DEVICE)
    assert len(set(uniform(key(7), places).tolist())) > 60


def test_uniform_numbers_are_uniform():
    numbers = uniform(key(3), torch.arange(200_000, device=DEVICE)).double()
    assert 0 <= numbers.min() and numbers.max() < 1
    counts = torch.histc(numbers.cpu(), bins=64, min=0, max=1)
    chi = ((counts - 3125) ** 2 / 3125).sum()
    assert chi < 130  # 63 degrees of freedom: one in a million above
    assert abs((numbers[1:] * numbers[:-1]).mean() - 0.25) < 5e-3


def test_argmax_with_counted_noise_draws_from_the_softmax():
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0, -0.4], device=DEVICE)
    law = (logits.double() / 0.7).softmax(-1).cpu()
    base = logits.expand(1, 100_000, -1).contiguous()
    drawn = plain.choose(base, Noise(key(11), 0.7)).tokens[0].cpu()
    assert toys.chi_square(drawn[:, None], law, 5) > 1e-4
    wrong = plain.choose(base, Noise(key(11), 1.0)).tokens[0].cpu()
    assert toys.chi_square(wrong[:, None], law, 5) < 1e-6


def test_noise_is_the_same_for_a_key_and_new_for_another():
    shape = (2, 3, 50)
    assert torch.equal(gumbel(key(5), shape), gumbel(key(5), shape))
    assert (gumbel(key(5), shape) != gumbel(key(6), shape)).double().mean() > 0.99


# --- kernels against their twins ----------------------------------------------

sizes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 1000),
        "rows": st.integers(1, 2),
        "block": st.sampled_from([2, 5, 7]),
        "vocab": st.sampled_from([3, 63, 64, 65, 200]),
        "rank": st.sampled_from([2, 5, 16, 20]),
    }
)


@needs_triton
@given(sizes)
@few
def test_latent(size):
    block = Block(**size)
    prepared = block.head.prepare(block.hidden)
    found = FUSED.latent(block.head, prepared, block.previous)
    expected = plain.latent(block.head, prepared, block.previous)
    assert_close(found, expected, rtol=1e-4, atol=1e-4)  # summed in another order


@needs_triton
def test_latent_of_a_hidden_part_that_lies_otherwise_in_memory():
    block = Block(7)
    prepared = block.head.prepare(block.hidden)
    turned = prepared.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not turned.is_contiguous() and torch.equal(turned, prepared)
    found = FUSED.latent(block.head, turned, block.previous)
    assert_close(found, FUSED.latent(block.head, prepared, block.previous))


@needs_triton
@given(sizes, st.sampled_from([0.0, 0.6]))
@few
def test_read_out(size, temperature):
    block = Block(**size)
    noise = Noise(key(size["seed"]), temperature) if temperature else None
    z = plain.latent(block.head, block.head.prepare(block.hidden), block.previous)
    read = block.head.w2, z, block.base
    assert_same(FUSED.read_out(*read, noise), plain.read_out(*read, noise))
    weights = block.head.w2, z
    found, expected = (k.scores(block.base, *weights) for k in (FUSED, plain))
    assert_close(found, expected, rtol=1e-4, atol=1e-4)


@needs_triton
@given(sizes, st.sampled_from([0.0, 0.6]))
@few
def test_choose(size, temperature):
    base = Block(**size).base
    noise = Noise(key(size["seed"] + 1), temperature) if temperature else None
    assert_same(FUSED.choose(base, noise), plain.choose(base, noise))


def assert_same(found: Chosen, expected: Chosen) -> None:
    assert torch.equal(found.tokens, expected.tokens)
    if expected.log_q is None:
        assert found.log_q is None
    else:  # summed in another order
        assert_close(found.log_q, expected.log_q, rtol=1e-4, atol=1e-4)


@both
def test_chances_of_drafts_are_those_of_the_softmax(kernels):
    """Also where nearly all of the mass lies on one token, or tiles are far apart."""
    base = 3 * normal(8, 2, 3, 200)
    base[0, 0, 150] += 60
    base[0, 1, :64] -= 200
    w2, z = normal(9, 200, 4), normal(10, 2, 3, 4)
    for found, logits in (
        (kernels.choose(base, Noise(key(4), 0.7)), base),
        (kernels.read_out(w2, z, base, Noise(key(4), 0.7)), base + z @ w2.T),
    ):
        law = (logits.double() / 0.7).log_softmax(-1)
        expected = law.gather(-1, found.tokens[..., None]).squeeze(-1)
        assert_close(found.log_q.double(), expected, rtol=1e-4, atol=1e-4)


# --- candidates ---------------------------------------------------------------


@needs_triton
@given(sizes, st.sampled_from([0.0, 0.6]), st.sampled_from([1, 3, 40]))
@few
def test_shortlist_and_a_pass_among_it(size, temperature, count):
    block = Block(**size)
    noise = Noise(key(size["seed"]), temperature) if temperature else None
    ours, theirs = (k.shortlist(block.base, count, noise) for k in (FUSED, plain))
    assert torch.equal(ours.ids.sort(-1).values, theirs.ids.sort(-1).values)
    assert torch.equal(ours.best, theirs.best)
    line = torch.cat([block.previous, ours.best[:, -1:]], dim=1)
    found, expected = (
        k.settle(
            block.head, block.head.prepare(block.hidden), few, Lines(line), temperature
        )
        for k, few in ((FUSED, ours), (plain, theirs))
    )
    assert torch.equal(found.now, expected.now)


@both
@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("count", [1, 4, 30, 100])
def test_candidates_are_the_top_by_noisy_scores(kernels, temperature, count):
    base = normal(3, 2, 3, 100)
    noise = Noise(key(6), temperature) if temperature else None
    few = kernels.shortlist(base, count, noise)
    noisy = base if noise is None else base / 0.6 + gumbel(noise.key, base.shape)
    expected = noisy.topk(count, dim=-1).indices.sort(-1).values
    assert torch.equal(few.ids.sort(-1).values, expected)
    assert torch.equal(few.best, noisy.argmax(-1))
    assert_close(few.base, base.gather(-1, few.ids))
    if noise is not None:
        numbers = gumbel(noise.key, base.shape).gather(-1, few.ids)
        assert_close(few.noise, numbers, rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_candidates_are_tokens_even_where_few_have_a_chance(kernels, temperature):
    base = torch.full((1, 3, 100), -torch.inf, device=DEVICE)
    base[..., [5, 90, 99]] = normal(3, 1, 3, 3)
    few = kernels.shortlist(base, 40, Noise(key(6), 0.6) if temperature else None)
    assert few.ids.shape == (1, 3, 40) and 0 <= few.ids.min() <= few.ids.max() < 100
    for ids in few.ids[0]:
        assert {5, 90, 99} <= set(ids.tolist())


@both
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_passes_among_candidates_are_passes_that_see_no_others(kernels, temperature):
    block = Block(2, rows=2, block=7)
    noise = Noise(key(8), temperature) if temperature else None
    few, allowed = kernels.shortlist(block.base, 9, noise), block.base
    if noise is not None:
        allowed = allowed + temperature * gumbel(noise.key, block.base.shape)
    shut = torch.full_like(block.base, -torch.inf)
    allowed = shut.scatter(-1, few.ids, allowed.gather(-1, few.ids))
    prepared, tokens = block.head.prepare(block.hidden), few.best
    ends = torch.stack([block.before, block.anchor], dim=1)
    lines, seen = Lines(torch.cat([ends, tokens], dim=1)), [tokens]
    for _ in range(6):
        previous = torch.cat([ends, tokens[:, :-1]], dim=1)
        tokens = (allowed + block.head.bias(prepared, previous)).argmax(-1)
        lines = kernels.settle(block.head, prepared, few, lines, temperature)
        assert torch.equal(lines.now, torch.cat([ends, tokens], dim=1))
        assert torch.equal(lines.before[:, 2:], seen[-1])
        seen.append(tokens)
    assert not torch.equal(seen[0], seen[1])


@needs_triton
def test_a_slot_whose_inputs_stand_still_keeps_its_token():
    """Seen by a token that the head would not choose, behind inputs that stand."""
    block = Block(2, rows=1, block=7)
    prepared, few = block.head.prepare(block.hidden), FUSED.shortlist(block.base, 9)
    ends = torch.stack([block.before, block.anchor], dim=1)
    lines = Lines(torch.cat([ends, few.best], dim=1))
    for _ in range(6):
        lines = FUSED.settle(block.head, prepared, few, lines)
    end, other = lines.now.clone(), lines.now.clone()
    other[0, 5] += 1
    found = FUSED.settle(block.head, prepared, few, Lines(other, other)).now
    assert torch.equal(found, other)
    found = FUSED.settle(block.head, prepared, few, Lines(other, end)).now
    assert torch.equal(found[:, :5], end[:, :5]) and found[0, 5] == other[0, 5]
    expected = plain.settle(block.head, prepared, few, Lines(other)).now
    assert torch.equal(found[:, 6:], expected[:, 6:])


@both
def test_first_of_equals_wins_inside_and_across_tiles(kernels):
    """Equal maxima in one tile, in two tiles, and everywhere; -inf alone too."""
    base = torch.zeros(1, 4, 300, device=DEVICE)
    base[0, 0, [70, 75]] = base[0, 1, [10, 299]] = 1.0
    base[0, 3] = -torch.inf
    assert kernels.choose(base).tokens.tolist() == [[70, 10, 0, 0]]
    w2, z = torch.zeros(300, 2, device=DEVICE), torch.ones(1, 4, 2, device=DEVICE)
    w2[[130, 200]] = 3.0
    assert kernels.read_out(w2, z, base).tokens.tolist() == [[130, 130, 130, 0]]


@both
def test_more_slots_than_one_program_scores(kernels):
    base = normal(4, 9, 15, 70)
    w2, z = normal(5, 70, 3), normal(6, 9, 15, 3)
    assert torch.equal(kernels.choose(base).tokens, base.argmax(-1))
    expected = (base + z @ w2.T).argmax(-1)
    assert torch.equal(kernels.read_out(w2, z, base).tokens, expected)


@needs_triton
def test_half_precision_weights_are_summed_in_float32():
    """float16, since the interpreter's product does not know bfloat16."""
    block = Block(3, vocab=200, rank=16)
    z = plain.latent(block.head, block.head.prepare(block.hidden), block.previous)
    halves = [x.half() for x in (block.head.w2, z, block.base)]
    assert_same(FUSED.read_out(*halves), plain.read_out(*(x.float() for x in halves)))


@needs_triton
def test_latent_rounds_once_to_the_type_of_its_input():
    block = Block(4, rank=16)
    raw = toys.strong_head("xpress", 6, 90, HIDDEN, 16, torch.bfloat16, 4).to(DEVICE)
    block.head = raw.fold()
    prepared = block.head.prepare(block.hidden.bfloat16())
    found = FUSED.latent(block.head, prepared, block.previous)
    assert found.dtype == torch.bfloat16
    for name in ("table", "mixer", "gate_up", "down"):
        setattr(block.head, name, getattr(block.head, name).float())
    wide = plain.latent(block.head, prepared.float(), block.previous)
    assert_close(found, wide.bfloat16(), rtol=1.6e-2, atol=1e-2)


# --- runners ------------------------------------------------------------------


@both
@pytest.mark.parametrize("passes", [0, 1, 3, 7])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_pass_runner_is_the_solver(kernels, passes, temperature):
    """Block after block through the same buffers, each with noise of its own."""
    first = Block(1)
    solver = parallel(first.head, passes, temperature, kernels)
    runner = recorded(solver, first.base, first.hidden)
    for number in (5, 6):
        block = Block(number)
        block.head = first.head
        how = block.drawing(number, temperature)
        found = Solved(*runner(*block.inputs, number))
        assert torch.equal(found.tokens, block.solve(passes, **how))
        assert (found.log_q is None) == (temperature == 0)
        if temperature:  # what the tokens follow, given the noise
            law = law_of_block(kernels, found, block, temperature)
            assert_drawn(found, law, how["noise"])


def law_of_block(kernels, found: Solved, block: Block, temperature: float):
    """Scores over temperature at every slot, as acceptance reads them one by one."""
    w2 = None if found.z is None else block.head.w2
    rows = torch.arange(len(block.base), device=DEVICE)
    law = ReadOut(
        Borrowed(toys.tiny_target()),
        kernels,
        temperature,
        found.log_q,
        block.base,
        w2,
        found.z,
    )
    slots = range(block.base.shape[1])
    each = [law.at(rows, torch.full_like(rows, slot)) for slot in slots]
    assert_close(law.of(found.tokens[:, :2]), found.log_q[:, :2].exp())
    return torch.stack(each, dim=1).log()


def assert_drawn(found: Solved, law: torch.Tensor, noise: torch.Tensor) -> None:
    assert torch.equal(first_argmax(law + noise), found.tokens)
    chances = law.gather(-1, found.tokens[..., None]).squeeze(-1)
    assert_close(found.log_q, chances, rtol=1e-4, atol=1e-4)


@both
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("candidates", [0, 1, 4, 90])
def test_recorded_passes_end_at_the_fixed_point(kernels, temperature, candidates):
    """Whatever the candidates; they decide how many full passes it takes."""
    first, made = Block(1), []
    block = first.base, first.hidden
    runner = ToFixedPoint(first.head, *block, temperature, kernels, candidates)
    for number in range(3, 7):
        block = Block(number)
        block.head = first.head
        how = block.drawing(number, temperature)
        found = runner(*block.inputs, number)
        assert torch.equal(found.tokens, block.solve(None, **how))
        made.append(runner.passes)
        if temperature:
            law = law_of_block(kernels, found, block, temperature)
            assert_drawn(found, law, how["noise"])
    # Where a certificate failed, what followed mended the block.
    assert (max(made) > 1) == (candidates < block.base.shape[-1])


@both
def test_where_candidates_hold_one_full_pass_is_enough(kernels):
    block = Block(3)
    block.base *= 20  # the head has little to say
    for candidates in (0, 4):
        runner = ToFixedPoint(
            block.head, block.base, block.hidden, 0.0, kernels, candidates
        )
        assert torch.equal(runner(*block.inputs, 0).tokens, block.solve(None))
        assert runner.passes == 1


@both
def test_a_bounded_k_counts_passes_after_the_candidates(kernels):
    """Slots 1..K are final then, and all are after S passes."""
    block = Block(4, block=7)
    end = block.solve(None)
    for passes in (1, 3, 6):
        found = parallel(block.head, passes, 0.0, kernels, 3)(*block.inputs, key(0))
        assert torch.equal(found.tokens[:, :passes], end[:, :passes])


@both
def test_serial_runner_is_serial_decoding(kernels):
    block = Block(2, kind="markov")
    runner = recorded(serial(block.head, kernels=kernels), block.base, block.hidden)

    def step(k, drafted, state):
        bias, state = block.head.step(None, drafted[:, -1], state)
        return block.base[:, k] + bias, state

    expected = solve_sequentially(step, block.base, block.anchor).tokens
    assert torch.equal(runner(*block.inputs, 0)[0], expected)


@both
@pytest.mark.parametrize("kind", ["dflash", "xpress", "markov"])
def test_scores_are_what_tokens_of_half_precision_were_drawn_from(kernels, kind):
    """q is made of them, so they may not be rounded once more. (float16: the
    interpreter's product does not know bfloat16.)"""
    dtype = torch.float16 if kernels is FUSED else torch.bfloat16
    raw = toys.strong_head("xpress" if kind == "dflash" else kind, 6, 90, HIDDEN, 16)
    head = raw.to(DEVICE, dtype).fold()
    block = Block(5)
    hidden, base = block.hidden.to(dtype), block.base.to(dtype)
    solver = {
        "dflash": choosing(0.8, kernels),
        "xpress": parallel(head, 2, 0.8, kernels),
        "markov": serial(head, 0.8, kernels),
    }[kind]
    found = solver(hidden, base, block.anchor, block.before, key(3))
    block.base, block.head = base, head
    law = law_of_block(kernels, found, block, 0.8)
    assert law.dtype == torch.float32
    own = law.gather(-1, found.tokens[..., None]).squeeze(-1)
    assert_close(found.log_q, own, rtol=1e-4, atol=1e-4)
    if kind != "markov":  # which has a key for each slot
        noisy = law + gumbel(key(3), base.shape)
        assert torch.equal(first_argmax(noisy), found.tokens)


# A recording that fails is replaced by the work with a warning: here it is an error.
captured = [
    pytest.mark.skipif(DEVICE.type == "cpu", reason="no CUDA device"),
    pytest.mark.filterwarnings("error:No CUDA graph"),
    pytest.mark.parametrize("temperature", [0.0, 1.0]),
]


def on_cuda(test):
    for mark in captured:
        test = mark(test)
    return test


@on_cuda
@pytest.mark.parametrize("kind", ["xpress", "markov", "dflash"])
def test_a_captured_graph_replays_on_new_blocks(kind, temperature):
    block = Block(
        8, vocab=5000, rank=64, kind="markov" if kind == "markov" else "xpress"
    )

    def solver(kernels):
        if kind == "dflash":
            return choosing(temperature, kernels)
        if kind == "markov":
            return serial(block.head, temperature, kernels)
        return parallel(block.head, 4, temperature, kernels)

    fast, slow = (
        recorded(solver(kernels), block.base, block.hidden) for kernels in (None, plain)
    )
    for number in range(4):
        other = Block(number + 20, vocab=5000, rank=64)
        found, expected = (Solved(*run(*other.inputs, number)) for run in (fast, slow))
        assert torch.equal(found.tokens, expected.tokens)
        if temperature:
            assert_close(found.log_q, expected.log_q, rtol=1e-3, atol=1e-3)


@on_cuda
def test_captured_candidates_end_at_the_fixed_point(temperature):
    block = Block(8, vocab=5000, rank=64)
    example = block.head, block.base, block.hidden, temperature
    by_few, by_all = (ToFixedPoint(*example, candidates=count) for count in (256, 0))
    saved = 0
    for number in range(4):
        other = Block(number + 20, vocab=5000, rank=64)
        found = by_few(*other.inputs, number)
        assert torch.equal(found.tokens, by_all(*other.inputs, number).tokens)
        saved += by_all.passes - by_few.passes
        if temperature:
            other.head = block.head
            noise = gumbel(key(number), other.base.shape)
            law = law_of_block(kernels_for(other.base), found, other, temperature)
            assert_drawn(found, law, noise)
    assert saved > 0


def test_a_cpu_gets_the_plain_twins():
    assert kernels_for(torch.zeros(1)) is plain


def test_only_the_kernels_themselves_import_triton():
    root = Path(xpress_lab.__file__).parent
    importing = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if any(name.split(".")[0] == "triton" for name in names):
                assert path.parent.name == "fused"
                importing.add(path.name)
    assert importing == {"candidates.py", "latent_pass.py", "parts.py", "reading.py"}
    assert "from xpress_lab.kernels import fused" not in "".join(
        line
        for path in root.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if not line.startswith(" ")
    )


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from xpress_lab.kernels.fused import candidates, latent_pass, reading

def build(kernel, types, **constants):
    names = [name for name in kernel.arg_names if name not in constants]
    signature = dict(zip(names, types.split(), strict=True))
    signature |= {name: "constexpr" for name in constants}
    ordered = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=ordered, constexprs=constants)
    built = compile(source, target=GPUTarget("cuda", 90, 32))
    print(kernel.__name__, built.metadata.shared, len(built.asm["cubin"]))

tile = {"TILE": reading.TILE}
for noisy in (False, True):
    gone = {} if noisy else {"key": None, "own": None, "mass": None}
    how = {"NOISY": noisy, **tile}
    law = "*fp32 *fp32" * noisy
    for read in (False, True):
        less = gone if read else gone | {"w2": None, "z": None}
        types = "*bf16 *bf16 " * read + "*bf16 " + "*i64 " * noisy + "*fp32 *i32 "
        types += law + " i32 i32 i32 i32 fp32"
        build(reading._tops, types, READ=read, ROWS=64, RANK=256, **less, **how)
        wide = types.replace("bf16", "fp32")
        build(reading._tops, wide, READ=read, ROWS=32, RANK=256, **less, **how)
    less = {} if noisy else {"own": None, "mass": None, "log_q": None}
    types = f"*fp32 *i32 {law} *i64 " + "*fp32 " * noisy + "i32"
    build(reading._first_of_tiles, types, TILES=4096, **less, **how)
    less = {} if noisy else {"key": None}
    given = "*bf16 " + "*i64 " * noisy
    types = f"{given} *fp32 i32 i32 fp32"
    build(candidates._column_tops, types, GROUPS=16, **less, **how)
    types = f"{given} *i64 *fp32 i32 i32 fp32"
    build(candidates._scores_of, types, **less, **how)
    for seen in (False, True):
        less = {} if noisy else {"noise": None}
        less |= {} if seen else {"before": None}
        types = "*bf16 " + "*i64 " * (1 + seen) + "*bf16 " * 5 + "*i64 *fp32 "
        types += "*fp32 " * noisy + "*i64 i32 i32 i32 fp32"
        how = {"NOISY": noisy, "SEEN": seen, "SLOTS": 15, "LINE": 32}
        how |= {"UNITS": candidates.UNITS, "CHUNK": candidates.CHUNK}
        build(candidates._settle, types, RANK=256, **less, **how)
build(reading._scores, "*bf16 *bf16 *bf16 *fp32 i32 i32", RANK=256, **tile)
tensors = "*bf16 *i64 *bf16 *bf16 *bf16 *bf16 *bf16"
sizes = {"SLOTS": 15, "RANK": 256, "UNITS": latent_pass.UNITS}
build(latent_pass._latent, f"{tensors} i32 i32", **sizes)
"""


@needs_triton
@pytest.mark.slow
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    """To machine code of an H100 or H200; they fit into its shared memory."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        capture_output=True,
        text=True,
        cwd=Path(xpress_lab.__file__).parents[1],
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    built = [line.split() for line in done.stdout.splitlines()]
    assert len(built) == 20
    # Of an H200 a program may have 227 KiB; the smallest cards of its time allow 99.
    assert all(int(shared) <= 99 * 1024 for _, shared, _ in built)
