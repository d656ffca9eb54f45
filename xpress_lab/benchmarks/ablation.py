"""What each part of a trained head is worth, in tokens per verification."""

from dataclasses import replace

import pandas as pd

from xpress_lab.decoding import decode
from xpress_lab.lab import DEFAULT_PASSES, Lab, arm_method
from xpress_lab.refiners.ablation import ALL_BUT_TOKENS, PARTS, without
from xpress_lab.sampling import Sampling
from xpress_lab.statistics import bootstrap, paired_ratio, tau_pooled

WHOLE, BARE = "whole head", "no head at all"
# What is taken out in each variant; the bare drafter is another matter.
VARIANTS = {
    WHOLE: (),
    **{f"no {part}": (part,) for part in PARTS},
    "previous token alone": ALL_BUT_TOKENS,
}


def ablate(
    lab: Lab,
    prompts: dict[str, list[str]],
    temperatures: tuple[float, ...] = (0.0,),
    passes: int | None = DEFAULT_PASSES,
    max_new_tokens: int = 128,
) -> pd.DataFrame:
    """Decode with the xpress arm whole, with each part missing, and without its head.

    Returns:
        One row per text; columns: variant, temperature, benchmark, prompt_id, seed,
        new_tokens, verify_steps, same_text (as the whole head's; at T = 0 it must be).
    """
    arm = lab.arm("xpress")
    heads = {name: without(arm.head, *parts) for name, parts in VARIANTS.items()}
    heads[BARE] = None
    methods = {
        name: arm_method(replace(arm, head=head), lab.target, passes, name=name)
        for name, head in heads.items()
    }
    jobs = [
        (temperature, name, number, lab.target.encode(prompt))
        for temperature in temperatures
        for name, texts in prompts.items()
        for number, prompt in enumerate(texts)
    ]
    rows = []
    for temperature, name, number, ids in jobs:
        whole = None
        for variant, method in methods.items():
            text = decode(
                lab.target,
                method,
                ids,
                sampling=Sampling(temperature),
                max_new_tokens=max_new_tokens,
                seed=number,
            )
            whole = whole or text.tokens
            rows.append(
                {
                    "variant": variant,
                    "temperature": temperature,
                    "benchmark": name,
                    "prompt_id": number,
                    "seed": number,
                    "new_tokens": len(text.tokens),
                    "verify_steps": len(text.rounds),
                    "same_text": text.tokens == whole,
                }
            )
    return pd.DataFrame(rows)


def worth(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per temperature and variant of :func:`ablate`'s rows: pooled tau with
    its interval, and ``share``, its ratio to the whole head's on the same texts, with
    the ends of that interval (95 %, bootstrap over texts)."""
    lines = []
    for temperature, at in rows.groupby("temperature"):
        whole = at[at["variant"] == WHOLE]
        for variant, texts in at.groupby("variant", sort=False):
            tau, share = (
                bootstrap(texts, tau_pooled),
                paired_ratio(texts, whole, tau_pooled),
            )
            lines.append(
                {
                    "temperature": temperature,
                    "variant": variant,
                    "texts": len(texts),
                    "tau": tau.value,
                    "tau_low": tau.low,
                    "tau_high": tau.high,
                    "share": share.value,
                    "share_low": share.low,
                    "share_high": share.high,
                }
            )
    return pd.DataFrame(lines)
