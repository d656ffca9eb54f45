"""Triton kernels: a refiner pass without a trip to memory between its steps.

``latent`` stays in r-space: gather, mix and SwiGLU of a slot in one program. ``choose``
and ``read_out`` never write the ``[N, S, V]`` sum: each program scores one tile of the
vocabulary for all slots, so that w2 is read once, and keeps the tile's best; a second
launch compares tiles. Ties go to the left in both stages: the first of equals wins.

Same names and arguments as :mod:`xpress_lab.kernels.plain`. Importing this module needs
Triton, so nothing imports it but :func:`xpress_lab.kernels.runner.kernels_for` and
tests. With TRITON_INTERPRET=1 in the environment the kernels run on a CPU, slowly.
"""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from xpress_lab.kernels.noise import Noise

TILE = 64  # tokens a program scores
UNITS = 32  # SwiGLU units handled at a time
MOST_ROWS = 64  # slots of all rows that one program scores


def latent(head, prepared: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
    """See :func:`xpress_lab.kernels.plain.latent`."""
    rows, slots, rank = prepared.shape
    width = head.down.shape[1]
    out = torch.empty_like(prepared, memory_format=torch.contiguous_format)
    _latent[(rows, slots)](
        head.table,
        previous.contiguous(),
        prepared.contiguous(),
        head.mixer,
        head.gate_up,
        head.down,
        out,
        rank,
        width,
        SLOTS=slots,
        RANK=triton.next_power_of_2(rank),
        UNITS=UNITS,
    )
    return out


@triton.jit
def _latent(
    table,
    previous,
    prepared,
    mixer,
    gate_up,
    down,
    out,
    rank,
    width,
    SLOTS: tl.constexpr,
    RANK: tl.constexpr,
    UNITS: tl.constexpr,
):
    row, slot = tl.program_id(0), tl.program_id(1)
    channel = tl.arange(0, RANK)
    real = channel < rank
    here = (row * SLOTS + slot) * rank + channel
    c = tl.load(prepared + here, mask=real, other=0.0).to(tl.float32)
    for j in range(SLOTS + 1):  # the mixer is causal: a draft sees slots 0..slot + 1
        seen = real & (j <= slot + 1)
        token = tl.load(previous + row * (SLOTS + 1) + j)
        a = tl.load(table + token * rank + channel, mask=seen, other=0.0)
        weight = mixer + (slot * (SLOTS + 1) + j) * rank + channel
        c += a.to(tl.float32) * tl.load(weight, mask=seen, other=0.0).to(tl.float32)
    z = c
    for start in range(0, width, UNITS):
        unit = start + tl.arange(0, UNITS)
        inside = (unit < width)[:, None] & real[None, :]
        weight = gate_up + unit[:, None] * rank + channel[None, :]
        gate = tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(weight + width * rank, mask=inside, other=0.0).to(tl.float32)
        gate = tl.sum(gate * c[None, :], axis=1)
        active = gate * tl.sigmoid(gate) * tl.sum(up * c[None, :], axis=1)
        weight = down + channel[None, :] * width + unit[:, None]
        back = tl.load(weight, mask=inside, other=0.0).to(tl.float32)
        z += tl.sum(back * active[:, None], axis=0)
    tl.store(out + here, z.to(out.dtype.element_ty), mask=real)


def choose(base: torch.Tensor, noise: Noise | None = None) -> torch.Tensor:
    """See :func:`xpress_lab.kernels.plain.choose`."""
    return _first_tops(None, None, base, noise)


def read_out(
    w2: torch.Tensor, z: torch.Tensor, base: torch.Tensor, noise: Noise | None = None
) -> torch.Tensor:
    """See :func:`xpress_lab.kernels.plain.read_out`."""
    return _first_tops(w2.contiguous(), z.contiguous(), base, noise)


def scores(
    base: torch.Tensor, w2: torch.Tensor | None = None, z: torch.Tensor | None = None
) -> torch.Tensor:
    """See :func:`xpress_lab.kernels.plain.scores`: in float32, as the kernels sum."""
    wide = base.float()
    return wide if z is None else wide + F.linear(z.float(), w2.float())


def _first_tops(w2, z, base, noise):
    base = base.contiguous()
    vocab = base.shape[-1]
    rows = base.numel() // vocab
    tiles = triton.cdiv(vocab, TILE)
    height = min(max(triton.next_power_of_2(rows), 16), MOST_ROWS)
    rank = 16 if z is None else z.shape[-1]
    tops = base.new_empty((rows, tiles), dtype=torch.float32)
    places = base.new_empty((rows, tiles), dtype=torch.int32)
    tokens = base.new_empty(base.shape[:-1], dtype=torch.int64)
    _tops[(tiles, triton.cdiv(rows, height))](
        w2,
        z,
        base,
        None if noise is None else noise.key,
        tops,
        places,
        rows,
        vocab,
        tiles,
        rank,
        1.0 if noise is None else noise.temperature,
        READ=z is not None,
        NOISY=noise is not None,
        ROWS=height,
        TILE=TILE,
        RANK=max(triton.next_power_of_2(rank), 16),
    )
    _first_of_tiles[(rows,)](
        tops, places, tokens, tiles, TILE=TILE, TILES=triton.next_power_of_2(tiles)
    )
    return tokens


@triton.jit
def _tops(
    w2,
    z,
    base,
    key,
    tops,
    places,
    rows,
    vocab,
    tiles,
    rank,
    temperature,
    READ: tl.constexpr,
    NOISY: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    RANK: tl.constexpr,
):
    tile = tl.program_id(0)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token = tile * TILE + tl.arange(0, TILE)
    real = (row < rows)[:, None] & (token < vocab)[None, :]
    place = row[:, None] * vocab + token[None, :]
    scores = tl.load(base + place, mask=real, other=0.0).to(tl.float32)
    if READ:
        channel = tl.arange(0, RANK)
        inside = (channel < rank)[None, :]
        here = z + row[:, None] * rank + channel[None, :]
        latents = tl.load(here, mask=(row < rows)[:, None] & inside, other=0.0)
        here = w2 + token.to(tl.int64)[:, None] * rank + channel[None, :]
        weights = tl.load(here, mask=(token < vocab)[:, None] & inside, other=0.0)
        scores += tl.dot(latents, tl.trans(weights), input_precision="ieee")
    if NOISY:
        exponential = -tl.log(tl.maximum(tl.rand(tl.load(key), place), 1e-20))
        gumbel = -tl.log(tl.maximum(exponential, 1e-20))
        scores = scores / temperature + gumbel
    scores = tl.where(real, scores, float("-inf"))
    top, where = tl.max(scores, axis=1, return_indices=True)
    tl.store(tops + row * tiles + tile, top, mask=row < rows)
    tl.store(places + row * tiles + tile, where, mask=row < rows)


@triton.jit
def _first_of_tiles(
    tops, places, tokens, tiles, TILE: tl.constexpr, TILES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    top = tl.load(tops + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    _, best = tl.max(top, axis=0, return_indices=True)
    place = tl.load(places + row * tiles + best)
    tl.store(tokens + row, (best * TILE + place).to(tl.int64))
