"""The xpress arm trained with each term of its loss switched off in turn.

Every arm starts from the same base drafter and takes the same number of steps on the
same batches, so what differs is the loss. How much two runs differ that have the *same*
loss is told by other training seeds; a difference smaller than that means nothing.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd

from xpress_lab.benchmarks.loss_costs import WHOLE, loss_costs, measure_arms
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.checkpoints import Arm, load_arm
from xpress_lab.devices import one_thread
from xpress_lab.errors import LabError
from xpress_lab.files import write_text
from xpress_lab.presets import FAMILIES, ArmRecipe, Tier
from xpress_lab.training.arms import new_arm, train_arm
from xpress_lab.training.pocket_workshop import PocketWorkshop
from xpress_lab.training.side_by_side import side_by_side
from xpress_lab.training.states import StateStore

_TEXT = {"passes": str}  # "6" and "fixed" in one column

# Which weight of the recipe is set to zero.
OFF = {
    WHOLE: None,
    "no cross-entropy": "ce_weight",
    "no L1": "l1_weight",
    "no anchor": "anchor_weight",
    "no consistency": "consistency_weight",
}


def recipe_of(loss: str, recipe: ArmRecipe) -> ArmRecipe:
    """The recipe with one term of :data:`OFF` switched off."""
    if loss not in OFF:
        raise LabError(f"Unknown loss {loss!r}: use {', '.join(OFF)}.")
    return replace(recipe, **{OFF[loss]: 0.0}) if OFF[loss] else recipe


def train_with(
    loss: str,
    base: Arm,
    store: StateStore,
    recipe: ArmRecipe,
    steps: int,
    folder: Path,
    seed: int = 0,
    **options,
) -> Arm:
    """An xpress arm that goes on from ``base``, by one of the losses of :data:`OFF`.

    Args:
        folder: where the state is kept, one folder a loss and seed.
        options: passed on to :func:`xpress_lab.training.arms.train_arm`.
    """
    own = recipe_of(loss, recipe)
    arm = new_arm("xpress", base, own, seed)
    where = folder / f"{_slug(loss)}-{seed}"
    train_arm(arm, store, own, steps, where, seed, **options)
    return arm


def sweep_losses(
    tier: Tier,
    out: Path,
    seeds: Sequence[int] = (0, 1, 2),
    steps: int | None = None,
    limit: int = 20,
    cores: int | None = None,
    say: Callable[[str], None] = print,
) -> pd.DataFrame:
    """Train an arm for each loss and seed from the tier's base drafter; measure them.

    Writes a file of rows per arm, ``losses.csv`` with all of them, and
    ``losses-summary.csv``; a second run goes on where the first stopped.

    Args:
        tier: the pocket tier. Its own seed draws the texts, which all arms share.
        seeds: of the training: first weights of the head, and batches.
        steps: of each arm, by default the tier's.
        limit: held-out prompts a family.
        cores: arms that train at the same time, by default one a core.

    Returns:
        The summary, as :func:`xpress_lab.benchmarks.loss_costs.loss_costs` has it.
    """
    if not seeds:
        raise LabError("At least one training seed is needed, such as 0.")
    steps = tier.arm.steps["xpress"] if steps is None else steps
    jobs = [f"{loss}/{seed}" for seed in seeds for loss in OFF]
    missing = [job for job in jobs if not _is_there(out, job, steps, limit)]
    if missing:
        workshop = _workshop(tier, out)
        workshop.states(_base(workshop).drafter.config.target_layer_ids)  # once for all
    make = partial(_make, tier, out, steps, limit)
    for group in _groups(missing, cores or os.cpu_count() or 1):
        if len(group) == 1:
            make(group[0])
        else:
            side_by_side(make, group)
        say(f"trained and measured: {', '.join(group)}")
    rows = pd.concat([read_losses(_file(out, job)) for job in jobs])
    lines = loss_costs(rows)
    write_text(out / "losses.csv", rows.to_csv(index=False))
    write_text(out / "losses-summary.csv", lines.to_csv(index=False))
    return lines


def read_losses(path: Path) -> pd.DataFrame:
    """Rows of a ``losses.csv``."""
    return pd.read_csv(path, dtype=_TEXT)


def _make(
    tier: Tier, out: Path, steps: int, limit: int, job: str, row: int = 0
) -> None:
    """Train one arm and measure it, in a process of its own."""
    loss, seed = job.rsplit("/", 1)
    workshop = _workshop(tier, out)
    base = _base(workshop)
    store = workshop.states(base.drafter.config.target_layer_ids)
    folder = prompt_folder(tier.name)
    prompts = {name: read_prompts(folder, name, limit) for name in FAMILIES}
    with one_thread():
        arm = train_with(
            loss, base, store, tier.arm, steps, workshop.work, int(seed), row=row
        )
        rows = measure_arms(workshop.target, {loss: arm}, prompts, seed=int(seed))
    rows = rows.assign(steps=steps, limit=limit)
    write_text(_file(out, job), rows.to_csv(index=False))


def _workshop(tier: Tier, out: Path) -> PocketWorkshop:
    out.mkdir(parents=True, exist_ok=True)
    return PocketWorkshop(tier, out, out / "work")


def _base(workshop: PocketWorkshop) -> Arm:
    return load_arm(workshop.made_or_shipped("base"), workshop.target)


def _file(out: Path, job: str) -> Path:
    loss, seed = job.rsplit("/", 1)
    return out / f"{_slug(loss)}-{seed}.csv"


def _slug(loss: str) -> str:
    return loss.replace(" ", "-")


def _is_there(out: Path, job: str, steps: int, limit: int) -> bool:
    """Whether an arm was measured; one that was made otherwise is refused."""
    path = _file(out, job)
    if not path.is_file():
        return False
    found = pd.read_csv(path, nrows=1)
    made = int(found["steps"].iloc[0]), int(found["limit"].iloc[0])
    if made != (steps, limit):
        raise LabError(
            f"{path} holds {made[0]} steps and {made[1]} prompts a family, not {steps} "
            f"and {limit}: use another --out, or delete {out}."
        )
    return True


def _groups(jobs: list[str], size: int) -> Iterator[list[str]]:
    for first in range(0, len(jobs), size):
        yield jobs[first : first + size]
