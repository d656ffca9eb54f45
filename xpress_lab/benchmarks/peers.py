"""Other people's decoding on the same target, timed in turns with ours.

transformers offers plain generation, prompt lookup, and a dFlash mode that drives a
drafter through its own loop: the first is the baseline that must not be a straw man,
the last is an independent loop around the very same drafter.
"""

import time
from types import SimpleNamespace

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm
from transformers import GenerationConfig, Qwen3Config

from xpress_lab.benchmarks.runner import rotated
from xpress_lab.decoding import decode
from xpress_lab.drafters.dflash import DFlashDrafter
from xpress_lab.lab import Lab
from xpress_lab.methods import Method

PEERS = {
    "generate": {},
    "prompt lookup": {"prompt_lookup_num_tokens": 10},
}


class HostedDrafter(nn.Module):
    """A dFlash drafter under the argument names of transformers' dFlash mode.

    That mode reads drafts off the target's whole output head, so a drafter with a
    draft vocabulary may draft other tokens there than in our loop; texts agree.
    """

    def __init__(self, drafter: DFlashDrafter):
        super().__init__()
        self.drafter, own = drafter, drafter.config
        self.config = Qwen3Config(
            num_hidden_layers=own.num_hidden_layers,
            block_size=own.block_size,
            mask_token_id=own.mask_token_id,
            target_layer_ids=list(own.target_layer_ids),
        )

    @property
    def device(self) -> torch.device:
        return self.drafter.norm.weight.device

    def forward(
        self,
        noise_embeds: torch.Tensor,
        context_hidden_states: torch.Tensor,
        position_ids: torch.Tensor,
        cache=None,
        **_,
    ) -> SimpleNamespace:
        """``last_hidden_state`` ``[1, B, H]``; the host keeps the cache."""
        context = self.drafter.project(context_hidden_states)
        states = self.drafter(noise_embeds, context, position_ids, cache=cache)
        return SimpleNamespace(last_hidden_state=states)


def generate(lab: Lab, ids: list[int], max_new_tokens: int, **how) -> list[int]:
    """transformers' own greedy continuation."""
    prompt = torch.tensor([ids], device=lab.target.device)
    out = lab.target.model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=lab.target.pad_id,
        **how,
    )
    return out[0, len(ids) :].tolist()


def generate_dflash(
    lab: Lab, ids: list[int], max_new_tokens: int, hosted: HostedDrafter
) -> list[int]:
    """transformers' loop around one of our drafters."""
    settings = GenerationConfig.from_dict(lab.target.model.generation_config.to_dict())
    settings.update(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        pad_token_id=lab.target.pad_id,
        speculation_type="dflash",
    )
    prompt = torch.tensor([ids], device=lab.target.device)
    out = lab.target.model.generate(
        input_ids=prompt,
        attention_mask=torch.ones_like(prompt),
        assistant_model=hosted,
        generation_config=settings,
    )
    return out[0, len(ids) :].tolist()


def race(
    lab: Lab,
    prompts: dict[str, list[str]],
    methods: list[Method],
    rounds: int = 1,
    max_new_tokens: int = 64,
) -> pd.DataFrame:
    """Greedy decoding by our methods and by transformers, taking turns in
    an order that rotates.

    The first prompt is run once more before, to warm up. ``seconds`` is the time of
    all tokens less that of the first alone, so that prefill is left out on both sides.
    Columns: runner, benchmark, prompt_id, round, new_tokens, seconds, whole_seconds,
    same_text (as transformers' plain generation).
    """
    hosted = HostedDrafter(lab.arm("dflash").drafter)
    runners = {name: _generate_by(lab, how) for name, how in PEERS.items()}
    runners["dflash in transformers"] = lambda ids, new: generate_dflash(
        lab, ids, new, hosted
    )
    for method in methods:
        runners[f"ours: {method.name}"] = _decode_by(lab, method)
    texts = [(name, n, p) for name, some in prompts.items() for n, p in enumerate(some)]
    for run in runners.values():
        run(lab.target.encode(texts[0][2]), max_new_tokens)
    rows = []
    for turn in range(rounds):
        for place, (name, number, prompt) in enumerate(
            tqdm(texts, "race", leave=False)
        ):
            ids = lab.target.encode(prompt)
            order = rotated(tuple(runners), turn + place)
            found = {r: _timed(runners[r], ids, max_new_tokens) for r in order}
            plain = found["generate"][0]
            rows += [
                {
                    "runner": runner,
                    "benchmark": name,
                    "prompt_id": number,
                    "round": turn,
                    "new_tokens": len(tokens),
                    "seconds": whole - first,
                    "whole_seconds": whole,
                    "same_text": tokens == plain,
                }
                for runner, (tokens, whole, first) in found.items()
            ]
    return pd.DataFrame(rows)


def speed_over(rows: pd.DataFrame, baseline: str = "generate") -> pd.DataFrame:
    """Each runner's speed in units of another's on the same text and round.

    Columns: speed (median over texts and rounds), low and high quartile, mean, and the
    share of texts that agree with plain ``generate``'s.
    """
    index = ["benchmark", "prompt_id", "round"]
    seconds = rows.pivot(index=index, columns="runner", values="seconds")
    ratio = seconds.rdiv(seconds[baseline], axis=0)
    return pd.DataFrame(
        {
            "speed": ratio.median().round(3),
            "low": ratio.quantile(0.25).round(3),
            "high": ratio.quantile(0.75).round(3),
            "mean": ratio.mean().round(3),
            "same_text": rows.groupby("runner")["same_text"].mean().round(3),
        }
    )


def _timed(run, ids: list[int], new: int) -> tuple[list[int], float, float]:
    """Tokens, seconds for all of them, seconds for the first alone."""
    started = time.perf_counter()
    run(ids, 1)
    between = time.perf_counter()
    tokens = run(ids, new)
    return tokens, time.perf_counter() - between, between - started


def _generate_by(lab: Lab, how: dict):
    return lambda ids, new: generate(lab, ids, new, **how)


def _decode_by(lab: Lab, method: Method):
    return lambda ids, new: decode(lab.target, method, ids, max_new_tokens=new).tokens
