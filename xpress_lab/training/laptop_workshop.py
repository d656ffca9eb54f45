"""Drafters for a pretrained target: its own words, a draft vocabulary, arms, cards."""

import json
import random
import time
from functools import cached_property
from pathlib import Path

import torch

from xpress_lab.checkpoints import Arm
from xpress_lab.errors import LabError
from xpress_lab.fetching import fetch_target, origin, weights_digest
from xpress_lab.files import read_json, write_json, write_text
from xpress_lab.presets import Tier
from xpress_lab.target import Target
from xpress_lab.training.arms import new_base
from xpress_lab.training.card_figures import Asked
from xpress_lab.training.cards import Wording, write_cards
from xpress_lab.training.draft_vocabulary import choose_draft_vocabulary
from xpress_lab.training.held_out import write_fingerprints
from xpress_lab.training.monitoring import online_tau
from xpress_lab.training.questions import (
    asked_in,
    evaluated,
    fingerprint,
    known_evaluated,
    own_questions,
    rest_of_benchmarks,
    template_questions,
    unseen,
)
from xpress_lab.training.texts import TextSet
from xpress_lab.training.trainer import Monitor
from xpress_lab.training.workshop import ARMS, Workshop

OWN, TEMPLATES = "questions of its own", "questions from templates"


class LaptopWorkshop(Workshop):
    """Questions, responses and arms.

    Args:
        benchmarks: a folder of benchmark prompts. Those that the protocol evaluates
            are kept out of training; the others are used. ``None``: own questions
            and templates alone.
        users: a JSONL file of questions, or a data set on the Hub, to be used too.
    """

    stages = ("questions", "responses", "ngram", "base", *ARMS, "cards")
    arms_beside = True
    watched = 12  # questions kept out of training, to follow online tau
    watch_every = 500  # steps
    carded = 64  # new tokens a question, for the cards' tau

    def __init__(
        self,
        tier: Tier,
        out: Path,
        work: Path,
        benchmarks: Path | None,
        users: str | None = None,
    ):
        super().__init__(tier, out, work)
        self.benchmarks, self.users = benchmarks, users

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
            "cards": self._write_cards,
        }
        makers[stage]()

    @cached_property
    def target(self) -> Target:
        """In bfloat16, in which this tier decodes."""
        folder = fetch_target(self.tier.target, say=self.say)
        return Target.load(folder, self.workers.device, torch.bfloat16)

    @cached_property
    def questions(self) -> list[str]:
        path = self.product("questions")
        if not path.is_file():
            raise LabError(f"No questions at {path}: run the stage 'questions' first.")
        return json.loads(path.read_text(encoding="utf-8"))

    @cached_property
    def responses(self) -> TextSet:
        return self.answers(self.questions[self.watched :])

    def new_base(self) -> Arm:
        if self.tier.arm.draft_vocabulary is None:
            return new_base(self.target, self.tier.arm, self.tier.seed)
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
        """Own questions, templates and, where given, benchmarks' and the user's."""
        recipe, seed = self.tier.responses, self.tier.seed
        self.work.mkdir(parents=True, exist_ok=True)
        marks, sources = known_evaluated(), {}
        if self.benchmarks is not None:
            marks |= evaluated(self.benchmarks)
            sources |= rest_of_benchmarks(self.benchmarks)
        if self.users is not None:
            sources[self.users] = asked_in(self.users, recipe.users)
        path = self.work / "own_questions.json"
        sources[OWN] = own_questions(self.target, recipe.own_questions, path, seed)
        sources[TEMPLATES] = template_questions(recipe.templates, seed)
        labelled = []
        for source, asked in sources.items():
            new = unseen(asked, marks)
            marks |= set(map(fingerprint, new))
            labelled += [(question, source) for question in new]
        random.Random(seed).shuffle(labelled)
        if recipe.prompts is not None:
            labelled = labelled[: self.watched + recipe.prompts]
        questions = [question for question, _ in labelled]
        counts = {name: sum(s == name for _, s in labelled) for name in sources}
        write_json(self.work / "sources.json", counts)
        text = json.dumps(questions, ensure_ascii=False)
        write_text(self.product("questions"), text)
        self.say(f"{len(questions)} questions: {in_words(counts)}.")

    def _answer(self) -> None:
        started = time.perf_counter()
        texts = self.responses
        folder = self.out / "responses"
        folder.mkdir(parents=True, exist_ok=True)
        write_fingerprints(map(fingerprint, self.questions), folder / "questions.txt")
        path = self.work / "sources.json"
        self.write_made(
            "responses",
            time.perf_counter() - started,
            texts,
            target=weights_digest(self.tier.target.folder()),
            sources=read_json(path) if path.is_file() else {},
        )

    def _write_cards(self) -> None:
        """Taus on the questions that were kept out of training."""
        path = self.product("responses")
        sources = read_json(path).get("sources") if path.is_file() else None
        words = "written by the target itself"
        if sources:
            words += f" in answer to {in_words(sources)}"
        asked = Asked(tuple(self.questions[: self.watched]), self.carded)
        wording = Wording(origin(self.tier.target), words)
        write_cards(self.tier, self.out, torch.bfloat16, wording, asked)


def in_words(counts: dict[str, int]) -> str:
    """Where questions come from: ``9 gsm8k prompts that are not evaluated, 3 ...``."""
    own = (OWN, TEMPLATES)
    named = [
        f"{count} {source if source in own else source + ' prompts not evaluated'}"
        for source, count in counts.items()
        if count
    ]
    return ", ".join(named)
