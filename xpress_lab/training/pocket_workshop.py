"""The pocket tier from nothing: a target trained here, and drafters for it."""

import time
from functools import cached_property
from pathlib import Path

import torch

from xpress_lab.benchmarks.prompts import read_prompts
from xpress_lab.checkpoints import Arm
from xpress_lab.devices import one_thread
from xpress_lab.pocket.corpus import training_mix
from xpress_lab.pocket.tokenizer import build_tokenizer
from xpress_lab.presets import FAMILIES
from xpress_lab.target import Target
from xpress_lab.training.arms import new_base
from xpress_lab.training.card_figures import Asked
from xpress_lab.training.cards import Wording, write_cards
from xpress_lab.training.held_out import (
    response_fingerprints,
    unseen_prompts,
    write_fingerprints,
    write_prompts,
)
from xpress_lab.training.target_training import new_target_model, train_target
from xpress_lab.training.texts import TextSet
from xpress_lab.training.workshop import ARMS, SHIPPED_DTYPE, Workshop


class PocketWorkshop(Workshop):
    """Target, its responses, held-out prompts, the drafters, and their cards."""

    # Of each family: held-out prompts for the cards' tau, and for the target's grade.
    carded, graded = 12, 32
    stages = ("target", "responses", "ngram", "prompts", "base", *ARMS, "cards")
    arms_beside = True

    def product(self, stage: str) -> Path:
        return {
            "responses": self.out / "responses" / "fingerprints.txt",
            "prompts": self.out / "prompts" / f"{FAMILIES[-1]}.jsonl",
        }.get(stage) or super().product(stage)

    def make(self, stage: str) -> None:
        makers = {
            "target": self._train_target,
            "responses": self._write_responses,
            "ngram": self.count_ngrams,
            "prompts": self._write_prompts,
            "cards": self._write_cards,
        }
        makers[stage]()

    @cached_property
    def target(self) -> Target:
        """This run's target in float32, or the shipped one if this run made none."""
        return Target.load(self.made_or_shipped("target"))

    @cached_property
    def responses(self) -> TextSet:
        recipe, seed = self.tier.responses, self.tier.seed
        prompts = [e.prompt for e in training_mix(recipe.prompts, seed + 1)]
        return self.answers(prompts)

    def new_base(self) -> Arm:
        return new_base(self.target, self.tier.arm, self.tier.seed)

    def _train_target(self) -> None:
        recipe, seed = self.tier.target, self.tier.seed
        tokenizer = build_tokenizer()
        end = tokenizer.eos_token_id
        examples = training_mix(recipe.examples, seed)
        model = new_target_model(recipe, tokenizer, seed)
        target = Target(model, tokenizer)
        texts = TextSet.of(
            [
                (target.encode(e.prompt), [*tokenizer(e.response).input_ids, end])
                for e in examples
            ],
            tokenizer.pad_token_id,
        )
        model.requires_grad_(True)
        done = train_target(model, texts, recipe, self.work / "target", seed)
        folder = self.out / "target"
        self.write_log("target", done, texts)
        tokenizer.save_pretrained(folder)
        model.to(SHIPPED_DTYPE).save_pretrained(folder)  # last: the stage is done

    def _write_responses(self) -> None:
        started = time.perf_counter()
        texts = self.responses
        marks = response_fingerprints(texts, self.target.tokenizer.eos_token_id)
        (self.out / "responses").mkdir(parents=True, exist_ok=True)
        self.write_made("responses", time.perf_counter() - started, texts)
        write_fingerprints(marks, self.out / "responses" / "fingerprints.txt")

    def _write_prompts(self) -> None:
        path = self.out / "responses" / "fingerprints.txt"
        seen = set(path.read_text(encoding="utf-8").split())
        with one_thread():
            prompts = unseen_prompts(self.target, seen, self.tier.responses.held_out)
        write_prompts(prompts, self.out / "prompts")

    def _write_cards(self) -> None:
        folder = self.out / "prompts"
        asked = Asked(
            tuple(p for f in FAMILIES for p in read_prompts(folder, f, self.carded)),
            self.tier.responses.max_new_tokens,
            self.graded,
        )
        wording = Wording("The pocket tier's own, `../target`.")
        write_cards(self.tier, self.out, torch.float32, wording, asked)
