"""A 3-gram model: the cheap causal model that PRESTO consults.

Absolute discounting with backoff. Every count seen after a context gives up a part D;
the mass freed goes to what the shorter context expects, and at the end to all tokens
alike, so that no token is impossible:

    p(w | uv) = max(c(uvw) - D, 0) / c(uv) + D n(uv) / c(uv) p(w | v)

with n(uv) the number of different tokens seen after u v. A context never seen leaves
the word to the shorter one.
"""

from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from xpress_lab.errors import LabError
from xpress_lab.files import write_whole

ORDER = 3
DISCOUNT = 0.75
ROWS = 4096  # contexts whose rows are kept ready


class Counts(NamedTuple):
    """grams: ``[m, n]`` different n-grams, sorted. counts: ``[m]``, all above 0."""

    grams: torch.Tensor
    counts: torch.Tensor


class NGram:
    """Log-probabilities of the next token given the two before it.

    Args:
        tables: counts of 1-grams, 2-grams and 3-grams, in this order.
        vocab_size: V; ids of the target.
    """

    def __init__(self, tables: list[Counts], vocab_size: int):
        self.tables, self.vocab_size = tables, vocab_size
        self._seen: dict[tuple[int, ...], slice] = {}
        for grams, _ in tables:
            start = 0
            for context, same in groupby(map(tuple, grams[:, :-1].tolist())):
                end = start + sum(1 for _ in same)
                self._seen[context] = slice(start, end)
                start = end
        self.probabilities = lru_cache(ROWS)(self._probabilities)
        self._row = lru_cache(ROWS)(lambda *c: self.probabilities(c).log())

    def log_probs(self, prefixes: torch.Tensor) -> torch.Tensor:
        """``[F, V]`` after prefixes ``[F, k]`` of target ids; the last two matter."""
        rows = [self._row(*c) for c in prefixes[:, 1 - ORDER :].tolist()]
        return torch.stack(rows).to(prefixes.device)

    def _probabilities(self, context: tuple[int, ...]) -> torch.Tensor:
        """``[V]`` probabilities of the next token after at most two others."""
        if context:
            shorter = self.probabilities(context[1:])
        else:
            shorter = torch.full((self.vocab_size,), 1 / self.vocab_size)
        if context not in self._seen:
            return shorter
        table, rows = self.tables[len(context)], self._seen[context]
        words, counts = table.grams[rows, -1].long(), table.counts[rows].float()
        total = counts.sum()
        law = shorter * (DISCOUNT * len(words) / total)
        law[words] += (counts - DISCOUNT) / total
        return law.clamp_max(1)


def save_ngram(ngram: NGram, folder: Path) -> None:
    """Write the counts as model.safetensors, ids in the smallest type that fits."""
    ids = torch.int16 if ngram.vocab_size <= 2**15 else torch.int32
    tensors = {"vocab_size": torch.tensor([ngram.vocab_size])}
    for order, (grams, counts) in enumerate(ngram.tables, start=1):
        tensors[f"grams.{order}"] = grams.to(ids)
        tensors[f"counts.{order}"] = counts.to(torch.int32)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "model.safetensors", lambda path: save_file(tensors, path))


def load_ngram(folder: Path, vocab_size: int) -> NGram:
    """Read counts and check them; :class:`LabError` where they do not fit."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise LabError(
            f"No 3-gram counts at {path}: make them with xpress-lab train --only ngram."
        )
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise LabError(f"{path} is corrupt or cut short: {error}") from error
    orders = range(1, ORDER + 1)
    names = {"vocab_size"} | {f"{k}.{n}" for n in orders for k in ("grams", "counts")}
    if set(tensors) != names:
        found, wanted = (", ".join(sorted(each)) for each in (tensors, names))
        raise LabError(f"{path} holds {found}, not {wanted}.")
    counted = int(tensors["vocab_size"])
    if counted != vocab_size:
        raise LabError(
            f"{path}: vocab_size is {counted}, the target's is {vocab_size}."
        )
    tables = [Counts(tensors[f"grams.{n}"], tensors[f"counts.{n}"]) for n in orders]
    for order, (grams, counts) in enumerate(tables, start=1):
        if grams.dim() != 2 or grams.shape != (len(counts), order) or len(counts) == 0:
            raise LabError(
                f"{path}: {order}-grams of shape {list(grams.shape)} with "
                f"{list(counts.shape)} counts."
            )
        if grams.min() < 0 or grams.max() >= vocab_size or counts.min() < 1:
            raise LabError(
                f"{path}: {order}-grams need ids in 0..{vocab_size - 1} and counts of "
                f"1 or more; found {int(grams.min())}..{int(grams.max())} and "
                f"{int(counts.min())}."
            )
    return NGram(tables, vocab_size)
