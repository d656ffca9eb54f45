"""Is our own plain decoding a fair baseline? Timed against transformers' generate."""

import time

import pandas as pd
import torch

from xpress_lab.decoding import decode
from xpress_lab.lab import Lab


def against_generate(
    lab: Lab, prompts: list[str], rounds: int = 3, max_new_tokens: int = 64
) -> pd.DataFrame:
    """Greedy ``ar`` and ``model.generate`` on the same prompts, taking turns.

    Both times hold the prefill. The first round warms up and is dropped.
    Columns: prompt_id, round, ours_seconds, generate_seconds, same_text.
    """
    method, rows = lab.method("ar"), []
    for turn in range(rounds + 1):
        for number, prompt in enumerate(prompts):
            ids = lab.target.encode(prompt)
            started = time.perf_counter()
            ours = decode(lab.target, method, ids, max_new_tokens=max_new_tokens)
            between = time.perf_counter()
            theirs = generate(lab, ids, max_new_tokens)
            ended = time.perf_counter()
            rows.append(
                {
                    "prompt_id": number,
                    "round": turn,
                    "ours_seconds": between - started,
                    "generate_seconds": ended - between,
                    "same_text": ours.tokens == theirs,
                }
            )
    frame = pd.DataFrame(rows)
    return frame[frame["round"] > 0]


def generate(lab: Lab, ids: list[int], max_new_tokens: int) -> list[int]:
    """transformers' own greedy continuation."""
    prompt = torch.tensor([ids], device=lab.target.device)
    out = lab.target.model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_new_tokens,
    )
    return out[0, len(ids) :].tolist()
