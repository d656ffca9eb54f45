"""Gumbel noise by counter: the same noise returns at every pass without being kept.

Frozen noise must be the same in the seed and in all passes of a block, and for large
vocabularies N x S x V floats are much to store and to read again. A counter-based
generator makes the number at a place from (key, place) alone. This is Philox 4x32 with
ten rounds (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, 2011), which
Triton offers inside kernels; here are the same numbers in plain torch.
"""

from typing import NamedTuple

import torch

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
UNIT = 4.6566127342e-10  # times the largest int32, still under 1 in float32


class Noise(NamedTuple):
    """key: ``[1]`` int64, fresh for each block. temperature: divides the scores."""

    key: torch.Tensor
    temperature: float


def gumbel(key: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Standard Gumbel noise, float32, in two clamped steps (methods 2.4)."""
    places = torch.arange(torch.Size(shape).numel(), device=key.device)
    exponential = -torch.log(uniform(key, places).clamp_min(1e-20))
    return -torch.log(exponential.clamp_min(1e-20)).view(shape)


def uniform(key: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Numbers in [0, 1), float32, one for each int64 place."""
    word = philox(key, places)[0]
    signed = torch.where(word > 0x7FFFFFFF, word - (WORD + 1), word)
    return torch.where(signed < 0, -signed - 1, signed).float() * UNIT


def philox(key: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
    """Four 32-bit words, as int64, for each place; key and place are 64-bit numbers."""
    keys = [key & WORD, key >> 32 & WORD]
    zero = torch.zeros_like(places)
    words = [places & WORD, places >> 32 & WORD, zero, zero]
    for _ in range(ROUNDS):
        high_a, low_a = multiply(MULTIPLIERS[0], words[0])
        high_b, low_b = multiply(MULTIPLIERS[1], words[2])
        words = [
            high_b ^ words[1] ^ keys[0],
            low_b,
            high_a ^ words[3] ^ keys[1],
            low_a,
        ]
        keys = [(k + s) & WORD for k, s in zip(keys, KEY_STEPS, strict=True)]
    return words


def multiply(constant: int, word: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low 32 bits of a product, by halves that fit a signed int64."""
    upper, lower = (constant >> 16) * word, (constant & 0xFFFF) * word
    high = (upper + (lower >> 16)) >> 16
    low = (((upper & 0xFFFF) << 16) + lower) & WORD
    return high, low
