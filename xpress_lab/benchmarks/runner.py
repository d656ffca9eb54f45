"""The benchmark runner: every arm on every prompt, interleaved, one tidy row each.

Arms take turns on each prompt within one process, and their order rotates from
prompt to prompt, so that drift of the machine falls on all alike.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from xpress_lab.batching import decode_batch
from xpress_lab.benchmarks.result_files import (
    SAME,
    append_rows,
    check_prompts,
    check_same,
    rows_to_resume,
)
from xpress_lab.benchmarks.rows import (
    COLUMNS,
    KEY,
    OF_A_BATCH,
    as_frame,
    measures,
    provenance,
)
from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.graphs import rounded
from xpress_lab.lab import Lab
from xpress_lab.methods import Method
from xpress_lab.presets import BLOCKS, SCHEDULED, TREES
from xpress_lab.recorded import RecordedTarget
from xpress_lab.replayed import ReplayedTarget
from xpress_lab.sampling import Sampling
from xpress_lab.scheduling import RoundCosts
from xpress_lab.statistics import token_hash
from xpress_lab.target import Target
from xpress_lab.tree_methods import uses_passes


@dataclass(frozen=True)
class RunArm:
    """One column of a comparison: a method with its settings."""

    name: str
    passes: int | None = None  # of xpress; None is the fixed point
    budget: int | None = None  # of trees; None is as many drafts as a chain has
    rescoring: str = "marginals"  # of xpress+ddtree
    confidence: float = 0.0  # drafts are cut before the first less likely one
    costs: RoundCosts | None = None  # drafts are sent while worth it; not of the key

    @property
    def passes_label(self) -> str:
        """K as written in results: empty for methods without passes."""
        if not uses_passes(self.name, self.rescoring):
            return ""
        return "fixed" if self.passes is None else str(self.passes)

    @property
    def rescoring_label(self) -> str:
        """Empty where there is no choice."""
        return self.rescoring if self.name == "xpress+ddtree" else ""

    def method(self, lab: Lab) -> Method:
        return lab.method(
            self.name,
            self.passes,
            confidence=self.confidence,
            budget=self.budget,
            rescoring=self.rescoring,
            costs=self.costs,
        )

    @property
    def cut(self) -> float:
        """The confidence threshold as written in results."""
        return self.confidence if self.costs is None else SCHEDULED


def run_arms(
    names: Sequence[str],
    passes: Sequence[int | None],
    budgets: Sequence[int | None] = (None,),
    rescorings: Sequence[str] = ("marginals",),
    confidences: Sequence[float] = (0.0,),
) -> tuple[RunArm, ...]:
    """Every method with every setting that matters to it, once."""
    arms = [
        RunArm(
            name,
            k if uses_passes(name, rescoring) else None,
            budget if name in TREES else None,
            rescoring if name == "xpress+ddtree" else "marginals",
            confidence if name in BLOCKS else 0.0,
        )
        for name in names
        for rescoring in rescorings
        for k in passes
        for budget in budgets
        for confidence in confidences
    ]
    return tuple(dict.fromkeys(arms))


@dataclass(frozen=True)
class Bench:
    """What to run: arms, prompts by benchmark, and the settings they share.

    batch_size: texts of a benchmark that are decoded side by side. Above 1, rows tell
    tau in a fraction of the time, and no times: those belong to a batch, not a text.
    recorded: the target writes its greedy texts once, and every method drafts along
    them; see :mod:`xpress_lab.recorded`. Of chains in batches alone.
    """

    arms: tuple[RunArm, ...]
    prompts: dict[str, list[str]]
    temperatures: tuple[float, ...] = (0.0,)
    seeds: tuple[int, ...] = (0,)
    max_new_tokens: int = 128
    batch_size: int = 1
    recorded: bool = False
    name: str = "bench"  # of the progress bar


def run_bench(
    lab: Lab,
    bench: Bench,
    out: Path | None = None,
    say: Callable[[str], object] = tqdm.write,
) -> pd.DataFrame:
    """Run, or finish, a benchmark.

    Args:
        out: CSV that rows are appended to; texts it already has are not run again.
        say: told what each method resolves to.

    Returns:
        All rows, those of earlier runs of the same file included.
    """
    if bench.recorded and bench.batch_size == 1:
        raise LabError(
            "Recorded texts are read side by side: batch_size must be 2 or more."
        )
    done = rows_to_resume(out, COLUMNS)
    shared = {"batch_size": bench.batch_size, "max_new_tokens": bench.max_new_tokens}
    made = provenance(lab) | shared
    check_same(done, made, out, (*SAME, *shared))
    check_prompts(done, {k: hashes(lab, p) for k, p in bench.prompts.items()}, out)
    present = {tuple(row[k] for k in KEY) for row in done}
    methods = {arm: arm.method(lab) for arm in bench.arms}
    for method in methods.values():
        say(method.describe())
        if bench.batch_size == 1:  # rows of a batch hold no times
            _warm_up(lab, method, bench)
    rows, jobs = list(done), list(_jobs(bench))
    for turn, job in enumerate(tqdm(jobs, bench.name, disable=None)):
        fresh = []
        keys = {arm: _keys(arm, methods[arm], job) for arm in rotated(bench.arms, turn)}
        lacking = [arm for arm in keys if not present.issuperset(keys[arm].values())]
        running = [methods[arm] for arm in lacking]
        target = _judge(lab, bench, running, job) if lacking else None
        for arm in lacking:
            missing = [n for n, key in keys[arm].items() if key not in present]
            for n, measured in _decoded(target, methods[arm], job, missing, bench):
                fresh.append(
                    dict(zip(KEY, keys[arm][n], strict=True)) | measured | made
                )
        rows += fresh
        if out and fresh:
            append_rows(out, fresh, COLUMNS)
    return as_frame(rows)


def hashes(lab: Lab, prompts: list[str]) -> list[str]:
    """What tells prompts from others, as the target reads them."""
    return [token_hash(lab.target.encode(prompt)) for prompt in prompts]


@dataclass(frozen=True)
class _Job:
    """Prompts, by number, that are run together."""

    temperature: float
    seed: int
    benchmark: str
    prompts: dict[int, str]

    @property
    def seeds(self) -> dict[int, int]:
        """Each text is seeded by its number."""
        return {number: self.seed * 1_000_003 + number for number in self.prompts}


def _jobs(bench: Bench) -> Iterator[_Job]:
    for temperature in bench.temperatures:
        for seed in bench.seeds:
            for name, prompts in bench.prompts.items():
                numbered = list(enumerate(prompts))
                for first in range(0, len(prompts), bench.batch_size):
                    some = numbered[first : first + bench.batch_size]
                    yield _Job(temperature, seed, name, dict(some))


def _keys(arm: RunArm, method: Method, job: _Job) -> dict[int, tuple[str, ...]]:
    """What tells the row of each text from all others, as a file holds it."""
    settings = (arm.passes_label, arm.rescoring_label, method.budget, arm.cut)
    key = (arm.name, *settings, float(job.temperature), job.benchmark)
    return {n: tuple(map(str, (*key, n, job.seed))) for n in job.prompts}


def _judge(lab: Lab, bench: Bench, methods: list[Method], job: _Job) -> Target:
    """What verifies the drafts of a job: the target, or what it has written before."""
    if not bench.recorded or job.temperature:
        return lab.target
    prompts = [lab.target.encode(prompt) for prompt in job.prompts.values()]
    beyond = max(method.block_size for method in methods) - 1
    taps = {tap for method in methods for tap in method.tap_ids}
    return RecordedTarget(lab.target, prompts, bench.max_new_tokens + beyond, taps)


def _decoded(
    target: Target, method: Method, job: _Job, missing: list[int], bench: Bench
) -> Iterator[tuple[int, dict]]:
    """Number and measures of each missing text."""
    numbers = list(job.prompts) if isinstance(target, RecordedTarget) else missing
    encoded = [target.encode(job.prompts[number]) for number in numbers]
    seeds = [job.seeds[number] for number in numbers]
    sampling = Sampling(job.temperature)
    how = {"sampling": sampling, "max_new_tokens": bench.max_new_tokens}
    if bench.batch_size == 1:
        for number, ids, seed in zip(numbers, encoded, seeds, strict=True):
            started = time.perf_counter()
            text = decode(target, method, ids, seed=seed, **how)
            wall = round(time.perf_counter() - started, 7)
            yield number, measures(text) | {"wall_seconds": wall}
        return
    texts = decode_batch(target, method, encoded, seeds=seeds, **how)
    for number, text in zip(numbers, texts, strict=True):
        if number in missing:
            yield number, measures(text) | dict.fromkeys(OF_A_BATCH, "")


def rotated(arms: tuple, turn: int) -> tuple:
    """The same arms, another one first in each turn."""
    shift = turn % len(arms)
    return arms[shift:] + arms[:shift]


def _warm_up(lab: Lab, method: Method, bench: Bench) -> None:
    """One untimed text per temperature: first calls pay for allocation and dispatch;
    where calls are recorded, one for each size of cache that recordings go with."""
    prompts, new, block = bench.prompts.values(), 64, method.block_size
    some = [lab.target.encode(next(iter(prompts))[0])]
    if isinstance(lab.target, ReplayedTarget):
        new = bench.max_new_tokens
        every = (lab.target.encode(prompt) for texts in prompts for prompt in texts)
        sizes = {
            rounded(len(ids) + new + block * k): ids for ids in every for k in (1, 2)
        }
        some = list(sizes.values())
    for temperature in bench.temperatures:
        for ids in some:
            how = {"sampling": Sampling(temperature), "max_new_tokens": new}
            decode(lab.target, method, ids, **how)
