"""Do a refiner and a token tree help each other, or take from the same place?

The authors call the two orthogonal and publish no figure. Here is the comparison that
the word asks for, on rows of the runner: each alone, both together, and what both
gains would make if they simply multiplied (methods 4.3). And the reason: at the first
draft that the target refuses, how far down the drafter's own list stood the right one?
A tree can only save what stands near the top.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

from xpress_lab.benchmarks.result_files import read_rows
from xpress_lab.benchmarks.rows import as_frame
from xpress_lab.benchmarks.tables import summary
from xpress_lab.block_method import BlockDrafting, BlockMethod
from xpress_lab.decoding import Round, decode
from xpress_lab.errors import LabError
from xpress_lab.lab import Lab
from xpress_lab.methods import Method
from xpress_lab.presets import data_folder
from xpress_lab.statistics import (
    Interval,
    Ratio,
    paired_ratio,
    tau_pooled,
    tokens_per_second,
)

MEASURES: dict[str, Ratio] = {"tau": tau_pooled, "tokens a second": tokens_per_second}
BARE, REFINED, PLANTED, BOTH = "dflash", "xPress alone", "tree alone", "both"
PRODUCT = "both gains multiplied"


def together(rows: pd.DataFrame, rescoring: str = "paths") -> pd.DataFrame:
    """xPress, DDTree and both, each over the bare chain on the same texts.

    Args:
        rows: of the runner, with arms dflash, xpress, dflash+ddtree, xpress+ddtree.
        rescoring: which of the two kinds of xpress+ddtree.

    Returns:
        One line per temperature, budget, measure (tau, tokens a second) and who;
        columns ratio, low, high. The product of the first two has no interval.
    """
    lines = []
    for keys, statistic, arms in _cases(rows, rescoring):
        bare = arms.pop(BARE)
        found = {who: paired_ratio(r, bare, statistic) for who, r in arms.items()}
        product = found[REFINED].value * found[PLANTED].value
        found[PRODUCT] = Interval(product, float("nan"), float("nan"))
        lines += [
            keys | {"who": w} | interval._asdict() for w, interval in found.items()
        ]
    return pd.DataFrame(lines).rename(columns={"value": "ratio"})


def over_each(rows: pd.DataFrame, rescoring: str = "paths") -> pd.DataFrame:
    """Both together over each alone: ratios of tau and of speed on the same texts.

    Columns: temperature, budget, measure, over (:data:`REFINED`, :data:`PLANTED`),
    ratio, low, high.
    """
    lines = [
        keys | {"over": who} | paired_ratio(arms[BOTH], arms[who], statistic)._asdict()
        for keys, statistic, arms in _cases(rows, rescoring)
        for who in (REFINED, PLANTED)
    ]
    return pd.DataFrame(lines).rename(columns={"value": "ratio"})


def _cases(rows: pd.DataFrame, rescoring: str) -> Iterator[tuple[dict, Ratio, dict]]:
    """Each temperature, budget and measure: keys, statistic and the four arms."""
    _need(rows, (BARE, "xpress", "dflash+ddtree", "xpress+ddtree"), rescoring)
    trees = rows[rows["method"].str.endswith("+ddtree")]
    for (temperature, budget), at in trees.groupby(["temperature", "budget"]):
        chains = rows[rows["temperature"] == temperature]
        kind = (at["method"] == "xpress+ddtree") & (at["rescoring"] == rescoring)
        for measure, statistic in MEASURES.items():
            keys = {"temperature": temperature, "budget": budget, "measure": measure}
            arms = {
                BARE: chains[chains["method"] == BARE],
                REFINED: chains[chains["method"] == "xpress"],
                PLANTED: at[at["method"] == "dflash+ddtree"],
                BOTH: at[kind],
            }
            yield keys, statistic, arms


def refining_over(rows: pd.DataFrame, rescoring: str = "paths") -> pd.DataFrame:
    """What the refiner adds to tau, by what it is added to, on the same texts.

    DDTree believes that slots are independent; PRESTO has read each path by a 3-gram.
    So the two lines tell whether a tree that reads its path repairs what a refiner
    repairs.

    Columns: temperature, budget, over (a chain, DDTree, PRESTO), ratio, low, high.
    """
    rivals = (BARE, "dflash+ddtree", "dflash+presto")
    _need(rows, (*rivals, "xpress", "xpress+ddtree"), rescoring)
    lines, trees = [], rows[rows["method"].str.contains("+", regex=False)]
    for (temperature, budget), at in trees.groupby(["temperature", "budget"]):
        chains = rows[rows["temperature"] == temperature]
        refined = at[(at["method"] == "xpress+ddtree") & (at["rescoring"] == rescoring)]
        pairs = {
            "a chain": (chains[chains["method"] == "xpress"], chains),
            "DDTree": (refined, at),
            "PRESTO": (refined, at),
        }
        for rival, (over, (ours, among)) in zip(rivals, pairs.items(), strict=True):
            theirs = among[among["method"] == rival]
            keys = {"temperature": temperature, "budget": budget, "over": over}
            lines.append(keys | paired_ratio(ours, theirs, tau_pooled)._asdict())
    return pd.DataFrame(lines).rename(columns={"value": "ratio"})


def _need(rows: pd.DataFrame, wanted: Sequence[str], rescoring: str) -> None:
    lacking = [method for method in wanted if not (rows["method"] == method).any()]
    if lacking:
        raise LabError(
            f"These rows lack {', '.join(lacking)}: run xpress-lab bench with "
            f"--methods {','.join(wanted)} --rescoring {rescoring}"
        )


def round_at(lab: Lab, method: Method, prompt: str, place: int) -> Round:
    """What a method drafts after the first ``place`` tokens of the greedy answer and
    the anchor behind them, and what the target makes of it."""
    answer = lab.generate(prompt, "ar").tokens
    ids = lab.target.encode(prompt) + answer[:place]
    return decode(lab.target, method, ids, max_new_tokens=method.block_size + 2).rounds[
        0
    ]


def telling_place(
    lab: Lab, prompt: str, worse: Method, better: Method, places: Sequence[int]
) -> int:
    """Of some places of an answer, where ``better`` gains most kept drafts."""

    def gain(place: int) -> int:
        ours = round_at(lab, better, prompt, place).accepted
        return ours - round_at(lab, worse, prompt, place).accepted

    return max(places, key=gain)


class Watching(BlockDrafting):
    """Keeps the scores ``[N, S, D]`` from which the newest block was chosen."""

    scores: torch.Tensor

    def _solve(self, *block, **how):
        solution = super()._solve(*block, **how)
        self.scores = solution.scores
        return solution


class Watched:
    """A chain that tells, beside drafting, what it chose from."""

    batched = False

    def __init__(self, method: BlockMethod):
        self.inner, self.seen = method, []
        self.name, self.budget = method.name, method.budget
        self.block_size, self.tap_ids = method.block_size, method.tap_ids

    def describe(self) -> str:
        return self.inner.describe()

    def begin(self, capacity: int, rows: int = 1) -> "Watched":
        self.drafting = Watching(self.inner, capacity, rows)
        return self

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.drafting.keep_rows(rows)

    def propose(self, *request):
        proposal = self.drafting.propose(*request)
        self.seen.append(self.drafting.scores)
        return proposal


def missed_ranks(
    lab: Lab, prompts: Sequence[str], chains: dict[str, BlockMethod]
) -> pd.DataFrame:
    """Where the target's word stood in the drafter's list at the first missed slot.

    Greedy texts; a round that misses nothing adds nothing.

    Args:
        chains: by the name under which they appear.

    Returns:
        One row a miss: who, slot (1-based), rank (1 is the draft itself, so 2 or
        more; 0 where the word cannot be drafted).
    """
    rows = []
    for who, chain in chains.items():
        for prompt in prompts:
            watched = Watched(chain)
            text = decode(lab.target, watched, lab.target.encode(prompt))
            for one, scores in zip(text.rounds, watched.seen, strict=True):
                if one.accepted < len(one.block) - 1 and one.emitted > one.accepted:
                    word = torch.tensor([one.next_token])
                    rank = _rank(scores[0, one.accepted], chain, word)
                    rows.append({"who": who, "slot": one.accepted + 1, "rank": rank})
    return pd.DataFrame(rows)


def _rank(scores: torch.Tensor, chain: BlockMethod, word: torch.Tensor) -> int:
    place = int(chain.borrowed.to_draft(word))
    if place >= len(scores):
        return 0
    return int((scores > scores[place]).sum()) + 1


def caught(ranks: pd.DataFrame, most: int = 8) -> pd.DataFrame:
    """Share of misses whose right word stood among the first 2, 3, ... ``most``.

    Index: that number; a column per ``who``.
    """
    columns = {}
    for who, own in ranks.groupby("who", sort=False):
        near = [((own["rank"] > 0) & (own["rank"] <= m)) for m in range(2, most + 1)]
        columns[who] = [float(inside.mean()) for inside in near]
    return pd.DataFrame(columns, index=range(2, most + 1))


def layer_results() -> Path | None:
    """Rows of ``xpress-lab sweep-layers``: shipped, or made here by ``make layers``."""
    return next((path for path in layer_places() if path.is_file()), None)


def layer_places() -> Iterator[Path]:
    yield data_folder() / "results" / "layers.csv"
    yield data_folder().parent / "outputs" / "layers" / "layers.csv"


def layer_lines(path: Path) -> pd.DataFrame:
    """:func:`summary` of each depth in such a file, with ``drafter_layers`` first."""
    rows = read_rows(path)
    if not rows or "drafter_layers" not in rows[0]:
        raise LabError(
            f"{path} has no column drafter_layers: it is not from "
            "xpress-lab sweep-layers."
        )
    depths = sorted({int(row["drafter_layers"]) for row in rows})
    lines = []
    for depth in depths:
        own = [row for row in rows if int(row["drafter_layers"]) == depth]
        found = summary(as_frame(own))
        found.insert(0, "drafter_layers", depth)
        lines.append(found)
    return pd.concat(lines, ignore_index=True)
