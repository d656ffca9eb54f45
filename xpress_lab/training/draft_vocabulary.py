"""Which of a large target's tokens a drafter may say."""

from typing import NamedTuple

import torch

from xpress_lab.errors import LabError
from xpress_lab.training.texts import TextSet


class DraftVocabulary(NamedTuple):
    """ids: ``[D]`` target ids in rising order. coverage: share of response tokens
    that are among them. seen: different tokens in the responses."""

    ids: torch.Tensor
    coverage: float
    seen: int


def choose_draft_vocabulary(
    texts: TextSet, size: int, always: tuple[int, ...], vocab_size: int
) -> DraftVocabulary:
    """The ``size`` most frequent response tokens; ``always`` (stop ids) are in it."""
    if not len(always) <= size <= vocab_size:
        raise LabError(
            f"A draft vocabulary of {size} tokens is not in 1..{vocab_size}."
        )
    counts = torch.bincount(texts.tokens[texts.in_response()], minlength=vocab_size)
    wish = counts.double()
    wish[list(always)] = torch.inf
    # A stable sort gives unseen tokens by id, so that the choice is reproducible.
    ids = wish.argsort(descending=True, stable=True)[:size].sort().values
    coverage = counts[ids].sum().item() / max(1, counts.sum().item())
    return DraftVocabulary(ids, coverage, int((counts > 0).sum()))
