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
READY = 2**22  # probabilities that are kept ready, 16 MB


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
        self._words = [grams[:, -1].long() for grams, _ in tables]
        self._own = []  # of each table: (c - D) / c(context), row by row
        # Of each context: its rows, and the mass that it leaves to the shorter one.
        self._seen: dict[tuple[int, ...], tuple[slice, float]] = {}
        for grams, counts in tables:
            each, totals = counts.tolist(), []
            for context, same in groupby(map(tuple, grams[:, :-1].tolist())):
                rows = slice(len(totals), len(totals) + sum(1 for _ in same))
                kinds, total = rows.stop - rows.start, sum(each[rows])
                self._seen[context] = rows, DISCOUNT * kinds / total
                totals += [total] * kinds
            self._own.append((counts - DISCOUNT) / torch.tensor(totals))
        keep = lru_cache(max(64, READY // vocab_size))
        self.probabilities = keep(self._probabilities)

    def log_probs(self, contexts: list[tuple[int, int]]) -> torch.Tensor:
        """``[F, V]`` after each of F pairs of target ids."""
        laws = torch.stack([self.probabilities(context) for context in contexts])
        return laws.log().clamp_max(0)

    def _probabilities(self, context: tuple[int, ...]) -> torch.Tensor:
        """``[V]`` probabilities of the next token after at most two others."""
        if context:
            shorter = self.probabilities(context[1:])
        else:
            shorter = torch.full((self.vocab_size,), 1 / self.vocab_size)
        if context not in self._seen:
            return shorter
        rows, left = self._seen[context]
        words, own = self._words[len(context)][rows], self._own[len(context)][rows]
        return (shorter * left).index_add_(0, words, own)


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
            f"No 3-gram counts at {path}: make them with "
            f"xpress-lab train --only ngram --out {folder.parent}"
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
