"""Counting 3-grams on the target's own responses, for PRESTO's auxiliary."""

import torch

from xpress_lab.ngram import ORDER, Counts, NGram
from xpress_lab.training.texts import TextSet

MOST = 80_000  # different n-grams of an order that are kept; rarer ones are dropped


def count_ngrams(texts: TextSet, vocab_size: int, most: int = MOST) -> NGram:
    """Counts of the tokens of responses after up to two tokens, prompt included.

    A response's first tokens are predicted from the prompt's last, as in decoding.
    """
    return NGram(
        [_count(texts, order, vocab_size, most) for order in range(1, ORDER + 1)],
        vocab_size,
    )


def _count(texts: TextSet, order: int, vocab_size: int, most: int) -> Counts:
    windows = texts.tokens.unfold(1, order, 1)  # [M, L - order + 1, order]
    grams = windows[texts.in_response()[:, order - 1 :]]
    weights = vocab_size ** torch.arange(order - 1, -1, -1)
    keys, counts = (grams * weights).sum(1).unique(return_counts=True)
    kept = counts.argsort(descending=True, stable=True)[:most].sort().values
    digits = keys[kept, None] // weights % vocab_size
    return Counts(digits, counts[kept])
