"""A tier's training, stage by stage, from nothing to weights that can be shipped.

Stages run in order. A stage whose output exists is skipped; one that was interrupted
goes on where it stopped. What differs between tiers, where the target and the
questions come from, is in the two subclasses.
"""

import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path

import torch

from xpress_lab.checkpoints import CONFIDENCE, Arm, load_arm, save_arm
from xpress_lab.errors import LabError
from xpress_lab.files import write_json, write_whole
from xpress_lab.ngram import save_ngram
from xpress_lab.presets import BLOCKS, Tier
from xpress_lab.provenance import how_made
from xpress_lab.target import Target
from xpress_lab.training.arms import (
    new_arm,
    target_sizes,
    train_arm,
    train_confidence,
)
from xpress_lab.training.cards import all_written
from xpress_lab.training.eagle_arm import new_eagle, train_eagle
from xpress_lab.training.ngram_counting import count_ngrams
from xpress_lab.training.responses import write_responses
from xpress_lab.training.side_by_side import side_by_side
from xpress_lab.training.states import StateFolder, StateStore
from xpress_lab.training.texts import TextSet
from xpress_lab.training.trainer import Fit, Monitor
from xpress_lab.training.workers import Workers

ARMS = ("dflash", "markov", "xpress")
OPTIONAL = ("eagle", "markov-gated", "markov-rnn")  # trained when asked for by name
AFTER_BASE = (*ARMS, *OPTIONAL)
AFTERWARDS = tuple(f"{kind}/{CONFIDENCE}" for kind in BLOCKS)  # these too
SHIPPED_DTYPE = torch.bfloat16  # weights are rounded once, then widened to compute


class Workshop:
    """One tier's training: where states are kept and where weights go.

    Args:
        tier: recipes and seed.
        out: the tier's checkpoint folder.
        work: states, logs and the target's responses; safe to delete afterwards.
        shared: where responses and states lie, if several runs use the same ones.
    """

    stages: tuple[str, ...] = ("base", *ARMS)
    arms_beside = False  # whether arms train side by side, a core each

    def __init__(self, tier: Tier, out: Path, work: Path, shared: Path | None = None):
        self.tier, self.out, self.work = tier, out, work
        self.shared = shared or work
        self.workers = Workers()

    def run(
        self, stages: Sequence[str] | None = None, say: Callable[[str], None] = print
    ) -> None:
        """Run the named stages, in order; by default all but the optional ones."""
        wanted = self.stages if stages is None else stages
        known = self.in_order()
        unknown = set(wanted) - set(known)
        if unknown:
            raise LabError(
                f"Unknown stage {unknown.pop()!r}: use {', '.join(self.stages)}; "
                f"or, optional, {', '.join((*OPTIONAL, *AFTERWARDS))}."
            )
        self.say = say if self.workers.is_main else lambda _: None
        for group in self._groups([stage for stage in known if stage in wanted]):
            started = time.perf_counter()
            missing = [stage for stage in group if not self.done(stage)]
            for stage in missing:
                self.check_recipe(stage)
            if len(missing) > 1:
                self.states(self.taps)  # first: the arms only read
                side_by_side(self.anew(), missing)
            elif missing:
                self._make(missing[0])
            self.workers.wait()
            spent = f"{time.perf_counter() - started:.0f} s" if missing else "present"
            self.say(f"{', '.join(group)}: {spent}")

    def _groups(self, stages: list[str]) -> list[list[str]]:
        """Stages one by one, but neighbouring arms together if they share the cores."""
        alone = self.workers.count > 1 or self.workers.device.type != "cpu"
        together = () if alone or not self.arms_beside else AFTER_BASE
        groups: list[list[str]] = []
        for stage in stages:
            if stage in together and groups and groups[-1][0] in together:
                groups[-1].append(stage)
            else:
                groups.append([stage])
        return groups

    def in_order(self) -> tuple[str, ...]:
        """Every stage that there is; cards tell of all others and so come last."""
        first = tuple(stage for stage in self.stages if stage != "cards")
        last = self.stages[len(first) :]
        return (*first, *OPTIONAL, *AFTERWARDS, *last)

    def _make(self, stage: str) -> None:
        """Weights are trained by all processes, the rest is made by the main one."""
        if stage in AFTERWARDS:
            self.train_confidence(stage)
        elif stage == "base" or stage in AFTER_BASE:
            self.train_arm(stage)
        elif self.workers.is_main:
            self.make(stage)

    def anew(self) -> Callable[[str, int], None]:
        """:meth:`train_arm` of this workshop as another process builds it."""
        where = self.out, self.work, self.shared
        return partial(_train_anew, type(self), self.tier, *where)

    def check_recipe(self, stage: str) -> None:
        """Raise where the tier does not say for how many steps weights are trained."""
        trained = stage in ("base", *AFTER_BASE, *AFTERWARDS)
        if trained and Path(stage).name not in self.tier.arm.steps:
            raise LabError(f"Tier {self.tier.name} has no recipe for stage {stage!r}.")

    def done(self, stage: str) -> bool:
        """Whether a stage needs no more work."""
        if stage == "cards":
            return all_written(self.out)
        return self.product(stage).exists()

    def product(self, stage: str) -> Path:
        """The file or folder that says that a stage is done."""
        return self.out / stage / "model.safetensors"

    def make(self, stage: str) -> None:
        """Run a stage that trains no arm."""
        raise NotImplementedError

    @cached_property
    def target(self) -> Target:
        raise NotImplementedError

    @cached_property
    def responses(self) -> TextSet:
        """The target's own texts; made on the first call, read from disk after."""
        raise NotImplementedError

    def new_base(self) -> Arm:
        raise NotImplementedError

    def train_arm(self, stage: str, row: int = 0) -> None:
        """Train the base drafter, or an arm that goes on from it."""
        recipe, seed = self.tier.arm, self.tier.seed
        if stage == "eagle":
            return self.train_eagle(row)
        if stage == "base":
            arm = self.new_base()
        else:
            base = self.known_arm("base")
            arm = new_arm(stage, base, recipe, seed)
        store = self.states(arm.drafter.config.target_layer_ids)
        done = train_arm(
            arm,
            store,
            recipe,
            recipe.steps[stage],
            self.work / stage,
            seed,
            self.monitor(arm),
            row,
        )
        if self.workers.is_main:
            self.write_log(stage, done, store.texts)
            save_arm(arm, self.out / stage, SHIPPED_DTYPE)

    def train_eagle(self, row: int = 0) -> None:
        """Train an EAGLE-3 drafter from nothing, on the arms' draft vocabulary."""
        recipe, seed, draft_ids = self.tier.arm, self.tier.seed, None
        if recipe.draft_vocabulary is not None:
            draft_ids = self.known_arm("base", "dflash").draft_ids
        arm = new_eagle(self.target, recipe, seed, draft_ids)
        store = self.states(arm.drafter.config.target_layer_ids)
        done = train_eagle(arm, store, recipe, self.work / "eagle", seed, row)
        if self.workers.is_main:
            self.write_log("eagle", done, store.texts)
            save_arm(arm, self.out / "eagle", SHIPPED_DTYPE)

    def train_confidence(self, stage: str) -> None:
        """Train a confidence head for an arm that is there, and leave the arm be."""
        kind = Path(stage).parent.name
        arm = self.known_arm(kind)
        if arm.confidence is not None:
            raise LabError(
                f"The {kind} arm was trained with a confidence head of its own; "
                f"it needs no stage {stage!r}."
            )
        store = self.states(arm.drafter.config.target_layer_ids)
        done = train_confidence(
            arm, store, self.tier.arm, self.work / stage, self.tier.seed
        )
        if self.workers.is_main:
            self.write_log(stage, done, store.texts)
            arm.confidence.save_pretrained(self.out / stage)

    def states(self, taps: tuple[int, ...]) -> StateStore:
        """The target's states of its responses; the main process writes them."""
        shard = self.tier.responses.batch
        with self.workers.main_first():
            folder = StateFolder(self.target, taps, self.shared / "states")
            return StateStore(folder, self.responses, shard)

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's layers that drafters read."""
        return target_sizes(self.target, self.tier.arm)["target_layer_ids"]

    def answers(self, prompts: list[str]) -> TextSet:
        """The target's answers, kept in ``shared`` with its states at the taps."""
        return write_responses(
            prompts,
            self.tier.responses,
            self.shared / "responses",
            StateFolder(self.target, self.taps, self.shared / "states"),
            self.tier.seed,
        )

    def monitor(self, arm: Arm) -> Monitor | None:
        """What is watched while an arm trains; nothing unless a tier says so."""
        return None

    def count_ngrams(self) -> None:
        """The 3-gram that PRESTO consults, counted on the responses."""
        started, texts = time.perf_counter(), self.responses
        ngram = count_ngrams(texts, self.target.vocab_size)
        kept = [len(counts) for _, counts in ngram.tables]
        (self.out / "ngram").mkdir(parents=True, exist_ok=True)
        seconds = time.perf_counter() - started
        self.write_made("ngram", seconds, texts, different_ngrams=kept)
        save_ngram(ngram, self.out / "ngram")

    def known_arm(self, *stages: str) -> Arm:
        """The first of some arms that was made here or is shipped."""
        folders = [self.made_or_shipped(stage) for stage in stages]
        there = [folder for folder in folders if (folder / "config.json").is_file()]
        return load_arm((there or folders)[0], self.target)

    def made_or_shipped(self, stage: str) -> Path:
        """This run's own result, or the shipped one if this run made none."""
        own = self.out / stage
        made = (own / "config.json").is_file()
        return own if made else self.tier.folder() / stage

    def write_log(self, stage: str, done: Fit, texts: TextSet, **extra) -> None:
        """Training curve (thinned) and how it was made, beside the weights."""
        folder = self.out / stage
        folder.mkdir(parents=True, exist_ok=True)
        every = max(1, len(done.log) // 100)
        curve = done.log.groupby(done.log["step"] // every * every).mean()
        curve = curve.drop(columns="step").round(5).reset_index()
        write_whole(folder / "training.csv", lambda p: curve.to_csv(p, index=False))
        final = float(done.log["loss"].tail(50).mean())
        figures = {"steps": len(done.log), "final_loss": round(final, 4)}
        self.write_made(stage, done.seconds, texts, **figures, **extra)

    def write_made(self, stage: str, seconds: float, texts: TextSet, **extra) -> None:
        """training.json: what, from what, in how long, by which command."""
        made = {
            "stage": stage,
            "seconds": round(seconds, 1),
            **extra,
            "texts": len(texts),
            "response_tokens": texts.response_tokens(),
            "seed": self.tier.seed,
            **how_made(),
        }
        write_json(self.out / stage / "training.json", made)


def _train_anew(
    kind: type[Workshop],
    tier: Tier,
    out: Path,
    work: Path,
    shared: Path,
    stage: str,
    row: int,
) -> None:
    workshop = kind(tier, out, work, shared)
    workshop.say = print
    workshop.train_arm(stage, row)
