"""xPress on larger drafters: arms of several depths, trained and measured alike.

Depths share the target, its responses and its states; all else is made anew for each,
from the base on. A depth's arms take turns on each prompt with plain decoding, so that
its speed-up is its own whatever the machine did between depths.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
from xpress_lab.benchmarks.tables import summary
from xpress_lab.devices import one_thread
from xpress_lab.errors import LabError
from xpress_lab.files import write_text
from xpress_lab.lab import DEFAULT_PASSES, Lab
from xpress_lab.presets import FAMILIES, Tier
from xpress_lab.training.pocket_workshop import PocketWorkshop

METHODS = ("ar", "dflash", "xpress")


def sweep_layers(
    tier: Tier,
    depths: Sequence[int],
    out: Path,
    limit: int = 20,
    temperatures: tuple[float, ...] = (0.0, 1.0),
    say: Callable[[str], None] = print,
) -> pd.DataFrame:
    """Train dflash and xpress on drafters of each depth, and measure them.

    Writes a checkpoint folder per depth, ``layers.csv`` (the runner's rows) and
    ``layers-summary.csv``; a second run goes on where the first stopped.

    Args:
        tier: the pocket tier, whose other settings hold for every depth.
        depths: layers of the drafter.
        limit: held-out prompts a family.

    Returns:
        The summary: a line per depth, temperature, benchmark and arm, with columns
        drafter_layers and drafter_parameters before those of
        :func:`xpress_lab.benchmarks.tables.summary`.
    """
    most = tier.target.num_hidden_layers
    if not depths or not all(1 <= depth <= most for depth in depths):
        raise LabError(
            f"Depths must lie in 1..{most}, not {list(depths)}: drafters start from "
            f"the last of the target's {most} layers."
        )
    rows, lines = [], []
    for depth in depths:
        own = replace(tier, arm=replace(tier.arm, drafter_layers=depth))
        folder = out / f"{depth}-layers"
        train_depth(own, folder, out / "work", say)
        lab = Lab(own, folder, torch.device("cpu"), torch.float32)
        found = measure_depth(lab, out / f"{depth}-layers.csv", limit, temperatures)
        size = sum(p.numel() for p in lab.arm("dflash").drafter.parameters())
        named = {"drafter_layers": depth, "drafter_parameters": size}
        rows.append(_labelled(found, named))
        lines.append(_labelled(summary(found), named))
    table = pd.concat(lines, ignore_index=True)
    both = {"layers.csv": pd.concat(rows), "layers-summary.csv": table}
    for name, frame in both.items():
        write_text(out / name, frame.to_csv(index=False))
    return table


def train_depth(
    tier: Tier, folder: Path, work: Path, say: Callable[[str], None]
) -> None:
    """Base, dflash and xpress of one depth, for the shipped target."""
    if not (folder / "target").is_dir():
        partial = folder / "target.partial"
        shutil.copytree(tier.folder() / "target", partial, dirs_exist_ok=True)
        partial.rename(folder / "target")
    workshop = PocketWorkshop(tier, folder, work / folder.name, shared=work)
    workshop.run(("base", "dflash", "xpress"), say)


def measure_depth(
    lab: Lab, path: Path, limit: int, temperatures: tuple[float, ...]
) -> pd.DataFrame:
    """Rows of one depth, by one thread."""
    prompts = prompt_folder(lab.tier.name)
    bench = Bench(
        run_arms(METHODS, [DEFAULT_PASSES]),
        {name: read_prompts(prompts, name, limit) for name in FAMILIES},
        temperatures,
        name=path.stem,
    )
    with one_thread():
        return run_bench(lab, bench, path)


def _labelled(frame: pd.DataFrame, named: dict[str, int]) -> pd.DataFrame:
    """Columns of the same value in every line, put first."""
    return frame.assign(**named)[[*named, *frame.columns]]
