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

from xpress_lab.checkpoints import write_whole
from xpress_lab.errors import LabError

Loss = Callable[[torch.Generator], tuple[torch.Tensor, dict[str, float]]]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast: AdamW, linear warm-up, cosine to zero, clip at 1."""

    steps: int
    learning_rate: float
    warmup: float = 0.04  # share of the steps
    weight_decay: float = 0.0
    save_every: int = 200

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


def fit(
    name: str,
    module: nn.Module,
    loss_of: Loss,
    schedule: Schedule,
    folder: Path,
    seed: int = 0,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
) -> Fit:
    """Train ``module`` in place.

    Args:
        loss_of: draws a batch with the generator it is given and returns the loss
            and figures to log; it must use no other randomness.
        folder: where the state is kept (``state.pt``), to resume from.
        on_step: called after each step, for live plots.
    """
    optimizer = torch.optim.AdamW(
        module.parameters(),
        lr=schedule.learning_rate,
        betas=(0.9, 0.95),
        weight_decay=schedule.weight_decay,
    )
    first, rows, seconds = _resume(folder / "state.pt", module, optimizer, schedule)
    module.train()
    started = time.perf_counter()
    bar = tqdm(range(first, schedule.steps), name, initial=first, total=schedule.steps)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = schedule.learning_rate * schedule.factor(step)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        loss, figures = loss_of(generator)
        if not torch.isfinite(loss):
            raise LabError(f"{name}: loss is {loss.item()} at step {step}.")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        rows.append({"step": step, "loss": loss.item(), **figures})
        bar.set_postfix(loss=f"{rows[-1]['loss']:.3f}", refresh=False)
        if on_step:
            on_step(step, rows[-1])
        if (step + 1) % schedule.save_every == 0:
            spent = seconds + time.perf_counter() - started
            _save(folder / "state.pt", module, optimizer, rows, spent)
    seconds += time.perf_counter() - started
    _save(folder / "state.pt", module, optimizer, rows, seconds)
    module.eval()
    return Fit(pd.DataFrame(rows), seconds)


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
        state = torch.load(path, weights_only=True)
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
    except Exception as error:  # any unreadable or foreign file
        raise LabError(
            f"Cannot resume from {path} ({error}); delete it to start again."
        ) from error
    if len(state["rows"]) > schedule.steps:
        raise LabError(f"{path} holds more than {schedule.steps} steps; delete it.")
    return len(state["rows"]), state["rows"], state["seconds"]
