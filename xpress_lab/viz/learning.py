"""Figures of training: while it runs, and what each term of the loss bought."""

from collections.abc import Callable, Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from xpress_lab.benchmarks.loss_costs import FIXED, WHOLE
from xpress_lab.presets import ArmRecipe
from xpress_lab.training.blocks import BlockBatch
from xpress_lab.viz.acceptance import TAU_LABEL
from xpress_lab.viz.style import INK, MUTED, look_of, tint

GREEN, BLUE = look_of("xpress").colour, look_of("dflash").colour
# Parts of an arm's loss as training logs them: what they are called and drawn like,
# and which weight of the recipe is in them.
PARTS = {
    "forced": ("told the truth", GREEN, "-", None),
    "anchor": ("the drafter alone", BLUE, "--", "anchor_weight"),
    "consistency": (
        "told its own drafts",
        tint(GREEN, 0.6),
        "-.",
        "consistency_weight",
    ),
}


class LiveTraining:
    """A figure that grows while a model trains. Give it to ``fit`` as ``on_step``.

    In a notebook the same picture is drawn again in place, so that the last one stays.

    Args:
        steps: that the training will take.
        recipe: whose weights are in the parts of the loss.
        score: a figure of merit of the model as it stands, taken at each drawing.
        every: steps between two drawings.
    """

    def __init__(
        self,
        steps: int,
        recipe: ArmRecipe,
        score: Callable[[], float] | None = None,
        every: int = 50,
    ):
        self.steps, self.recipe = steps, recipe
        self.score, self.every = score, every
        self.rows: list[dict[str, float]] = []
        self.scores: dict[int, float] = {}
        self._shown = None

    def __call__(self, step: int, figures: dict[str, float]) -> None:
        self.rows.append({"step": step, **figures})
        done = step + 1
        if done == 1 or done % self.every == 0 or done == self.steps:
            if self.score:
                self.scores[done] = self.score()
            self._draw()

    def _draw(self) -> None:
        log = pd.DataFrame(self.rows)
        fig = training_curves(log, self.recipe, self.scores, self.steps)
        if self._shown is None:
            self._shown = display(fig, display_id=True)
        else:
            self._shown.update(fig)
        plt.close(fig)


def training_curves(
    log: pd.DataFrame,
    recipe: ArmRecipe,
    scores: Mapping[int, float],
    steps: int | None = None,
) -> Figure:
    """The parts of the loss by step on the left, the score on the right.

    Parts are drawn without their weights: as one distance, taken at several places.

    Args:
        log: a row per step: step, loss and its parts, as ``fit`` keeps them.
        recipe: whose weights are in the parts.
        scores: steps done to tau.
        steps: where the axes end, by default at the last step.
    """
    steps = steps or int(log["step"].max()) + 1
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
    done = log["step"] + 1
    window = max(1, len(log) // 20)
    for part, (name, colour, line, weight) in PARTS.items():
        if part in log:
            own = log[part] / (getattr(recipe, weight) if weight else 1)
            left.plot(done, own, color=colour, alpha=0.2, linewidth=0.8)
            mean = own.rolling(window, min_periods=1).mean()
            left.plot(done, mean, line, color=colour, label=name)
    left.set(xlabel="step", ylabel="loss per slot, before weighting", ylim=(0, None))
    left.legend()
    look = look_of("xpress")
    style = {"marker": look.marker, "color": look.colour}
    right.plot(list(scores), list(scores.values()), **style)
    right.set(xlabel="step", ylabel=TAU_LABEL)
    for ax in (left, right):
        ax.set_xlim(0, steps * 1.02)
    return fig


def term_bars(terms: Mapping[str, Mapping[str, float]]) -> Figure:
    """The distance at each of the loss's places, by refiner.

    Args:
        terms: by refiner, then by part of :data:`PARTS`, before weighting.
    """
    fig, ax = plt.subplots(figsize=(7, 3.0))
    for number, (part, (name, colour, _, _)) in enumerate(PARTS.items()):
        x = np.arange(len(terms)) + 0.27 * (number - 1)
        heights = [own[part] for own in terms.values()]
        bars = ax.bar(x, heights, 0.25, color=colour, label=name)
        ax.bar_label(bars, fmt="%.2f", fontsize=9, padding=1)
    ax.set_xticks(range(len(terms)), list(terms))
    ax.set_ylabel("distance per slot")
    ax.grid(False, axis="x")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def block_view(batch: BlockBatch, text: int = 0) -> Figure:
    """What the slots of one text's training blocks see: context, and their own block.

    Args:
        batch: of several blocks a text; block after block down the side.
    """
    mask = batch.mask[text, 0].numpy()
    slots = len(mask)
    context = mask.shape[1] - slots
    size = batch.previous.shape[1]
    seen = mask.astype(float)
    seen[:, context:] *= 0.6  # the other kind: slots of a block
    fig, ax = plt.subplots(figsize=(9, 3.6))
    ax.imshow(seen, cmap="Blues", vmin=0, vmax=1.3, aspect="auto")
    ax.axvline(context - 0.5, color=INK, linewidth=1)
    for edge in range(size, slots, size):
        ax.axhline(edge - 0.5, color="white", linewidth=1.5)
    middles = [size / 2 - 0.5 + size * i for i in range(slots // size)]
    ax.set_yticks(middles, [f"block {i + 1}" for i in range(len(middles))])
    ends = [context / 2, context + slots / 2]
    ax.set_xticks(ends, ["the text (target states)", "slots of the blocks"])
    ax.tick_params(length=0)
    ax.grid(False)
    return fig


def loss_bars(lines: pd.DataFrame, passes: int) -> Figure:
    """Tau after K passes, the drafter's own tau, and passes until final, by loss.

    Args:
        lines: from :func:`xpress_lab.benchmarks.loss_costs.loss_costs`.
        passes: K of the first panel.
    """
    fig, axes = plt.subplots(1, 3, figsize=(11, 2.9), sharey=True)
    panels = [
        (str(passes), "tau", GREEN, f"tau after {passes} passes"),
        ("0", "tau", BLUE, "the drafter's own tau"),
        (FIXED, "read", MUTED, "passes until what is read is final"),
    ]
    for ax, (k, column, colour, title) in zip(axes, panels, strict=True):
        at = lines[lines["passes"] == k].set_index("loss")
        _bars(ax, at, column, colour)
        ax.set_title(title, fontsize=10)
    axes[0].invert_yaxis()
    return fig


def _bars(ax: Axes, at: pd.DataFrame, column: str, colour: str) -> None:
    """One panel: a bar a loss with its interval, the whole loss marked by a line."""
    strengths = [0.9 if loss == WHOLE else 0.45 for loss in at.index]
    spread = np.abs([at[column] - at[f"{column}_{end}"] for end in ("low", "high")])
    ax.barh(
        at.index,
        at[column],
        color=[tint(colour, strength) for strength in strengths],
        xerr=spread,
        error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2},
    )
    edge = {"transform": ax.get_yaxis_transform(), "ha": "right", "va": "center"}
    for y, value in enumerate(at[column]):
        ax.text(1, y, f"{value:.2f}", fontsize=9, **edge)
    ax.axvline(at.loc[WHOLE, column], color=MUTED, linestyle=":", linewidth=1.4)
    ax.set_xlim(0, 1.25 * at[f"{column}_high"].max())
    ax.locator_params(axis="x", nbins=5)
    ax.grid(False, axis="y")
