"""How answers begin at T > 0: the exact law of the first tokens, and what was said."""

from collections import Counter

import numpy as np
import torch

from xpress_lab.decoding import decode
from xpress_lab.exactness import p_value
from xpress_lab.lab import Lab
from xpress_lab.methods import Method
from xpress_lab.sampling import Sampling

Words = tuple[int, ...]


@torch.inference_mode()
def opening_law(
    target, prompt: list[int], length: int, sampling: Sampling, least: float = 0.01
) -> dict[Words, float]:
    """Chances of the first ``length`` tokens of an answer, those of ``least`` or more.

    Found by asking the target for every beginning that is likely enough. An opening is
    shorter where a stop id ends the answer.
    """
    law, done = {(): 1.0}, {}
    for _ in range(length):
        grown = {}
        for words, chance in law.items():
            ids = torch.tensor([[*prompt, *words]], device=target.device)
            cache = target.new_cache(1, ids.shape[1])
            logits = target.forward(ids, cache, last_only=True).logits[0, -1]
            chances = chance * sampling.probabilities(logits).double()
            for token in (chances >= least).nonzero().flatten().tolist():
                ends = done if token in target.stop_ids else grown
                ends[(*words, token)] = float(chances[token])
        law = grown
    return law | done


def openings(
    lab: Lab,
    method: Method,
    prompt: list[int],
    length: int,
    sampling: Sampling,
    texts: int,
) -> Counter[Words]:
    """How often each opening came up in ``texts`` answers, by seeds 0, 1, 2, ..."""
    said = Counter()
    for seed in range(texts):
        text = decode(
            lab.target,
            method,
            prompt,
            sampling=sampling,
            max_new_tokens=length,
            seed=seed,
        )
        said[tuple(text.tokens)] += 1
    return said


def opening_p_value(said: Counter[Words], law: dict[Words, float]) -> float:
    """Chi-square of openings against their law; unlikely ones are counted together."""
    likely = [said[words] for words in law]
    seen = np.array([*likely, said.total() - sum(likely)])
    chances = np.array([*law.values(), max(0.0, 1 - sum(law.values()))])
    return p_value(seen, chances)
