"""Model cards: what a checkpoint is, how it was made, how it does."""

import json
from dataclasses import asdict

from xpress_lab.files import write_text
from xpress_lab.lab import DEFAULT_PASSES, Lab
from xpress_lab.pocket.corpus import examples, grade
from xpress_lab.presets import FAMILIES
from xpress_lab.statistics import distinct_n, longest_run
from xpress_lab.training.monitoring import greedy_tau

WHAT = {
    "target": "A Qwen3-style causal LM, trained here from nothing on generated text.",
    "base": "The dFlash block-diffusion drafter from which every arm goes on.",
    "dflash": "A dFlash block-diffusion drafter, trained alone.",
    "markov": "A dFlash drafter co-trained with DSpark's vanilla Markov head.",
    "xpress": "A dFlash drafter co-trained with the xPress refiner.",
}
GRADED = 64  # held-out prompts a family on which the target is graded
CARD = """---
license: apache-2.0
library_name: xpress-lab
---
# xpress-lab {tier}: {stage}

{what}

**Data.** {data}

**Recipe.** {recipe}

**Cost.** {steps} steps in {seconds:.0f} s on {machine}.

**How it does.** {result}

**How it was made.** `{command}`, seed {seed}, commit {commit}; {versions}.
"""


def write_cards(lab: Lab, prompts: dict[str, list[str]]) -> None:
    """README.md beside every checkpoint, with what was measured on ``prompts``."""
    tier, results = lab.tier, {"target": _target_result(lab)}
    kinds = ("base", "dflash", "markov", "xpress")
    asked = [prompt for texts in prompts.values() for prompt in texts]
    taus = {
        kind: greedy_tau(lab.target, lab.block_method(kind, DEFAULT_PASSES), asked)
        for kind in kinds
    }
    for kind, tau in taus.items():
        results[kind] = (
            f"Greedy tau {tau:.2f}, pooled over {len(asked)} held-out prompts "
            f"(beside it: {', '.join(f'{k} {t:.2f}' for k, t in taus.items())})."
        )
    for stage, result in results.items():
        folder = lab.folder / stage
        made = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        recipe = tier.target if stage == "target" else tier.arm
        fields = ", ".join(f"{key} {value}" for key, value in asdict(recipe).items())
        whose = "the project's grammar" if stage == "target" else "the target itself"
        text = CARD.format(
            tier=tier.name,
            what=WHAT[stage],
            data=f"{made['texts']} texts, {made['response_tokens']} response tokens, "
            f"written by {whose}.",
            recipe=fields,
            result=result,
            **made,
        )
        write_text(folder / "README.md", text)


def _target_result(lab: Lab) -> str:
    scores = ", ".join(f"{k} {v:.3g}" for k, v in grade_target(lab, GRADED).items())
    return f"Greedy answers to {GRADED} held-out prompts a family: {scores}."


def grade_target(lab: Lab, count: int, seed: int = 7) -> dict[str, float]:
    """How good the target's greedy answers to held-out prompts are.

    Share of right answers by family, and two signs of degeneration over all of
    them: mean distinct-3 and the longest run of one token.
    """
    scores: dict[str, float] = {}
    texts = []
    for family in FAMILIES:
        asked = examples(family, count, seed, held_out=True)
        answers = [lab.generate(e.prompt, "ar", keep_trace=False) for e in asked]
        right = [grade(e, a.text) for e, a in zip(asked, answers, strict=True)]
        scores[f"{family} right"] = sum(right) / count
        texts += [a.tokens for a in answers]
    scores["distinct-3"] = sum(map(distinct_n, texts)) / len(texts)
    scores["longest run"] = max(map(longest_run, texts))
    return scores
