"""Is the text the target's own? Every method against transformers' plain generation.

In float32 texts agree. In bfloat16 a product of B rows rounds unlike one of a single
row, and where the two best tokens lie within that rounding either may win: the margin
at the first difference tells such a tie from a fault.
"""

import math
from typing import NamedTuple

import pandas as pd
import torch

from xpress_lab.benchmarks.peers import generate
from xpress_lab.decoding import decode
from xpress_lab.lab import Lab
from xpress_lab.methods import Method


class Difference(NamedTuple):
    """place: of the first differing token in the answer. margin: top-1 less top-2
    logit there, of a fresh pass. ulps: the same in units of the logit's last bit."""

    place: int
    margin: float
    ulps: float


def compare_texts(
    lab: Lab,
    prompts: dict[str, list[str]],
    methods: list[Method],
    max_new_tokens: int = 128,
) -> pd.DataFrame:
    """One row per text and method; columns: benchmark, prompt_id, method, dtype,
    tokens, same, place, margin, ulps (the last three empty where texts agree)."""
    rows = []
    for name, texts in prompts.items():
        for number, prompt in enumerate(texts):
            ids = lab.target.encode(prompt)
            plain = generate(lab, ids, max_new_tokens)
            for method in methods:
                ours = decode(lab.target, method, ids, max_new_tokens=max_new_tokens)
                found = first_difference(lab.target, ids, plain, ours.tokens)
                row = {"benchmark": name, "prompt_id": number, "method": method.name}
                row |= {"dtype": str(lab.target.dtype).removeprefix("torch.")}
                row |= {"tokens": len(plain), "same": found is None}
                rows.append(row | (found._asdict() if found else {}))
    columns = ["benchmark", "prompt_id", "method", "dtype", "tokens", "same"]
    return pd.DataFrame(rows, columns=[*columns, *Difference._fields])


@torch.inference_mode()
def first_difference(
    target, prompt: list[int], plain: list[int], ours: list[int]
) -> Difference | None:
    """Where two answers part, and how close the choice was; ``None`` if nowhere."""
    if plain == ours:
        return None
    pairs = zip(plain, ours, strict=False)
    shorter = min(len(plain), len(ours))
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    tokens = torch.tensor([[*prompt, *plain[:place]]], device=target.device)
    cache = target.new_cache(1, tokens.shape[1])
    logits = target.forward(tokens, cache, last_only=True).logits[0, -1]
    best, second = logits.float().topk(2).values.tolist()
    margin = best - second
    return Difference(place, margin, margin / last_bit(best, logits.dtype))


def last_bit(value: float, dtype: torch.dtype) -> float:
    """Gap between neighbouring numbers of ``dtype`` near ``value``; at 0, where they
    are denser than any sum of products can resolve, that of numbers below one."""
    return math.ldexp(torch.finfo(dtype).eps, math.frexp(value)[1] - 1)


@torch.inference_mode()
def logits_by_width(
    target, prompt: list[int], tokens: list[int], width: int
) -> torch.Tensor:
    """``[T, V]`` what the target says at each place of an answer, in its own dtype.

    Args:
        tokens: the answer's T ids; row t comes from the t tokens before that place.
        width: how many of them a pass takes in: 1 as in plain decoding, B as in
            verification. In exact arithmetic it makes no difference.
    """
    rows = lambda ids: torch.tensor([ids], device=target.device)  # noqa: E731
    cache = target.new_cache(1, len(prompt) + len(tokens))
    parts = [target.forward(rows(prompt), cache, last_only=True).logits[0]]
    for start in range(0, len(tokens) - 1, width):
        some = tokens[start : min(start + width, len(tokens) - 1)]
        parts.append(target.forward(rows(some), cache).logits[0])
    return torch.cat(parts)


def margins(logits: torch.Tensor) -> torch.Tensor:
    """``[T]`` top-1 less top-2 logit of each row, in float64."""
    best, second = logits.double().topk(2, dim=-1).values.unbind(-1)
    return best - second
