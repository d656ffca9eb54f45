"""`xpress-lab train`: every stage of a tier, from nothing to shipped weights.

Stages run in order. A stage whose output exists is skipped; one that was interrupted
goes on where it stopped.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from xpress_lab.benchmarks.prompts import read_prompts
from xpress_lab.checkpoints import load_arm, save_arm, write_whole
from xpress_lab.errors import LabError
from xpress_lab.lab import Lab
from xpress_lab.pocket.corpus import training_mix
from xpress_lab.pocket.tokenizer import build_tokenizer
from xpress_lab.presets import FAMILIES, Tier
from xpress_lab.provenance import command, git_commit, machine, versions
from xpress_lab.target import Target
from xpress_lab.training.arms import new_arm, new_base, train_arm
from xpress_lab.training.cards import write_cards
from xpress_lab.training.held_out import (
    response_fingerprints,
    unseen_prompts,
    write_fingerprints,
    write_prompts,
)
from xpress_lab.training.responses import write_responses
from xpress_lab.training.states import StateStore
from xpress_lab.training.target_training import new_target_model, train_target
from xpress_lab.training.texts import TextSet
from xpress_lab.training.trainer import Fit

ARMS = ("dflash", "markov", "xpress")
STAGES = ("target", "responses", "prompts", "base", *ARMS, "cards")
SHIPPED_DTYPE = torch.bfloat16  # weights are rounded once, then widened to compute


class Workshop:
    """One tier's training: where states are kept and where weights go.

    Args:
        tier: recipes and seed.
        out: the tier's checkpoint folder.
        work: states, logs and the target's responses; safe to delete afterwards.
    """

    def __init__(self, tier: Tier, out: Path, work: Path):
        self.tier, self.out, self.work = tier, out, work

    def run(self, stages=STAGES, say: Callable[[str], None] = print) -> None:
        """Run the named stages, in order."""
        unknown = set(stages) - set(STAGES)
        if unknown:
            raise LabError(f"Unknown stage {unknown.pop()!r}: use {', '.join(STAGES)}.")
        for stage in (stage for stage in STAGES if stage in stages):
            started = time.perf_counter()
            done = self._stage(stage)
            state = f"{time.perf_counter() - started:.0f} s" if done else "present"
            say(f"{stage}: {state}")

    def _stage(self, stage: str) -> bool:
        """Run one stage; False if there was nothing to do."""
        done = {
            "responses": self.out / "responses" / "fingerprints.txt",
            "prompts": self.out / "prompts",
            "cards": self.out / "xpress" / "README.md",
        }.get(stage, self.out / stage / "model.safetensors")
        if done.exists():
            return False
        if stage in ("base", *ARMS):
            self._train_arm(stage)
        else:
            {
                "target": self._train_target,
                "responses": self._write_responses,
                "prompts": self._write_prompts,
                "cards": self._write_cards,
            }[stage]()
        return True

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
        model.to(SHIPPED_DTYPE).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        self._write_log("target", done, texts)

    def responses(self) -> TextSet:
        """The target's own texts; made on the first call, read from disk after."""
        recipe, seed = self.tier.responses, self.tier.seed
        prompts = [e.prompt for e in training_mix(recipe.prompts, seed + 1)]
        where = self.work / "responses"
        return write_responses(self.target(), prompts, recipe, where, seed)

    def _write_responses(self) -> None:
        started = time.perf_counter()
        texts = self.responses()
        marks = response_fingerprints(texts, self.target().tokenizer.eos_token_id)
        (self.out / "responses").mkdir(parents=True, exist_ok=True)
        self._write_made("responses", time.perf_counter() - started, texts)
        write_fingerprints(marks, self.out / "responses" / "fingerprints.txt")

    def _write_prompts(self) -> None:
        path = self.out / "responses" / "fingerprints.txt"
        seen = set(path.read_text(encoding="utf-8").split())
        prompts = unseen_prompts(self.target(), seen, self.tier.responses.held_out)
        write_prompts(prompts, self.out / "prompts")

    def _write_cards(self) -> None:
        lab = Lab(self.tier, self.out, torch.device("cpu"), torch.float32)
        folder = self.out / "prompts"
        write_cards(lab, {name: read_prompts(folder, name) for name in FAMILIES})

    def target(self) -> Target:
        """This run's target in float32, or the shipped one if this run made none."""
        return Target.load(self._made_or_shipped("target"))

    def _made_or_shipped(self, stage: str) -> Path:
        own = self.out / stage
        made = (own / "config.json").is_file()
        return own if made else self.tier.folder() / stage

    def _train_arm(self, stage: str) -> None:
        recipe, seed = self.tier.arm, self.tier.seed
        target, texts = self.target(), self.responses()
        if stage == "base":
            arm = new_base(target, recipe, seed)
        else:
            base = load_arm(self._made_or_shipped("base"), target)
            arm = new_arm(stage, base, recipe, seed)
        steps = recipe.steps[stage]
        taps = arm.drafter.config.target_layer_ids
        store = StateStore(target, texts, taps, self.work / "states")
        done = train_arm(arm, store, recipe, steps, self.work / stage, seed)
        self._write_log(stage, done, texts)
        save_arm(arm, self.out / stage, SHIPPED_DTYPE)

    def _write_log(self, stage: str, done: Fit, texts: TextSet) -> None:
        """Training curve (thinned) and how it was made, beside the weights."""
        folder = self.out / stage
        folder.mkdir(parents=True, exist_ok=True)
        every = max(1, len(done.log) // 100)
        curve = done.log.groupby(done.log["step"] // every * every).mean()
        curve = curve.drop(columns="step").round(5).reset_index()
        write_whole(folder / "training.csv", lambda p: curve.to_csv(p, index=False))
        final = float(done.log["loss"].tail(50).mean())
        extra = {"steps": len(done.log), "final_loss": round(final, 4)}
        self._write_made(stage, done.seconds, texts, **extra)

    def _write_made(self, stage: str, seconds: float, texts: TextSet, **extra) -> None:
        made = {
            "stage": stage,
            "seconds": round(seconds, 1),
            **extra,
            "texts": len(texts),
            "response_tokens": texts.response_tokens(),
            "seed": self.tier.seed,
            "command": command(),
            "commit": git_commit(),
            "machine": machine(),
            "versions": versions(),
        }
        text = json.dumps(made, indent=2) + "\n"
        write_whole(
            self.out / stage / "training.json",
            lambda p: p.write_text(text, encoding="utf-8"),
        )
