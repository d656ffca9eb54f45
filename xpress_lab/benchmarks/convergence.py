"""How many passes a block needs, measured on the blocks of real texts."""

import pandas as pd

from xpress_lab.decoding import Round, decode
from xpress_lab.lab import Lab


def final_pass(round: Round) -> int:
    """The first pass whose tokens are those of the last."""
    return round.trace.index(round.trace[-1])


def read_pass(round: Round) -> int:
    """The first pass after which all slots *that the target reads* are final.

    These are the kept drafts and the one that it rejects; what stands behind them
    is thrown away unread, settled or not.
    """
    read = round.accepted + 1
    return next(
        p for p, row in enumerate(round.trace) if row[:read] == round.trace[-1][:read]
    )


def block_convergence(
    lab: Lab, prompts: dict[str, list[str]], max_new_tokens: int = 128
) -> pd.DataFrame:
    """One row per drafted block, from greedy texts solved to the fixed point.

    Columns: benchmark, prompt_id, round, ``final_pass``, ``read_pass`` (0 if the
    bare draft does), ``passes`` (evaluations made, one more to notice), accepted.
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
                    "final_pass": final_pass(r),
                    "read_pass": read_pass(r),
                    "passes": r.passes,
                    "accepted": r.accepted,
                }
                for index, r in enumerate(text.rounds)
            ]
    return pd.DataFrame(rows)


def converged_share(blocks: pd.DataFrame, block_size: int) -> pd.DataFrame:
    """Share of blocks that are final after p passes, p = 0..B-1, one column a pass.

    Two rows: the whole block, and the part of it that the target reads.
    """
    passes = range(block_size)
    rows = {"whole block": "final_pass", "part that is read": "read_pass"}
    return pd.DataFrame(
        {p: [(blocks[column] <= p).mean() for column in rows.values()] for p in passes},
        index=list(rows),
    )
