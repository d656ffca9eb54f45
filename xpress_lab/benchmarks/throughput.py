"""Tokens a second of batches: what speculation gains when rows share a target call.

All batch sizes decode the same pool of texts, each in as many batches as that takes, by
the same loop. Within a turn every arm takes every size once, and the order rotates from
turn to turn, so that drift of the machine falls on all alike. One row of the results is
one arm at one size in one turn.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from xpress_lab.batching import decode_batch
from xpress_lab.benchmarks.prompts import (
    benchmark_names,
    prompt_folder,
    read_prompts,
)
from xpress_lab.benchmarks.result_files import (
    SAME,
    append_rows,
    check_same,
    read_rows,
    rows_to_resume,
)
from xpress_lab.benchmarks.rows import provenance
from xpress_lab.benchmarks.runner import RunArm, rotated
from xpress_lab.benchmarks.tables import method_label
from xpress_lab.decoding import STAGES, Generation
from xpress_lab.errors import LabError
from xpress_lab.lab import DEFAULT_PASSES, Lab
from xpress_lab.methods import Method
from xpress_lab.sampling import Sampling
from xpress_lab.statistics import token_hash

KEY = ("method", "passes", "confidence", "temperature", "batch_size", "turn")
MEASURES = (
    "seed",
    "texts",
    "block_size",
    "new_tokens",
    "verify_steps",
    "target_calls",
    "tau",
    "proposed",
    "accepted",
    "accepted_per_slot",
    "decode_seconds",
    "prefill_seconds",
    *(f"{stage}_seconds" for stage in STAGES),
    "wall_seconds",
    "token_hash",
)
POOL = ("max_new_tokens", "prompt_hash")
MADE = (*POOL, "device", "dtype", "machine", "git_commit", "versions")
COLUMNS = ("tier", "target", *KEY, *MEASURES, *MADE)
TEXT_COLUMNS = {"tier", "target", "method", "passes", "accepted_per_slot", "token_hash"}


@dataclass(frozen=True)
class Load:
    """What to run: arms, a pool of prompts, and into what batches it is cut."""

    arms: tuple[RunArm, ...]
    prompts: tuple[str, ...]
    sizes: tuple[int, ...]
    temperatures: tuple[float, ...] = (0.0,)
    turns: int = 5
    max_new_tokens: int = 128
    seed: int = 0


def pool_of(prompts: dict[str, list[str]], sizes: Sequence[int]) -> tuple[str, ...]:
    """Prompts of all benchmarks in turns, as many as every batch size divides.

    Raises:
        LabError: if there are fewer than one such number.
    """
    longest = max(map(len, prompts.values()))
    mixed = [p[i] for i in range(longest) for p in prompts.values() if i < len(p)]
    whole = math.lcm(*sizes)
    if len(mixed) < whole:
        raise LabError(
            f"Batches of {', '.join(map(str, sizes))} need {whole} prompts to share, "
            f"and there are {len(mixed)}: raise --limit, or choose smaller sizes."
        )
    return tuple(mixed[: len(mixed) // whole * whole])


def run_throughput(
    lab: Lab,
    load: Load,
    out: Path | None = None,
    say: Callable[[str], object] = tqdm.write,
) -> pd.DataFrame:
    """Run, or finish, a measurement.

    Args:
        out: CSV that rows are appended to; what it already has is not run again.
        say: told what each method resolves to.

    Returns:
        All rows, those of earlier runs of the same file included.
    """
    rows = list(rows_to_resume(out, COLUMNS))
    prompts = [lab.target.encode(prompt) for prompt in load.prompts]
    pool = {"max_new_tokens": load.max_new_tokens, "prompt_hash": token_hash(prompts)}
    made = provenance(lab) | pool
    check_same(rows, made, out, (*SAME, *POOL))
    present = {tuple(row[k] for k in KEY) for row in rows}
    methods = {arm: arm.method(lab) for arm in load.arms}
    for method in methods.values():
        say(method.describe())
    _warm_up(lab, methods.values(), prompts, load)
    jobs = [(t, turn) for t in load.temperatures for turn in range(load.turns)]
    for temperature, turn in tqdm(jobs, "turns", disable=None):
        cases = tuple((arm, size) for size in load.sizes for arm in load.arms)
        for arm, size in rotated(cases, turn):
            key = arm.name, arm.passes_label, arm.cut, float(temperature), size, turn
            key = tuple(map(str, key))
            if key in present:
                continue
            measured = _measure(lab, methods[arm], prompts, size, temperature, load)
            row = dict(zip(KEY, key, strict=True)) | measured
            row |= {k: made[k] for k in ("tier", "target", *MADE)}
            rows.append(row)
            if out:
                append_rows(out, [row], COLUMNS)
    return as_frame(rows)


def end_to_end(
    lab: Lab, sizes: Sequence[int] = (1, 4, 16, 32), turns: int = 3, say=tqdm.write
) -> pd.DataFrame:
    """Greedy speed of the four usual methods by batch size, on the tier's own prompts:
    lines of :func:`throughput_summary`."""
    folder = prompt_folder(lab.tier.name)
    each = math.ceil(math.lcm(*sizes) / len(benchmark_names(folder)))
    texts = {n: read_prompts(folder, n, each) for n in benchmark_names(folder)}
    arms = tuple(RunArm(name) for name in ("ar", "dflash", "markov"))
    arms += (RunArm("xpress", DEFAULT_PASSES),)
    pool = pool_of(texts, sizes)
    load = Load(arms, pool, tuple(sizes), turns=turns, max_new_tokens=64)
    return throughput_summary(run_throughput(lab, load, say=say))


def _warm_up(lab: Lab, methods, prompts: list[list[int]], load: Load) -> None:
    """A few untimed tokens of every size: first calls pay for allocation."""
    for method in methods:
        for size in load.sizes:
            decode_batch(lab.target, method, prompts[:size], max_new_tokens=16)


def _measure(
    lab: Lab,
    method: Method,
    prompts: list[list[int]],
    size: int,
    temperature: float,
    load: Load,
) -> dict:
    """The whole pool, batch after batch."""
    texts: list[Generation] = []
    seconds, calls = dict.fromkeys(("prefill", *STAGES), 0.0), 0
    started = time.perf_counter()
    for first in range(0, len(prompts), size):
        batch = decode_batch(
            lab.target,
            method,
            prompts[first : first + size],
            sampling=Sampling(temperature),
            max_new_tokens=load.max_new_tokens,
            seeds=[load.seed * 1_000_003 + first + row for row in range(size)],
        )
        last = max(batch, key=lambda text: text.decode_seconds)  # the batch's times
        for stage in seconds:
            seconds[stage] += last.seconds.get(stage, 0.0)
        calls += max(len(text.rounds) for text in batch)
        texts += batch
    wall = time.perf_counter() - started
    rounds = [r for text in texts for r in text.rounds]
    tokens, slots = [text.tokens for text in texts], method.block_size - 1
    reached = [sum(r.accepted >= k for r in rounds) for k in range(1, slots + 1)]
    return {
        "seed": load.seed,
        "texts": len(texts),
        "block_size": method.block_size,
        "new_tokens": sum(map(len, tokens)),
        "verify_steps": len(rounds),
        "target_calls": calls,
        "tau": round(sum(r.emitted for r in rounds) / max(len(rounds), 1), 5),
        "proposed": sum(len(r.block) - 1 for r in rounds),
        "accepted": sum(r.accepted for r in rounds),
        "accepted_per_slot": json.dumps(reached),
        "decode_seconds": round(sum(seconds[stage] for stage in STAGES), 7),
        **{f"{stage}_seconds": round(spent, 7) for stage, spent in seconds.items()},
        "wall_seconds": round(wall, 7),
        "token_hash": token_hash(tokens),
    }


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """Rows as a tidy frame with numbers where numbers belong."""
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for column in set(COLUMNS) - TEXT_COLUMNS - set(MADE):
        frame[column] = pd.to_numeric(frame[column])
    # From before blocks could be cut.
    frame["confidence"] = frame["confidence"].fillna(0.0)
    whole = frame["verify_steps"] * (frame["block_size"] - 1)
    frame["proposed"] = frame["proposed"].fillna(whole)
    return frame


def read_frame(path: Path) -> pd.DataFrame:
    """A result file of this module."""
    return as_frame(read_rows(path))


def is_throughput(path: Path) -> bool:
    """Whether a result file is one of batches, not of single texts."""
    with path.open(encoding="utf-8") as file:
        return {"batch_size", "turn"} <= set(file.readline().rstrip("\n").split(","))


def throughput_summary(rows: pd.DataFrame, baseline: str = "ar") -> pd.DataFrame:
    """One line per temperature, batch size and arm: medians over turns and quartiles.

    ``tokens_per_second`` counts the loop: the prefill, and the token of each text that
    comes from it, are left out. ``speedup`` is over ``baseline`` at the same size in
    the same turn (``nan`` without it). ``rows_per_call`` is how full batches were:
    texts that share a batch do not end together. ``drafts`` were verified a round.
    """
    rows = rows.assign(
        arm=[
            method_label(method, passes, confidence=cut)
            for method, passes, cut in zip(
                rows["method"], rows["passes"], rows["confidence"], strict=True
            )
        ],
        speed=(rows["new_tokens"] - rows["texts"]) / rows["decode_seconds"],
    )
    lines = []
    for keys, group in rows.groupby(["temperature", "batch_size"]):
        plain = group[group["arm"] == baseline].set_index("turn")["speed"]
        for arm, turns in group.groupby("arm", sort=False):
            ratio = turns.set_index("turn")["speed"] / plain
            lines.append(
                dict(zip(("temperature", "batch_size"), keys, strict=True))
                | {"arm": arm, "turns": len(turns)}
                | _quartiles("tokens_per_second", turns["speed"])
                | _quartiles("speedup", ratio)
                | {
                    "tau": turns["tau"].mean(),
                    "drafts": turns["proposed"].sum() / turns["verify_steps"].sum(),
                    "rows_per_call": turns["verify_steps"].sum()
                    / turns["target_calls"].sum(),
                }
            )
    return pd.DataFrame(lines)


def throughput_layout(lines: pd.DataFrame, temperature: float) -> pd.DataFrame:
    """Arms down, batch sizes across, ``tokens a second / speed-up`` in the cells."""
    at = lines[lines["temperature"] == temperature]
    cells = [
        f"{speed:.0f} / {'–' if pd.isna(over) else f'{over:.2f}x'}"
        for speed, over in zip(at["tokens_per_second"], at["speedup"], strict=True)
    ]
    table = at.assign(cell=cells).pivot(
        index="arm", columns="batch_size", values="cell"
    )
    return table.loc[at["arm"].unique()]


def _quartiles(name: str, values: pd.Series) -> dict[str, float]:
    low, middle, high = values.quantile([0.25, 0.5, 0.75])
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
