"""Training an EAGLE-3 drafter on the states that dFlash drafters are trained on."""

from pathlib import Path

import torch

from xpress_lab.borrowed import Borrowed
from xpress_lab.drafters.eagle import EagleConfig, EagleDrafter
from xpress_lab.presets import ArmRecipe
from xpress_lab.target import Target
from xpress_lab.training.arms import target_sizes
from xpress_lab.training.eagle_loss import eagle_loss
from xpress_lab.training.states import StateStore
from xpress_lab.training.trainer import Fit, Schedule, fit


def new_eagle(target: Target, recipe: ArmRecipe, seed: int) -> EagleDrafter:
    """An untrained drafter of one layer, of the recipe's size."""
    torch.manual_seed(seed)
    config = EagleConfig(**target_sizes(target, recipe), chain=recipe.chain)
    return EagleDrafter(config).to(target.device)


def train_eagle(
    drafter: EagleDrafter,
    store: StateStore,
    recipe: ArmRecipe,
    folder: Path,
    seed: int = 0,
    row: int = 0,
) -> Fit:
    """Fit a drafter to the target's texts, in place."""
    borrowed = Borrowed(store.target)

    def loss_of(generator: torch.Generator):
        rows = store.texts.draw(recipe.batch, generator)
        texts, states = store.texts.select(rows), store.read(rows)
        return eagle_loss(drafter, borrowed, texts, states, recipe.unrolled)

    schedule = Schedule(recipe.steps["eagle"], recipe.learning_rate, recipe.warmup)
    return fit("eagle", drafter, loss_of, schedule, folder, seed, row=row)
