"""One optimisation loop for every model: seeded, logged, resumable.

A step's data depend on the seed and the step number alone, so a run that was
interrupted and resumed takes the very same steps as one that was not.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from xpress_lab.errors import LabError, first_line
from xpress_lab.files import write_whole
from xpress_lab.training.workers import Workers

Loss = Callable[[torch.Generator], tuple[torch.Tensor, dict[str, float]]]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: AdamW, linear warm-up, cosine to zero, clip at 1."""

    steps: int
    learning_rate: float
    warmup: float = 0.04  # share of the steps
    weight_decay: float = 0.0
    save_every: int = 200
    accumulate: int = 1  # batches a step

    def factor(self, step: int) -> float:
        """Learning-rate multiplier of a 0-based step."""
        warm = max(1, round(self.warmup * self.steps))
        if step < warm:
            return (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return 0.5 * (1 + math.cos(math.pi * done))


@dataclass
class Fit:
    """What a finished run reports: a row of metrics per step, and its seconds."""

    log: pd.DataFrame
    seconds: float


@dataclass(frozen=True)
class Monitor:
    """A score that is taken now and then; the weights that score best are kept."""

    name: str
    score: Callable[[], float]  # of the module as it stands; higher is better
    every: int


def fit(
    name: str,
    module: nn.Module,
    loss_of: Loss,
    schedule: Schedule,
    folder: Path,
    seed: int = 0,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    monitor: Monitor | None = None,
    row: int = 0,
) -> Fit:
    """Train ``module`` in place.

    Under ``accelerate launch`` every process draws its own batches and gradients are
    averaged, so that n processes take batches n times as large.

    Args:
        loss_of: draws a batch with the generator it is given and returns the loss
            and figures to log; it must use no other randomness.
        folder: where the state is kept (``state.pt``), to resume from.
        on_step: called after each step, for live plots.
        monitor: scored every so often; ``module`` ends as it was when it scored best.
        row: place of the progress bar among those of other processes.
    """
    workers = Workers()
    optimizer = torch.optim.AdamW(
        module.parameters(),
        lr=schedule.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=schedule.weight_decay,
        fused=True,
    )
    first, rows, seconds = _resume(folder / "state.pt", module, optimizer, schedule)
    module.train()
    started = time.perf_counter()
    steps = range(first, schedule.steps)
    place = {"initial": first, "total": schedule.steps, "position": row}
    hidden = {} if workers.is_main else {"disable": True}  # else as TQDM_DISABLE says
    bar = tqdm(steps, name, **place, **hidden)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * schedule.factor(step)
        optimizer.zero_grad(set_to_none=True)
        figures = _accumulate(name, module, loss_of, schedule, seed, step, workers)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        rows.append({"step": step, **figures})
        bar.set_postfix(loss=f"{rows[-1]['loss']:.3f}", refresh=False)
        last = step + 1 == schedule.steps
        if monitor and ((step + 1) % monitor.every == 0 or last):
            _keep_best(folder / "best.pt", module, monitor, rows, workers)
        if on_step:
            on_step(step, rows[-1])
        if workers.is_main and ((step + 1) % schedule.save_every == 0 or last):
            spent = seconds + time.perf_counter() - started
            _save(folder / "state.pt", module, optimizer, rows, spent)
    seconds += time.perf_counter() - started
    if monitor:
        workers.wait()
        best = torch.load(folder / "best.pt", map_location="cpu", weights_only=True)
        module.load_state_dict(best)
    module.eval()
    return Fit(pd.DataFrame(rows), seconds)


def _accumulate(name, module, loss_of, schedule, seed, step, workers) -> dict:
    """Gradients of one step, summed over its parts; mean loss and figures."""
    figures: dict[str, float] = {}
    for part in range(schedule.accumulate):
        draw = (step * schedule.accumulate + part) * workers.count + workers.rank
        generator = torch.Generator().manual_seed(seed * 1_000_003 + draw)
        loss, extra = loss_of(generator)
        if not torch.isfinite(loss):
            raise LabError(f"{name}: loss is {loss.item()} at step {step}.")
        (loss / schedule.accumulate).backward()
        for key, value in {"loss": loss.item(), **extra}.items():
            figures[key] = figures.get(key, 0.0) + value / schedule.accumulate
    workers.average_gradients(module)
    return figures


def _keep_best(path: Path, module, monitor: Monitor, rows, workers) -> None:
    """Score the module, log it, and keep its weights if it never did better."""
    module.eval()
    score = monitor.score()
    module.train()
    past = [row[monitor.name] for row in rows if monitor.name in row]
    rows[-1][monitor.name] = score
    if workers.is_main and score >= max(past, default=score):
        path.parent.mkdir(parents=True, exist_ok=True)
        state = module.state_dict()
        write_whole(path, lambda partial: torch.save(state, partial))


def _save(path: Path, module, optimizer, rows, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rows": rows,
        "seconds": seconds,
    }
    write_whole(path, lambda partial: torch.save(state, partial))


def _resume(path: Path, module, optimizer, schedule) -> tuple[int, list, float]:
    if not path.is_file():
        return 0, [], 0.0
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
    except Exception as error:  # any unreadable or foreign file
        raise LabError(
            f"Cannot resume from {path} ({first_line(error, 120)}); "
            "delete it to start again."
        ) from error
    if len(state["rows"]) > schedule.steps:
        raise LabError(f"{path} holds more than {schedule.steps} steps; delete it.")
    return len(state["rows"]), state["rows"], state["seconds"]
