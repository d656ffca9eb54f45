"""The target's answers to many prompts at once, and the states it passed through.

A drafter learns from the target's own texts and reads the target's hidden states in
them. Whoever writes a text has computed its states, so both are kept together.
"""

from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from xpress_lab.argmax import first_argmax
from xpress_lab.batching import close_gaps
from xpress_lab.cache import KVCache
from xpress_lab.sampling import Sampling
from xpress_lab.target import Target

Pair = tuple[list[int], list[int]]  # prompt ids, response ids
STRETCH = 32  # prompt tokens a call


class Answers(NamedTuple):
    """Finished texts, in the order of their prompts.

    pairs: of every text. states: ``[tokens, (n+1)*H]``, taps and then what the output
    head reads, text after text. lse: ``[tokens]`` float32 log normaliser, nan where no
    response token follows. A text's last token was never run: its states are zero.
    """

    pairs: list[Pair]
    states: torch.Tensor
    lse: torch.Tensor


@torch.inference_mode()
def answer(
    target: Target,
    prompts: list[list[int]],
    tap_ids: tuple[int, ...],
    sampling: Sampling,
    max_new_tokens: int,
    seed: int,
) -> Answers:
    """Continue all prompts up to a stop id; a text that has ended leaves the batch."""
    tokens = pad_sequence([torch.tensor(p) for p in prompts], True, target.pad_id)
    tokens = tokens.to(target.device)
    rows, width = tokens.shape
    generator = torch.Generator(target.device).manual_seed(seed)
    cache = target.new_cache(rows, width + max_new_tokens)
    kept = _Kept(target, rows, width + max_new_tokens, len(tap_ids))
    going, texts = list(range(rows)), [list(prompt) for prompt in prompts]

    last = read_prompts(target, tokens, list(map(len, prompts)), cache, tap_ids, kept)
    for left in reversed(range(max_new_tokens)):
        logits = target.head(last)
        ends = torch.tensor(cache.lengths)
        kept.lse[going, ends - 1] = logits.float().logsumexp(-1)
        chosen = choose(logits, sampling, generator)
        for row, token in zip(going, chosen.tolist(), strict=True):
            texts[row].append(token)
        staying = still_going(chosen.tolist(), target.stop_ids, cache)
        if not left or not staying:
            break
        going = [going[place] for place in staying]
        tokens, places = chosen[staying][:, None], ends[staying]
        last, taps = target.states(tokens, cache, tap_ids)
        last = last[:, 0]
        kept.put(going, places, None if taps is None else taps[:, 0], last)
    pairs = [(p, t[len(p) :]) for p, t in zip(prompts, texts, strict=True)]
    return Answers(pairs, *kept.of([len(text) for text in texts]))


def read_prompts(
    target: Target,
    tokens: torch.Tensor,
    lengths: list[int],
    cache: KVCache,
    tap_ids: tuple[int, ...],
    kept: "_Kept",
) -> torch.Tensor:
    """Run padded prompts ``[N, L]`` in stretches; states of their ends ``[N, H]``.

    Many rows make a large product of even a few tokens, and what lies between two
    layers stays small enough not to be fetched from the system anew each time.
    """
    ends = [None] * len(tokens)
    for start in range(0, tokens.shape[1], STRETCH):
        part = slice(start, min(start + STRETCH, tokens.shape[1]))
        last, taps = target.states(tokens[:, part], cache, tap_ids)
        kept.put(range(len(tokens)), part, taps, last)
        for row, length in enumerate(lengths):
            if start < length <= part.stop:
                ends[row] = last[row, length - 1 - start]
    cache.crop(lengths)
    return torch.stack(ends)


def choose(logits, sampling: Sampling, generator) -> torch.Tensor:
    """Next tokens ``[N]`` from logits ``[N, V]``.

    Drawn through the cumulative sum, one uniform number a row: on a CPU and a large
    vocabulary a tenth of multinomial's time.
    """
    if sampling.greedy:
        return first_argmax(logits)
    mass = sampling.probabilities(logits).cumsum(dim=-1)
    shape, where = (len(mass), 1), mass.device
    level = torch.rand(shape, generator=generator, device=where) * mass[:, -1:]
    return torch.searchsorted(mass, level).squeeze(-1).clamp_max(mass.shape[-1] - 1)


def still_going(chosen: list[int], stops: tuple[int, ...], cache: KVCache) -> list[int]:
    """Drop ended rows from the cache: which row now stands in each place."""
    finished = [token in stops for token in chosen]
    rows = close_gaps(finished)
    if any(finished):
        cache.keep_rows(rows)
    return rows


class _Kept:
    """Room for the states of every token of a batch."""

    def __init__(self, target: Target, rows: int, length: int, taps: int):
        width = (taps + 1) * target.config.hidden_size
        where = {"device": target.device}
        self.states = torch.zeros(rows, length, width, dtype=torch.bfloat16, **where)
        self.lse = torch.full((rows, length), torch.nan, **where)

    def put(self, rows, places, taps: torch.Tensor | None, last: torch.Tensor) -> None:
        both = last if taps is None else torch.cat([taps, last], dim=-1)
        self.states[list(rows), places] = both.to(self.states.dtype)

    def of(self, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """States and lse of whole texts, one after another."""
        rows = list(enumerate(lengths))
        for row, length in rows:
            self.states[row, length - 1] = 0
        return (
            torch.cat([self.states[row, :length] for row, length in rows]).cpu(),
            torch.cat([self.lse[row, :length] for row, length in rows]).cpu(),
        )
