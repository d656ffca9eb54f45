"""Drafters for a pretrained target: its own words, a draft vocabulary, three arms."""

import json
import random
import time
from functools import cached_property
from pathlib import Path

import torch

from xpress_lab.checkpoints import Arm
from xpress_lab.fetching import fetch_target, weights_digest
from xpress_lab.files import write_text
from xpress_lab.presets import Tier
from xpress_lab.target import Target
from xpress_lab.training.arms import new_base
from xpress_lab.training.draft_vocabulary import choose_draft_vocabulary
from xpress_lab.training.held_out import write_fingerprints
from xpress_lab.training.monitoring import online_tau
from xpress_lab.training.questions import (
    evaluated,
    fingerprint,
    own_questions,
    rest_of_benchmarks,
    template_questions,
    unseen,
)
from xpress_lab.training.texts import TextSet
from xpress_lab.training.trainer import Monitor
from xpress_lab.training.workshop import ARMS, Workshop


class LaptopWorkshop(Workshop):
    """Questions, responses and arms.

    Args:
        benchmarks: a folder of benchmark prompts. Those that the protocol evaluates
            are kept out of training; the others are used. ``None``: own questions
            and templates alone.
    """

    stages = ("questions", "responses", "ngram", "base", *ARMS)
    watched = 12  # questions kept out of training, to follow online tau
    watch_every = 500  # steps

    def __init__(self, tier: Tier, out: Path, work: Path, benchmarks: Path | None):
        super().__init__(tier, out, work)
        self.benchmarks = benchmarks

    def product(self, stage: str) -> Path:
        return {
            "questions": self.work / "questions.json",
            "responses": self.out / "responses" / "training.json",
        }.get(stage) or super().product(stage)

    def make(self, stage: str) -> None:
        makers = {
            "questions": self._ask,
            "responses": self._answer,
            "ngram": self.count_ngrams,
        }
        makers[stage]()

    @cached_property
    def target(self) -> Target:
        """In bfloat16, in which this tier decodes."""
        folder = fetch_target(self.tier.target, say=self.say)
        return Target.load(folder, self.workers.device, torch.bfloat16)

    @cached_property
    def questions(self) -> list[str]:
        return json.loads(self.product("questions").read_text(encoding="utf-8"))

    @cached_property
    def responses(self) -> TextSet:
        return self.answers(self.questions[self.watched :])

    def new_base(self) -> Arm:
        chosen = choose_draft_vocabulary(
            self.responses,
            self.tier.arm.draft_vocabulary,
            self.target.stop_ids,
            self.target.vocab_size,
        )
        self.say(
            f"Draft vocabulary: {len(chosen.ids)} of {chosen.seen} tokens in the "
            f"responses, {100 * chosen.coverage:.2f} % of their text."
        )
        return new_base(self.target, self.tier.arm, self.tier.seed, chosen.ids)

    def monitor(self, arm: Arm) -> Monitor:
        asked = self.questions[: self.watched]
        return Monitor(
            "tau", lambda: online_tau(arm, self.target, asked), self.watch_every
        )

    def _ask(self) -> None:
        """Own questions, templates and, if a folder is given, benchmark prompts."""
        recipe, seed = self.tier.responses, self.tier.seed
        self.work.mkdir(parents=True, exist_ok=True)
        rest, marks = [], set()
        if self.benchmarks is not None:
            rest, marks = (
                rest_of_benchmarks(self.benchmarks),
                evaluated(self.benchmarks),
            )
        path = self.work / "own_questions.json"
        own = own_questions(self.target, recipe.own_questions, path, seed)
        templates = template_questions(recipe.templates, seed)
        questions = unseen([*rest, *own, *templates], marks)
        random.Random(seed).shuffle(questions)
        text = json.dumps(questions, ensure_ascii=False)
        write_text(self.product("questions"), text)
        self.say(
            f"{len(questions)} questions: {len(own)} own, {len(templates)} templates, "
            f"{len(rest)} of the benchmarks' unevaluated prompts."
        )

    def _answer(self) -> None:
        started = time.perf_counter()
        texts = self.responses
        folder = self.out / "responses"
        folder.mkdir(parents=True, exist_ok=True)
        write_fingerprints(map(fingerprint, self.questions), folder / "questions.txt")
        self.write_made(
            "responses",
            time.perf_counter() - started,
            texts,
            target=weights_digest(self.tier.target.folder()),
        )
