"""How many passes a block needs, measured on the blocks of real texts."""

import pandas as pd
import torch

from xpress_lab.decoding import decode
from xpress_lab.lab import Lab


def block_convergence(
    lab: Lab, prompts: dict[str, list[str]], max_new_tokens: int = 128
) -> pd.DataFrame:
    """One row per drafted block, from greedy texts solved to the fixed point.

    Columns: benchmark, prompt_id, round, ``final_pass`` (first pass whose tokens
    equal the fixed point; 0 if the bare draft does), ``passes`` (evaluations made,
    one more than ``final_pass`` to notice), accepted.
    """
    method = lab.method("xpress", passes=None)
    rows = []
    for name, texts in prompts.items():
        for number, prompt in enumerate(texts):
            text = decode(
                lab.target,
                method,
                lab.target.encode(prompt),
                max_new_tokens=max_new_tokens,
                keep_trace=True,
            )
            rows += [
                {
                    "benchmark": name,
                    "prompt_id": number,
                    "round": index,
                    "final_pass": r.trace.index(r.trace[-1]),
                    "passes": r.passes,
                    "accepted": r.accepted,
                }
                for index, r in enumerate(text.rounds)
            ]
    return pd.DataFrame(rows)


def converged_share(blocks: pd.DataFrame, block_size: int) -> pd.Series:
    """Share of blocks that are final after p passes, p = 0..B-1."""
    final = torch.tensor(blocks["final_pass"].to_numpy())
    passes = range(block_size)
    shares = [float((final <= p).float().mean()) for p in passes]
    return pd.Series(shares, index=pd.Index(passes, name="passes"), name="share")
