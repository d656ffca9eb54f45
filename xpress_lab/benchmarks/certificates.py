"""How often the certificate of candidate rows fails, on the blocks of real texts."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from xpress_lab.block_method import BlockDrafting, BlockMethod
from xpress_lab.decoding import decode
from xpress_lab.lab import Lab
from xpress_lab.sampling import Sampling

COUNTS = (16, 64, 256, 1024)


@dataclass
class Tally:
    """blocks: solved. failures: the first full pass changed something. full_passes:
    made in all. different: ended elsewhere than full passes alone, as near-ties may."""

    blocks: int = 0
    failures: int = 0
    full_passes: int = 0
    different: int = 0


class Checked:
    """xpress to the fixed point; every block is solved among candidates as well."""

    def __init__(self, chain: BlockMethod, counts: Sequence[int]):
        self.chain, self.name = chain, chain.name
        self.block_size, self.budget = chain.block_size, chain.budget
        self.tap_ids = chain.tap_ids
        self.tallies = {count: Tally() for count in counts}

    def begin(self, capacity: int) -> "CheckedDrafting":
        return CheckedDrafting(self, capacity)

    def describe(self) -> str:
        return f"{self.chain.describe()}, and again among candidates"


class CheckedDrafting(BlockDrafting):
    """Drafts as full passes make them; candidates are only counted."""

    def __init__(self, checked: Checked, capacity: int):
        super().__init__(checked.chain, capacity)
        self.tallies = checked.tallies

    def _solve(self, *block, candidates=0):
        answer = super()._solve(*block)
        for count, tally in self.tallies.items():
            found = super()._solve(*block, candidates=count)
            tally.blocks += 1
            tally.failures += found.passes > 1
            tally.full_passes += found.passes
            tally.different += not torch.equal(found.tokens, answer.tokens)
        return answer


def certificate_failures(
    lab: Lab,
    prompts: dict[str, list[str]],
    counts: Sequence[int] = COUNTS,
    temperatures: Sequence[float] = (0.0,),
    seeds: Sequence[int] = (0,),
    max_new_tokens: int = 128,
) -> pd.DataFrame:
    """One row per temperature and C.

    Columns: tier, temperature, vocabulary, candidates, blocks, failures, failure_rate,
    mean_full_passes, different.
    """
    chain, rows = lab.method("xpress", None, candidates=0), []
    for temperature in temperatures:
        checked = Checked(chain, counts)
        greedy = Sampling(temperature).greedy
        for seed in seeds[:1] if greedy else seeds:  # a greedy text has but one
            for texts in prompts.values():
                for number, prompt in enumerate(texts):
                    decode(
                        lab.target,
                        checked,
                        lab.target.encode(prompt),
                        sampling=Sampling(temperature),
                        max_new_tokens=max_new_tokens,
                        seed=seed * 1_000_003 + number,
                    )
        rows += [
            {
                "tier": lab.tier.name,
                "temperature": temperature,
                "vocabulary": chain.borrowed.vocab_size,
                "candidates": count,
                "blocks": tally.blocks,
                "failures": tally.failures,
                "failure_rate": tally.failures / tally.blocks,
                "mean_full_passes": tally.full_passes / tally.blocks,
                "different": tally.different,
            }
            for count, tally in checked.tallies.items()
        ]
    return pd.DataFrame(rows)
