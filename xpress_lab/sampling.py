"""Sampling settings and random streams, shared by the drafting and verifying sides.

Both sides must filter and scale logits in exactly the same way, or the
acceptance ratio p/q no longer describes the tokens that were drawn. So there is
one function, :meth:`Sampling.scale`, and both call it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from xpress_lab.errors import LabError

# One generator for all rows of a tensor, or a generator a row.
Stream = torch.Generator | Sequence[torch.Generator]

GREEDY_BELOW = 1e-5  # temperatures under this are greedy, as in the authors' harness


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn from logits.

    Args:
        temperature: 0 (or anything under 1e-5) is greedy.
        top_k: keep the k largest logits; 0 keeps all.
        top_p: keep the smallest set of tokens whose mass reaches ``top_p``.
        draft_temperature: ``None`` drafts from the same distribution that is
            scored. 0 drafts by argmax and scores with a one-hot q (the dFlash
            convention); no other value is meaningful, since the tensor that is
            sampled must be the tensor that is scored.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    draft_temperature: float | None = None

    def __post_init__(self):
        if not 0 <= self.temperature < float("inf"):
            raise LabError(f"temperature must be 0 or more, not {self.temperature}.")
        if self.top_k < 0:
            raise LabError(f"top_k must be 0 (off) or more, not {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise LabError(f"top_p must be in (0, 1], not {self.top_p}.")
        if self.draft_temperature not in (None, 0, 0.0, self.temperature):
            raise LabError(
                "draft_temperature must be 0 (argmax drafts) or left out; "
                f"not {self.draft_temperature}."
            )

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def greedy_draft(self) -> bool:
        return self.greedy or self.draft_temperature == 0

    def scale(self, logits: torch.Tensor) -> torch.Tensor:
        """Filtered logits over temperature, float32 or wider; ``[..., V]`` kept.

        Filtered tokens become -inf. softmax of the result is the distribution.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        logits = logits / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            floor = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < floor, -torch.inf)
        if self.top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            mass = ordered.softmax(-1)
            beyond = mass.cumsum(-1) - mass >= self.top_p  # mass before the token
            dropped = torch.zeros_like(beyond).scatter(-1, order, beyond)
            logits = logits.masked_fill(dropped, -torch.inf)
        return logits

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution that tokens are drawn from, same shape as ``logits``."""
        return self.scale(logits).softmax(-1)


class Streams:
    """Three independent random streams: draft, accept, residual.

    Noise that chose a draft must never decide its acceptance or the token that
    replaces it: reuse of that kind shifts the output distribution without any
    visible sign. Separate generators make reuse impossible.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu"):
        # A counter-based spread keeps seeds 0, 1, 2 from sharing streams.
        self.draft, self.accept, self.residual = (
            torch.Generator(device).manual_seed((seed * 1_000_003 + stream) % 2**63)
            for stream in (11, 23, 37)
        )


class RowStreams:
    """The streams of N rows side by side, each row with its own generators.

    A row draws what it would draw alone, whatever its neighbours draw.
    """

    def __init__(self, rows: Sequence[Streams]):
        self.draft = [streams.draft for streams in rows]
        self.accept = [streams.accept for streams in rows]
        self.residual = [streams.residual for streams in rows]


def uniform(
    shape: tuple[int, ...],
    stream: Stream | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    counts: Sequence[int] | None = None,
) -> torch.Tensor:
    """Uniform numbers in [0, 1), ``[N, S, ...]``.

    Args:
        counts: with a generator a row, how many of its S entries each row draws;
            the others are 1. By default all.
    """
    if not isinstance(stream, Sequence):
        return torch.rand(shape, generator=stream, device=device, dtype=dtype)
    numbers = torch.ones(shape, device=device, dtype=dtype)
    counts = [shape[1]] * shape[0] if counts is None else counts
    for row, count, generator in zip(numbers, counts, stream, strict=True):
        row[:count].uniform_(generator=generator)
    return numbers


def gumbel_noise(
    shape: tuple[int, ...],
    stream: Stream | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Standard Gumbel noise in two clamped steps (methods: frozen noise at T > 0).

    ``argmax(logits + noise)`` is then a draw from ``softmax(logits)``.
    """
    numbers = uniform(shape, stream, device, dtype)
    exponential = -torch.log(numbers.clamp_min(1e-20))
    return -torch.log(exponential.clamp_min(1e-20))


def draw(probabilities: torch.Tensor, stream: Stream) -> torch.Tensor:
    """One token per row from ``[N, V]`` probabilities (need not sum to one)."""
    if not isinstance(stream, Sequence):
        return torch.multinomial(probabilities, 1, generator=stream).squeeze(-1)
    rows = zip(probabilities, stream, strict=True)
    return torch.cat([torch.multinomial(p, 1, generator=g) for p, g in rows])
