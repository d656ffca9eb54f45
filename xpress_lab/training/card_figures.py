"""What model cards say of each checkpoint, measured on held-out prompts."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from xpress_lab.benchmarks.calibration import observe, scores
from xpress_lab.checkpoints import CONFIDENCE
from xpress_lab.lab import DEFAULT_PASSES, Lab
from xpress_lab.methods import Method
from xpress_lab.pocket.corpus import examples, grade
from xpress_lab.presets import FAMILIES, Tier
from xpress_lab.statistics import distinct_n, longest_run
from xpress_lab.training.monitoring import greedy_rounds

CUT = 0.4  # the threshold at which a confidence head is tried


@dataclass(frozen=True)
class Asked:
    """What is asked for a card.

    prompts: held-out prompts on which tau is taken. graded: prompts a family on which
    a target that was trained here is graded.
    """

    prompts: tuple[str, ...]
    max_new_tokens: int = 128
    graded: int = 0


def measure_all(
    tier: Tier, folder: Path, dtype: torch.dtype, stages: list[str], asked: Asked
) -> dict[str, dict[str, float]]:
    """Figures of every stage, by two processes of one thread each."""
    context = multiprocessing.get_context("spawn")
    job = partial(measure, tier, folder, dtype, asked)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        return dict(zip(stages, pool.map(job, stages), strict=True))


def measure(
    tier: Tier, folder: Path, dtype: torch.dtype, asked: Asked, stage: str
) -> dict[str, float]:
    """Figures of one stage; a process of its own is expected."""
    torch.set_num_threads(1)
    lab = Lab(tier, folder, torch.device("cpu"), dtype)
    if stage == "target":
        return grade_target(lab, asked.graded)
    if Path(stage).name == CONFIDENCE:
        return judge_confidence(lab, Path(stage).parent.name, asked)
    if stage == "ngram" and drafter(stage) not in lab.trained():
        return {}
    if stage == "base":  # an arm that no method is named after
        method = lab.block_method(stage, DEFAULT_PASSES)
    else:
        method = lab.method(drafter(stage))
    return tau_of(lab, method, asked)


def drafter(stage: str) -> str:
    """What drafts with a stage's weights: the method of its name, or that uses it."""
    return "dflash+presto" if stage == "ngram" else stage


def tau_of(lab: Lab, method: Method, asked: Asked) -> dict[str, float]:
    """Pooled greedy tau over the prompts of a card, and drafts a verification."""
    prompts, most = list(asked.prompts), asked.max_new_tokens
    rounds = greedy_rounds(lab.target, method, prompts, most)
    return {
        "tau": sum(r.emitted for r in rounds) / len(rounds),
        "proposed": sum(len(r.block) - 1 for r in rounds) / len(rounds),
    }


def judge_confidence(lab: Lab, kind: str, asked: Asked) -> dict[str, float]:
    """Calibration at T = 1, where acceptance has the law that the head was taught, and
    the greedy tau of proposals that it cuts."""
    drafts = observe(
        lab,
        kind,
        {"held-out": list(asked.prompts)},
        (1.0,),
        max_new_tokens=asked.max_new_tokens,
    )
    (line,) = scores(drafts).to_dict("records")
    cut = lab.method(kind, confidence=CUT)
    return line | tau_of(lab, cut, asked)


def grade_target(lab: Lab, count: int, seed: int = 7) -> dict[str, float]:
    """How good the target's greedy answers to held-out prompts are.

    Share of right answers by family, and two signs of degeneration over all of
    them: mean distinct-3 and the longest run of one token.
    """
    found: dict[str, float] = {}
    texts = []
    for family in FAMILIES:
        prompts = examples(family, count, seed, held_out=True)
        answers = [lab.generate(e.prompt, "ar", keep_trace=False) for e in prompts]
        right = [grade(e, a.text) for e, a in zip(prompts, answers, strict=True)]
        found[f"{family} right"] = sum(right) / count
        texts += [a.tokens for a in answers]
    found["distinct-3"] = sum(map(distinct_n, texts)) / len(texts)
    found["longest run"] = max(map(longest_run, texts))
    return found
