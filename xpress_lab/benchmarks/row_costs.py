"""What a round costs by texts and drafts, measured: the line that a schedule needs."""

import numpy as np
from tqdm import tqdm

from xpress_lab.batching import decode_batch
from xpress_lab.block_method import BlockDrafting, BlockMethod
from xpress_lab.lab import Lab
from xpress_lab.scheduling import RoundCosts

NEW_TOKENS = 24  # of each text: enough for some rounds of full batches


class FixedLength(BlockDrafting):
    """Sends the same number of drafts in every round, and asks the confidence head as
    a schedule would, since that takes time too."""

    def __init__(self, method: BlockMethod, capacity: int, rows: int, length: int):
        super().__init__(method, capacity, rows)
        self.length = length

    def counts(self, hidden, request, tokens) -> list[int]:
        self.sureness(hidden, request, tokens)
        return [self.length] * len(tokens)


def measure_round_costs(
    lab: Lab, arm, prompts: list[str], texts: int = 1, turns: int = 3
) -> RoundCosts:
    """Fit :class:`RoundCosts` to greedy rounds of 1 and of ``texts`` texts, with all
    drafts sent and with none; cases take turns, and the first turn does not count.

    Errors count relative to a case's time. Sampled rounds take somewhat longer.

    Args:
        arm: a :class:`xpress_lab.benchmarks.runner.RunArm` with a confidence head.
        prompts: of which ``texts`` are used, over again where they are too few.
    """
    # The threshold is there for the head to be loaded; FixedLength never cuts by it.
    method = lab.block_method(arm.name, arm.passes, confidence=1.0)
    encoded = [lab.target.encode(prompt) for prompt in prompts]
    encoded = [encoded[i % len(encoded)] for i in range(max(texts, 2))]
    cases = [(n, k) for n in (1, len(encoded)) for k in (0, method.budget)]
    parts, seconds = [], []
    for turn in tqdm(range(turns + 1), f"costs of {arm.name}", disable=None):
        for rows, length in cases:
            found = _watch(lab, method, encoded[:rows], length)
            if turn:
                parts.append(found[:3])
                seconds.append(found[3])
    return RoundCosts(*fit(np.array(parts), np.array(seconds)).tolist())


def fit(parts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Costs ``[3]``, none below zero, that make ``parts`` ``[cases, 3]`` times costs
    come near to ``seconds``, relative to them."""
    used, costs = np.ones(3, dtype=bool), np.zeros(3)
    while True:
        scaled = parts[:, used] / seconds[:, None]
        found = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
        if (found >= 0).all():
            costs[used] = found
            return costs
        used[np.flatnonzero(used)[found < 0]] = False


def _watch(lab: Lab, method: BlockMethod, prompts, length: int):
    """Rounds, rounds of texts, drafts, and seconds of one batch."""
    method.begin = lambda capacity, rows=1: FixedLength(method, capacity, rows, length)
    texts = decode_batch(
        lab.target, method, prompts, max_new_tokens=NEW_TOKENS, stop_ids=()
    )
    rounds = [len(text.rounds) for text in texts]
    last = max(texts, key=lambda text: text.decode_seconds)  # the batch's times
    return max(rounds), sum(rounds), sum(rounds) * length, last.decode_seconds
