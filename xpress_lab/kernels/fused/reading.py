"""Reading out: the ``[N, S, V]`` sum is never written.

Each program scores one tile of the vocabulary for all slots, so that w2 is read once,
and keeps the tile's best; a second launch compares tiles. Ties go to the left in both
stages: the first of equals wins. With noise both stages also sum up the law that it
draws from, so that the chance of what was drawn is known at the end.
"""

import torch
import triton
import triton.language as tl

from xpress_lab.kernels.choices import Chosen
from xpress_lab.kernels.fused.parts import gumbel, log_sum
from xpress_lab.kernels.noise import Noise

TILE = 64  # tokens a program scores
MOST_ROWS = {2: 64, 4: 32}  # slots that one program scores, by bytes of a number


def choose(base: torch.Tensor, noise: Noise | None = None) -> Chosen:
    """See :func:`xpress_lab.kernels.plain.choose`."""
    return _first_tops(None, None, base, noise)


def read_out(
    w2: torch.Tensor, z: torch.Tensor, base: torch.Tensor, noise: Noise | None = None
) -> Chosen:
    """See :func:`xpress_lab.kernels.plain.read_out`."""
    return _first_tops(w2.contiguous(), z.contiguous(), base, noise)


def _first_tops(w2, z, base, noise):
    base = base.contiguous()
    vocab = base.shape[-1]
    rows = base.numel() // vocab
    tiles = triton.cdiv(vocab, TILE)
    most = MOST_ROWS[base.element_size()]  # more would not fit beside a tile of w2
    height = min(max(triton.next_power_of_2(rows), 16), most)
    rank = 16 if z is None else z.shape[-1]
    tops = base.new_empty((rows, tiles), dtype=torch.float32)
    places = base.new_empty((rows, tiles), dtype=torch.int32)
    own, mass = None, None
    tokens, log_q = base.new_empty(base.shape[:-1], dtype=torch.int64), None
    if noise is not None:
        own, mass = torch.empty_like(tops), torch.empty_like(tops)
        log_q = torch.empty_like(tokens, dtype=torch.float32)
    _tops[(tiles, triton.cdiv(rows, height))](
        w2,
        z,
        base,
        None if noise is None else noise.key,
        tops,
        places,
        own,
        mass,
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
        tops,
        places,
        own,
        mass,
        tokens,
        log_q,
        tiles,
        NOISY=noise is not None,
        TILE=TILE,
        TILES=triton.next_power_of_2(tiles),
    )
    return Chosen(tokens, log_q)


@triton.jit
def _tops(
    w2,
    z,
    base,
    key,
    tops,
    places,
    own,
    mass,
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
    scores = tl.where(real, scores, float("-inf"))
    if NOISY:
        law = scores / temperature
        scores = law + gumbel(key, place)
    top, where = tl.max(scores, axis=1, return_indices=True)
    here = row * tiles + tile
    tl.store(tops + here, top, mask=row < rows)
    tl.store(places + here, where, mask=row < rows)
    if NOISY:  # what the noise is blind to: the law that it draws from
        chosen = tl.arange(0, TILE)[None, :] == where[:, None]
        tl.store(
            own + here, tl.max(tl.where(chosen, law, float("-inf")), 1), row < rows
        )
        tl.store(mass + here, log_sum(law, 1), mask=row < rows)


@triton.jit
def _first_of_tiles(
    tops,
    places,
    own,
    mass,
    tokens,
    log_q,
    tiles,
    NOISY: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    here, real = row * tiles + tile, tile < tiles
    top = tl.load(tops + here, mask=real, other=float("-inf"))
    _, best = tl.max(top, axis=0, return_indices=True)
    place = tl.load(places + row * tiles + best)
    tl.store(tokens + row, (best * TILE + place).to(tl.int64))
    if NOISY:
        masses = tl.load(mass + here, mask=real, other=float("-inf"))
        chance = tl.load(own + row * tiles + best) - log_sum(masses, 0)
        tl.store(log_q + row, chance)


def scores(
    base: torch.Tensor, w2: torch.Tensor | None = None, z: torch.Tensor | None = None
) -> torch.Tensor:
    """See :func:`xpress_lab.kernels.plain.scores`: in float32, as the kernels sum."""
    if z is None:
        return base.float()
    base, vocab, rank = base.contiguous(), base.shape[-1], z.shape[-1]
    rows = base.numel() // vocab
    out = torch.empty_like(base, dtype=torch.float32)
    _scores[(triton.cdiv(vocab, TILE), rows)](
        w2.contiguous(),
        z.contiguous(),
        base,
        out,
        vocab,
        rank,
        TILE=TILE,
        RANK=triton.next_power_of_2(rank),
    )
    return out


@triton.jit
def _scores(w2, z, base, out, vocab, rank, TILE: tl.constexpr, RANK: tl.constexpr):
    row = tl.program_id(1).to(tl.int64)
    token = (tl.program_id(0) * TILE + tl.arange(0, TILE)).to(tl.int64)
    channel, here = tl.arange(0, RANK), row * vocab + token
    real, inside = token < vocab, channel < rank
    latent = tl.load(z + row * rank + channel, mask=inside, other=0.0).to(tl.float32)
    weight = w2 + token[:, None] * rank + channel[None, :]
    weights = tl.load(weight, mask=real[:, None] & inside[None, :], other=0.0)
    products = tl.sum(weights.to(tl.float32) * latent[None, :], axis=1)
    logits = tl.load(base + here, mask=real, other=0.0).to(tl.float32)
    tl.store(out + here, logits + products, mask=real)
