"""Candidates of each slot, and passes among them, each of which is one launch."""

import torch
import triton
import triton.language as tl

from xpress_lab.kernels.choices import GROUPS, Lines, Shortlist, shortlisted
from xpress_lab.kernels.fused.latent_pass import UNITS, latent_of
from xpress_lab.kernels.fused.parts import gumbel
from xpress_lab.kernels.noise import Noise

TILE = 64  # columns a program compares
CHUNK = 32  # candidates handled at a time


def shortlist(base: torch.Tensor, count: int, noise: Noise | None = None) -> Shortlist:
    """See :func:`xpress_lab.kernels.plain.shortlist`. The top C lie in the C columns
    with the highest tops, whose members are then scored again, noise and all."""
    base = base.contiguous()
    vocab = base.shape[-1]
    rows, columns = base.numel() // vocab, triton.cdiv(vocab, GROUPS)
    key, temperature = (None, 1.0) if noise is None else noise
    tops = base.new_empty((*base.shape[:-1], columns), dtype=torch.float32)
    sizes = {"NOISY": noise is not None, "TILE": TILE}
    _column_tops[(triton.cdiv(columns, TILE), rows)](
        base, key, tops, vocab, columns, temperature, GROUPS=GROUPS, **sizes
    )
    best = tops.topk(min(count, columns), dim=-1, sorted=False).indices
    starts = torch.arange(0, GROUPS * columns, columns, device=base.device)
    members = (best[..., None] + starts).flatten(-2)
    noisy = torch.empty_like(members, dtype=torch.float32)
    _scores_of[(triton.cdiv(members.shape[-1], TILE), rows)](
        base, key, members, noisy, vocab, members.shape[-1], temperature, **sizes
    )
    top, where = noisy.topk(min(count, vocab), dim=-1, sorted=False)
    # Where fewer than C scores are finite, places behind the last token may be on top.
    ids = members.gather(-1, where).clamp_max(vocab - 1)
    return shortlisted(ids, top, base, noise)


@triton.jit
def _column_tops(
    base,
    key,
    tops,
    vocab,
    columns,
    temperature,
    NOISY: tl.constexpr,
    GROUPS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    token = tl.arange(0, GROUPS)[:, None] * columns + column[None, :]
    real = (column < columns)[None, :] & (token < vocab)
    scores = _noisy(base, key, row * vocab + token, real, temperature, NOISY)
    top = tl.max(scores, axis=0)
    tl.store(tops + row * columns + column, top, mask=column < columns)


@triton.jit
def _scores_of(
    base,
    key,
    ids,
    scores,
    vocab,
    count,
    temperature,
    NOISY: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    member = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = row * count + member
    token = tl.load(ids + here, mask=member < count, other=0)
    found = _noisy(base, key, row * vocab + token, token < vocab, temperature, NOISY)
    tl.store(scores + here, found, mask=member < count)


@triton.jit
def _noisy(base, key, place, real, temperature, NOISY: tl.constexpr):
    """Scores at these places, noise and all; -inf where there is no token."""
    scores = tl.load(base + place, mask=real, other=0.0).to(tl.float32)
    if NOISY:
        scores = scores / temperature + gumbel(key, place)
    return tl.where(real, scores, float("-inf"))


def settle(
    head, prepared: torch.Tensor, few: Shortlist, lines: Lines, temperature: float = 0.0
) -> Lines:
    """See :func:`xpress_lab.kernels.plain.settle`: one launch. A slot whose inputs
    stand still keeps its token: passes behind the end cost next to nothing."""
    rows, slots, rank = prepared.shape
    out = torch.empty_like(lines.now)
    _settle[(rows, slots)](
        head.table,
        lines.now,
        lines.before,
        prepared.contiguous(),
        head.mixer,
        head.gate_up,
        head.down,
        head.w2.contiguous(),
        few.ids,
        few.base,
        few.noise,
        out,
        few.ids.shape[-1],
        rank,
        head.down.shape[1],
        temperature or 1.0,
        SEEN=lines.before is not None,
        NOISY=few.noise is not None,
        SLOTS=slots,
        LINE=triton.next_power_of_2(slots + 2),
        RANK=triton.next_power_of_2(rank),
        UNITS=UNITS,
        CHUNK=CHUNK,
    )
    return Lines(out, lines.now)


@triton.jit
def _settle(
    table,
    now,
    before,
    prepared,
    mixer,
    gate_up,
    down,
    w2,
    ids,
    base,
    noise,
    out,
    count,
    rank,
    width,
    temperature,
    SEEN: tl.constexpr,
    NOISY: tl.constexpr,
    SLOTS: tl.constexpr,
    LINE: tl.constexpr,
    RANK: tl.constexpr,
    UNITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row, slot = tl.program_id(0).to(tl.int64), tl.program_id(1)
    line, here = now + row * (SLOTS + 2), row * SLOTS + slot
    j = tl.arange(0, LINE)
    moved = 1
    if SEEN:
        inputs = j < slot + 2
        was = tl.load(before + row * (SLOTS + 2) + j, mask=inputs, other=0)
        moved = tl.sum((tl.load(line + j, mask=inputs, other=0) != was).to(tl.int32))
    token = tl.load(line + slot + 2)
    if moved > 0:
        z = latent_of(
            table, line, prepared + here * rank, mixer, gate_up, down, slot, rank,
            width, SLOTS, RANK, UNITS,
        )  # fmt: skip
        token = _best_of(
            w2, z, ids + here * count, base + here * count, noise, here * count, count,
            rank, temperature, NOISY, RANK, CHUNK,
        )  # fmt: skip
    tl.store(out + row * (SLOTS + 2) + slot + 2, token)
    if slot == 0:  # the anchor and the token before it
        tl.store(out + row * (SLOTS + 2) + j, tl.load(line + j, mask=j < 2), mask=j < 2)


@triton.jit
def _best_of(
    w2,
    z,
    ids,
    base,
    noise,
    place,
    count,
    rank,
    temperature,
    NOISY: tl.constexpr,
    RANK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The candidate of one slot that wins; ids and base begin at the slot's."""
    channel = tl.arange(0, RANK)
    best, highest = tl.load(ids), float("-inf")
    for start in range(0, count, CHUNK):
        member = start + tl.arange(0, CHUNK)
        real = member < count
        token = tl.load(ids + member, mask=real, other=0)
        weight = w2 + token[:, None] * rank + channel[None, :]
        inside = real[:, None] & (channel < rank)[None, :]
        weights = tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        scores = tl.sum(weights * z[None, :], axis=1)
        scores += tl.load(base + member, mask=real, other=0.0)
        if NOISY:
            scores = scores / temperature
            scores += tl.load(noise + place + member, mask=real, other=0.0)
        scores = tl.where(real, scores, float("-inf"))
        top, where = tl.max(scores, axis=0, return_indices=True)
        best = tl.where(top > highest, tl.load(ids + start + where), best)
        highest = tl.maximum(top, highest)
    return best
