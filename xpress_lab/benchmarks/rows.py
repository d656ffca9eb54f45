"""A row of results: its columns, what a text gives them, and reading them back."""

import json
from pathlib import Path

import pandas as pd

from xpress_lab.benchmarks.result_files import read_rows
from xpress_lab.decoding import STAGES, Generation
from xpress_lab.errors import LabError
from xpress_lab.lab import Lab
from xpress_lab.provenance import git_commit, machine, versions
from xpress_lab.statistics import distinct_n, longest_run, token_hash

CONTEXT_STEP = 64  # tokens of context that share a line of `rounds_by_context`
ARM = ("method", "passes", "rescoring", "budget", "confidence")  # tell arms apart
KEY = (*ARM, "temperature", "benchmark", "prompt_id", "seed")
COLUMNS = (
    "tier",
    "target",
    *KEY,
    "batch_size",
    "block_size",
    "new_tokens",
    "verify_steps",
    "tau",
    "proposed",
    "accepted",
    "accepted_per_slot",
    "rounds_by_context",
    "head_passes",
    "decode_seconds",
    "prefill_seconds",
    "draft_seconds",
    "refine_seconds",
    "tree_seconds",
    "verify_seconds",
    "accept_seconds",
    "wall_seconds",
    "distinct_3",
    "longest_run",
    "token_hash",
    "max_new_tokens",
    "prompt_hash",
    "device",
    "dtype",
    "machine",
    "git_commit",
    "versions",
)

# What a text that shares a batch has no measure of for itself.
OF_A_BATCH = (
    "head_passes",
    "decode_seconds",
    "prefill_seconds",
    *(f"{stage}_seconds" for stage in STAGES),
    "wall_seconds",
)


def measures(text: Generation) -> dict:
    """The columns that a finished text fills."""
    slots = max(text.block_size - 1, 0)
    reached = [sum(r.accepted >= k for r in text.rounds) for k in range(1, slots + 1)]
    seconds = {
        f"{stage}_seconds": round(text.seconds.get(stage, 0.0), 7)
        for stage in ("prefill", *STAGES)
    }
    return {
        "block_size": text.block_size,
        "new_tokens": len(text.tokens),
        "verify_steps": len(text.rounds),
        "tau": round(text.tau, 5),
        "proposed": sum(len(r.block) - 1 for r in text.rounds),
        "accepted": sum(r.accepted for r in text.rounds),
        "accepted_per_slot": json.dumps(reached),
        "rounds_by_context": json.dumps(by_context(text), separators=(",", ":")),
        "head_passes": sum(r.passes for r in text.rounds),
        "decode_seconds": round(text.decode_seconds, 7),
        **seconds,
        "distinct_3": round(distinct_n(text.tokens), 4),
        "longest_run": longest_run(text.tokens),
        "token_hash": token_hash(text.tokens),
        "prompt_hash": token_hash(text.prompt),
    }


def by_context(text: Generation) -> list[list[int]]:
    """``[tokens before, rounds, emitted]`` for each stretch of the context."""
    stretches: dict[int, list[int]] = {}
    position = len(text.prompt) + 1  # the prefill's own token is there already
    for r in text.rounds:
        stretch = stretches.setdefault(position // CONTEXT_STEP, [0, 0])
        stretch[0] += 1
        stretch[1] += r.emitted
        position += r.emitted
    return [[n * CONTEXT_STEP, *counts] for n, counts in sorted(stretches.items())]


def provenance(lab: Lab) -> dict:
    """The columns that say on what a row was made."""
    target = lab.target
    return {
        "tier": lab.tier.name,
        "target": f"{target.config.model_type}-{target.model.num_parameters()}",
        "batch_size": 1,
        "device": str(target.device),
        "dtype": str(target.dtype).removeprefix("torch."),
        "machine": machine(),
        "git_commit": git_commit(),
        "versions": versions(),
    }


def as_frame(rows: list[dict]) -> pd.DataFrame:
    """Rows as a tidy frame with numbers where numbers belong."""
    frame = pd.DataFrame(rows, columns=COLUMNS)
    text = {"tier", "target", "method", "passes", "rescoring", "benchmark", "device"}
    text |= {"accepted_per_slot", "rounds_by_context", "token_hash", "dtype"}
    text |= {"prompt_hash", "machine", "git_commit", "versions"}
    for column in set(COLUMNS) - text:
        frame[column] = pd.to_numeric(frame[column])
    # Files from before there were trees: chains, which build none.
    frame["budget"] = frame["budget"].fillna(frame["block_size"] - 1).astype(int)
    frame["rescoring"] = frame["rescoring"].astype(object).fillna("")
    alone = frame["batch_size"] == 1
    frame.loc[alone, "tree_seconds"] = frame["tree_seconds"].fillna(0.0)
    # And from before proposals could be cut.
    frame["confidence"] = frame["confidence"].fillna(0.0)
    whole = frame["verify_steps"] * frame["budget"]
    frame["proposed"] = frame["proposed"].fillna(whole).astype(int)
    return frame


def read_frame(path: Path) -> pd.DataFrame:
    """A result file of the runner; :class:`LabError` for any other file."""
    rows = read_rows(path)
    if not rows or not {"method", "benchmark", "verify_steps"} <= set(rows[0]):
        raise LabError(f"{path} holds no results of xpress-lab bench.")
    return as_frame(rows)
