"""What an adder gets right after how many passes, and how long its answers take."""

import math
import statistics
import time
from collections.abc import Callable

import pandas as pd
import torch

from xpress_lab.beyond.adder import Problems, Reconciler
from xpress_lab.jacobi import Solution


def exact_after(solution: Solution, problems: Problems) -> torch.Tensor:
    """Which sums are right in every digit after p passes: ``[n + 2, N]`` booleans.

    Row 0 is the base alone; a solution that came to rest early repeats its last row.

    Args:
        solution: with its trace, solved to the fixed point.
    """
    rows = [(digits == problems.total).all(dim=1) for digits in solution.trace]
    rows += [rows[-1]] * (problems.total.shape[1] + 1 - len(rows))
    return torch.stack(rows)


def passes_needed(solution: Solution) -> torch.Tensor:
    """``[N]`` the pass after which each sum's digits are those of the last."""
    trace = torch.stack(solution.trace)
    return (trace != trace[-1]).any(dim=2).sum(dim=0)  # a final row stays final


def by_chain(exact: torch.Tensor, problems: Problems) -> pd.DataFrame:
    """Share of exact sums: a line per number of passes, a column per longest chain."""
    longest = problems.longest
    shares = {
        chain: exact[:, longest == chain].float().mean(dim=1).tolist()
        for chain in longest.unique().tolist()
    }
    table = pd.DataFrame(shares)
    table.index.name, table.columns.name = "passes", "chain"
    return table


def milliseconds(
    solver: Reconciler, batches: list[Problems], repeats: int = 3
) -> pd.DataFrame:
    """Least time of an answer by each way of solving, which take turns on each batch.

    Whatever disturbs a run only adds to it, so the least of several is the answer's
    own. CPU time, not the clock's: other programs do not count, but all threads do, so
    it is meant for one.

    Columns: way, milliseconds a batch, and evaluations in series, both the mean over
    batches.
    """
    ways: dict[str, Callable[[Problems], Solution]] = {
        "window alone": lambda p: solver.parallel(p, 0),
        "Jacobi passes": lambda p: solver.parallel(p),
        "digit by digit": solver.in_order,
    }
    spent = {way: [math.inf] * len(batches) for way in ways}
    made = {way: [0] * len(batches) for way in ways}
    order = list(ways)
    for turn in range(repeats + 1):
        order.append(order.pop(0))  # nobody always goes first
        for number, batch in enumerate(batches):
            for way in order:
                started = time.process_time()
                made[way][number] = ways[way](batch).passes
                took = 1000 * (time.process_time() - started)
                if turn:  # the first turn warms up
                    spent[way][number] = min(spent[way][number], took)
    return pd.DataFrame(
        {
            "way": list(ways),
            "milliseconds": [statistics.fmean(spent[way]) for way in ways],
            "evaluations": [statistics.fmean(made[way]) for way in ways],
        }
    )
