"""What each term of the loss buys, read off arms that were trained without one.

The same three questions for every arm: how many tokens a verification emits after K
passes (tau), how many the drafter alone would give it (tau at K = 0), and how many
passes a block takes until the part that the target reads is final.
"""

from collections.abc import Sequence

import pandas as pd

from xpress_lab.benchmarks.convergence import final_pass, read_pass
from xpress_lab.checkpoints import Arm
from xpress_lab.decoding import Generation, decode
from xpress_lab.lab import DEFAULT_PASSES, arm_method
from xpress_lab.statistics import (
    Ratio,
    bootstrap,
    paired_ratio,
    tau_pooled,
    token_hash,
)
from xpress_lab.target import Target

WHOLE = "all four"  # the loss with every term
FIXED = "fixed"  # passes until nothing changes

passes_read = Ratio(lambda rows: rows["read_passes"], lambda rows: rows["verify_steps"])
passes_whole = Ratio(
    lambda rows: rows["final_passes"], lambda rows: rows["verify_steps"]
)


def measure_arms(
    target: Target,
    arms: dict[str, Arm],
    prompts: dict[str, list[str]],
    passes: Sequence[int] = (0, 1, DEFAULT_PASSES),
    seed: int = 0,
    max_new_tokens: int = 128,
) -> pd.DataFrame:
    """Greedy texts of each arm with each number of passes, and to the fixed point.

    Args:
        arms: by the name of the loss that they were trained with.
        seed: of the training, noted in every row.

    Returns:
        One row per text; columns: loss, passes (a number in words, or "fixed"),
        benchmark, prompt_id, seed, new_tokens, verify_steps, token_hash, and, summed
        over the blocks of a text, read_passes and final_passes: after how many passes
        what is read, and the whole block, are as the last pass leaves them.
    """
    rows = []
    for loss, arm in arms.items():
        for k in (*passes, None):
            method = arm_method(arm, target, k, candidates=0)
            for benchmark, texts in prompts.items():
                for number, prompt in enumerate(texts):
                    text = decode(
                        target,
                        method,
                        target.encode(prompt),
                        max_new_tokens=max_new_tokens,
                        keep_trace=True,
                    )
                    arm_row = {"loss": loss, "passes": FIXED if k is None else str(k)}
                    told = {"benchmark": benchmark, "prompt_id": number, "seed": seed}
                    rows.append(arm_row | told | _counts(text))
    return pd.DataFrame(rows)


def _counts(text: Generation) -> dict:
    return {
        "new_tokens": len(text.tokens),
        "verify_steps": len(text.rounds),
        "read_passes": sum(map(read_pass, text.rounds)),
        "final_passes": sum(map(final_pass, text.rounds)),
        "token_hash": token_hash(text.tokens),
    }


def loss_costs(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per loss and number of passes of :func:`measure_arms`'s rows.

    Columns: texts; tau with its interval; share, tau in units of the whole loss's on
    the same texts and training seeds, with its interval; seeds, and the lowest and
    highest share of a single seed; read and whole, passes until final, with the
    interval of the former. Intervals are 95 %, by bootstrap over texts: what another
    training seed would change is not in them.
    """
    lines = []
    for (loss, passes), own in rows.groupby(["loss", "passes"], sort=False):
        every = rows[(rows["loss"] == WHOLE) & (rows["passes"] == passes)]
        line = {"loss": loss, "passes": passes, "texts": len(own)}
        for name, found in {
            "tau": bootstrap(own, tau_pooled),
            "share": paired_ratio(own, every, tau_pooled),
            "read": bootstrap(own, passes_read),
        }.items():
            line |= {name: found.value, f"{name}_low": found.low}
            line[f"{name}_high"] = found.high
        of_seed = [
            tau_pooled(part) / tau_pooled(every[every["seed"] == seed])
            for seed, part in own.groupby("seed")
        ]
        line |= {"seeds": len(of_seed), "share_lowest_seed": min(of_seed)}
        line |= {"share_highest_seed": max(of_seed), "whole": passes_whole(own)}
        lines.append(line)
    return pd.DataFrame(lines)
