"""Model cards: what a checkpoint is, how it was made, how it does."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from xpress_lab.checkpoints import CONFIDENCE
from xpress_lab.files import write_text
from xpress_lab.ngram import ORDER
from xpress_lab.presets import BLOCKS, Tier
from xpress_lab.training.card_figures import CUT, Asked, drafter, measure_all

HEADS = {
    "markov": "DSpark's vanilla Markov head",
    "markov-gated": "DSpark's gated Markov head",
    "markov-rnn": "DSpark's RNN head",
    "xpress": "the xPress refiner",
}
WHAT = {
    "target": "A Qwen3-style causal LM, trained here from nothing on generated text.",
    "base": "The dFlash block-diffusion drafter from which every arm goes on.",
    "dflash": "A dFlash block-diffusion drafter, trained alone.",
    **{kind: f"A dFlash drafter co-trained with {h}." for kind, h in HEADS.items()},
    "eagle": "An EAGLE-3 drafter of one layer, which drafts a chain token by token.",
    "ngram": f"Counts of 1- to {ORDER}-grams, the cheap causal auxiliary of PRESTO.",
    **{
        f"{kind}/{CONFIDENCE}": f"A confidence head for the {kind} arm, trained after "
        "it; drafter and head were left as they are."
        for kind in BLOCKS
    },
}
# Settings of the arm recipe that matter to one kind of stage only.
EAGLE_ONLY = ("chain", "unrolled")
HEAD_ONLY = ("rank", "anchor_weight")
XPRESS_ONLY = ("mlp_ratio", "consistency_weight", "consistency_passes")
OF_CONFIDENCE = ("batch", "anchors", "learning_rate", "warmup", "gamma")
OF_EAGLE = ("target_layer_ids", "batch", "learning_rate", "warmup", *EAGLE_ONLY)
CARD = """---
license: apache-2.0
library_name: xpress-lab
---
# xpress-lab {tier}: {stage}

{what}

**Target.** {target}

**Data.** {data}

**Recipe.** {recipe}

**Cost.** {cost}

**How it does.** {result}

**How it was made.** `{command}`, seed {seed}, commit {commit}; {versions}.
"""


@dataclass(frozen=True)
class Wording:
    """What the cards of a tier say about its target and its texts.

    target: what drafts are made for. words: who wrote the responses, and on what.
    """

    target: str
    words: str = "written by the target itself"


def present(folder: Path) -> list[str]:
    """Stages whose weights and log are in a tier's checkpoint folder."""
    needed = ("model.safetensors", "training.json")
    found = [
        stage
        for stage in WHAT
        if all((folder / stage / name).is_file() for name in needed)
    ]
    # A confidence head says nothing without its arm, which may lie elsewhere.
    arms = [stage for stage in found if Path(stage).name != CONFIDENCE]
    return [s for s in found if s in arms or Path(s).parent.name in arms]


def all_written(folder: Path) -> bool:
    """Whether there are checkpoints, and each has its card."""
    stages = present(folder)
    cards = [(folder / stage / "README.md").is_file() for stage in stages]
    return bool(stages) and all(cards)


def write_cards(
    tier: Tier, folder: Path, dtype: torch.dtype, wording: Wording, asked: Asked
) -> None:
    """README.md beside every checkpoint that is present, measured on ``asked``."""
    found = measure_all(tier, folder, dtype, present(folder), asked)
    for stage in found:
        path = folder / stage / "training.json"
        made = json.loads(path.read_text(encoding="utf-8"))
        own = stage == "target"
        words = "written by the project's grammar" if own else wording.words
        text = CARD.format(
            tier=tier.name,
            what=WHAT[stage],
            target="Itself." if own else wording.target,
            data=f"{made['texts']} texts, {made['response_tokens']} response tokens, "
            f"{words}.",
            recipe=recipe_of(tier, stage, made),
            cost=cost_of(folder, stage, made),
            result=result_of(stage, found, asked),
            **{k: made[k] for k in ("stage", "command", "seed", "commit", "versions")},
        )
        write_text(folder / stage / "README.md", text)


def cost_of(folder: Path, stage: str, made: dict) -> str:
    """Steps and seconds, and those of the base drafter that an arm goes on from."""
    steps = f"{made['steps']} steps in " if "steps" in made else ""
    cost = f"{steps}{made['seconds']:.0f} s on {made['machine']}"
    path = folder / "base" / "training.json"
    if stage not in ("dflash", *HEADS) or not path.is_file():
        return f"{cost}."
    base = json.loads(path.read_text(encoding="utf-8"))
    before = f"{base['steps']} steps in {base['seconds']:.0f} s"
    return f"{cost}; before, {before} of the base drafter."


def recipe_of(tier: Tier, stage: str, made: dict) -> str:
    """The settings that matter to a stage, as ``name value, name value``."""
    if stage == "ngram":
        kept = ", ".join(map(str, made["different_ngrams"]))
        return f"Different n-grams kept, by order: {kept}."
    fields = asdict(tier.target if stage == "target" else tier.arm)
    if Path(stage).name == CONFIDENCE:
        fields = {name: fields[name] for name in OF_CONFIDENCE}
    elif stage == "eagle":
        fields = {name: fields[name] for name in OF_EAGLE}
    elif stage != "target":
        unused = {"steps", "eagle_batch", *EAGLE_ONLY}
        unused |= set() if stage == "xpress" else set(XPRESS_ONLY)
        unused |= set() if stage in HEADS else set(HEAD_ONLY)
        fields = {k: v for k, v in fields.items() if k not in unused}
    return ", ".join(f"{name} {value}" for name, value in fields.items())


def result_of(stage: str, found: dict[str, dict], asked: Asked) -> str:
    """What was measured of a stage, in one or two sentences."""
    own, count = found[stage], len(asked.prompts)
    if stage == "target":
        figures = ", ".join(f"{name} {value:.3g}" for name, value in own.items())
        return f"Greedy answers to {asked.graded} held-out prompts a family: {figures}."
    if not own:
        return "Not measured: no dflash arm lies beside it."
    over = f"pooled over {count} held-out prompts"
    if Path(stage).name == CONFIDENCE:
        bare = found[Path(stage).parent.name]
        return (
            f"At T = 1 the target came to {own['drafts']} drafts of {count} held-out "
            f"prompts and kept {own['measured']:.3f} of them; the head said "
            f"{own['predicted']:.3f} (ECE {own['ece']:.3f}, Brier {own['brier']:.3f}, "
            f"AUROC {own['auroc']:.3f}). Proposals cut before the first draft under "
            f"{CUT:g}: greedy tau {own['tau']:.2f} from {own['proposed']:.1f} drafts a "
            f"verification; uncut, {bare['tau']:.2f} from {bare['proposed']:.1f}."
        )
    drafted = [s for s in found if "tau" in found[s] and Path(s).name != CONFIDENCE]
    beside = ", ".join(f"{drafter(s)} {found[s]['tau']:.2f}" for s in drafted)
    whose = f" of {drafter(stage)}, which consults it" if stage == "ngram" else ""
    return f"Greedy tau {own['tau']:.2f}{whose}, {over} (beside it: {beside})."
