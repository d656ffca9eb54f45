"""Training an EAGLE-3 drafter on the states that dFlash drafters are trained on."""

from pathlib import Path

import torch

from xpress_lab.borrowed import Borrowed
from xpress_lab.checkpoints import Arm
from xpress_lab.drafters.eagle import EagleConfig, EagleDrafter
from xpress_lab.presets import ArmRecipe
from xpress_lab.target import Target
from xpress_lab.training.arms import autocast, target_sizes
from xpress_lab.training.eagle_loss import eagle_loss
from xpress_lab.training.states import StateStore
from xpress_lab.training.trainer import Fit, Schedule, fit


def new_eagle(
    target: Target,
    recipe: ArmRecipe,
    seed: int,
    draft_ids: torch.Tensor | None = None,
) -> Arm:
    """An untrained drafter of one layer, of the recipe's size."""
    torch.manual_seed(seed)
    config = EagleConfig(**target_sizes(target, recipe), chain=recipe.chain)
    return Arm("eagle", EagleDrafter(config).to(target.device), draft_ids=draft_ids)


def train_eagle(
    arm: Arm,
    store: StateStore,
    recipe: ArmRecipe,
    folder: Path,
    seed: int = 0,
    row: int = 0,
) -> Fit:
    """Fit a drafter to the target's texts, in place."""
    borrowed = Borrowed(store.target, arm.draft_ids)

    def loss_of(generator: torch.Generator):
        rows = store.texts.draw(recipe.eagle_batch, generator)
        texts = store.texts.select(rows, recipe.pad_to)
        states = store.read(rows, recipe.pad_to)
        with autocast(store, recipe):
            return eagle_loss(arm.drafter, borrowed, texts, states, recipe.unrolled)

    schedule = Schedule(recipe.steps["eagle"], recipe.learning_rate, recipe.warmup)
    return fit("eagle", arm.drafter, loss_of, schedule, folder, seed, row=row)
