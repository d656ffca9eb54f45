"""Training texts in the target's own words.

A drafter is judged by the target's tokens, so it learns from texts that the target
wrote itself: part greedy, part sampled, in shards that survive an interruption.
"""

import json
import random
import time
from pathlib import Path

import torch
from tqdm import tqdm

from xpress_lab.errors import LabError
from xpress_lab.files import write_text
from xpress_lab.presets import ResponseRecipe
from xpress_lab.target import Target
from xpress_lab.training.texts import TextSet

Pair = tuple[list[int], list[int]]


@torch.inference_mode()
def write_responses(
    target: Target,
    prompts: list[str],
    recipe: ResponseRecipe,
    folder: Path,
    seed: int = 0,
) -> TextSet:
    """Let the target answer all prompts; finished shards are read, not made again.

    Prompts of similar length share a shard. Shards are made in random order, so that
    what an interrupted run leaves is a fair sample.
    """
    encoded = [target.encode(prompt) for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i]), i))
    shards = [order[i : i + recipe.batch] for i in range(0, len(order), recipe.batch)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:04d}.json" for index in range(len(shards))]
    missing = [index for index, path in enumerate(paths) if not path.is_file()]
    random.Random(seed).shuffle(missing)
    most = sum(len(shards[index]) for index in missing) * recipe.max_new_tokens
    tokens, started = 0, time.perf_counter()
    with tqdm(missing, f"responses (up to {most / 1e6:.1f} M tokens)") as bar:
        for index in bar:
            batch = [encoded[i] for i in shards[index]]
            greedy = (index * recipe.greedy_share) % 1 < recipe.greedy_share
            answers = _answer(target, batch, recipe, greedy, seed + index)
            _write(paths[index], answers)
            tokens += sum(len(answer) for _, answer in answers)
            speed = tokens / (time.perf_counter() - started)
            bar.set_postfix(tokens=tokens, tokens_per_second=f"{speed:.0f}")
    pairs = [pair for path in paths for pair in _read(path)]
    return TextSet.of(pairs, target.pad_id)


def _write(path: Path, answers: list[Pair]) -> None:
    write_text(path, json.dumps(answers))


def _read(path: Path) -> list[Pair]:
    try:
        return [tuple(pair) for pair in json.loads(path.read_text(encoding="utf-8"))]
    except ValueError as error:
        raise LabError(f"{path} is damaged; delete it and run again.") from error


def _answer(target: Target, batch, recipe, greedy: bool, seed: int) -> list[Pair]:
    """One batch through transformers' own generate, left-padded."""
    width, pad = max(map(len, batch)), target.pad_id
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in batch])
    seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
    torch.manual_seed(seed)
    sampling = {} if greedy else {"temperature": recipe.temperature, "top_k": 0}
    out = target.model.generate(
        input_ids=ids.to(target.device),
        attention_mask=seen.to(target.device),
        do_sample=not greedy,
        max_new_tokens=recipe.max_new_tokens,
        pad_token_id=pad,
        **sampling,
    )
    answers = [_until_stop(row, target.stop_ids) for row in out[:, width:].tolist()]
    return list(zip(batch, answers, strict=True))


def _until_stop(ids: list[int], stops: tuple[int, ...]) -> list[int]:
    end = next((i for i, token in enumerate(ids) if token in stops), len(ids) - 1)
    return ids[: end + 1]
