"""The results that come with the repository, as one table of rows."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from xpress_lab.benchmarks.rows import COLUMNS, KEY, read_frame
from xpress_lab.benchmarks.tables import labelled
from xpress_lab.errors import LabError
from xpress_lab.presets import data_folder

NEEDED = {"tier", "method", "prompt_id", "new_tokens", "verify_steps", "token_hash"}
TEXT = ["temperature", "benchmark", "prompt_id", "seed"]  # tell texts apart


def shipped_rows(folder: Path | None = None) -> pd.DataFrame:
    """Rows of every result file, each text of an arm once. Those of texts that shared
    a batch have no times.

    Args:
        folder: ``data/results`` unless given. Files of the runner are read in it and
            in the folders of the tiers; other tables in there are left alone.
    """
    folder = folder or data_folder() / "results"
    files = [*sorted(folder.glob("*/*.csv")), *sorted(folder.glob("*.csv"))]
    frames = [read_frame(path) for path in files if _is_rows(path)]
    if not frames:
        raise LabError(f"No results of the runner in {folder}: run `make results`.")
    rows = pd.concat(frames, ignore_index=True)
    return rows.drop_duplicates(["tier", *KEY]).reset_index(drop=True)


def on_shared_texts(rows: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """Rows of some arms on the texts that all of them have.

    Files differ in how many prompts they took; hard prompts must count for every arm
    or for none.

    Args:
        arms: labels as in :func:`xpress_lab.benchmarks.tables.method_label`.
    """
    rows = labelled(rows)
    rows = rows[rows["arm"].isin(arms)]
    shared = rows.groupby(TEXT)["arm"].transform("nunique") == len(set(arms))
    return rows[shared].drop(columns="arm")


def _is_rows(path: Path) -> bool:
    """Whether a file is the runner's; a sweep has a column more, for what it varies."""
    with path.open(encoding="utf-8", newline="") as file:
        return NEEDED <= set(next(csv.reader(file), ())) <= set(COLUMNS)
