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
from xpress_lab.sampling import Sampling
from xpress_lab.training.answers import Pair, answer
from xpress_lab.training.states import StateFolder
from xpress_lab.training.texts import TextSet


@torch.inference_mode()
def write_responses(
    prompts: list[str],
    recipe: ResponseRecipe,
    folder: Path,
    states: StateFolder,
    seed: int = 0,
) -> TextSet:
    """Let the target answer all prompts; finished shards are read, not made again.

    Prompts of similar length share a shard. Shards are made in random order, so that
    what an interrupted run leaves is a fair sample. The target's states go to
    ``states``, a shard a file.
    """
    target = states.target
    encoded = [target.encode(prompt) for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i]), i))
    shards = [order[i : i + recipe.batch] for i in range(0, len(order), recipe.batch)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{index:04d}.json" for index in range(len(shards))]
    missing = [index for index, path in enumerate(paths) if not path.is_file()]
    random.Random(seed).shuffle(missing)
    most = sum(len(shards[index]) for index in missing) * recipe.max_new_tokens
    size = most + sum(len(encoded[i]) for index in missing for i in shards[index])
    what = (
        f"responses (up to {most / 1e6:.1f} M tokens, {states.gigabytes(size):.0f} GB)"
    )
    tokens, started = 0, time.perf_counter()
    with tqdm(missing, what) as bar:
        for index in bar:
            greedy = (index * recipe.greedy_share) % 1 < recipe.greedy_share
            done = answer(
                target,
                [encoded[i] for i in shards[index]],
                states.tap_ids,
                Sampling(0.0 if greedy else recipe.temperature),
                recipe.max_new_tokens,
                seed + index,
            )
            texts = TextSet.of(done.pairs, target.pad_id)
            states.save(index, texts, done.states, done.lse)
            _write(paths[index], done.pairs)  # last: it says that the shard is whole
            tokens += texts.response_tokens()
            speed = tokens / (time.perf_counter() - started)
            bar.set_postfix(tokens=tokens, tokens_per_second=f"{speed:.0f}")
    pairs = [pair for path in paths for pair in _read(path)]
    return TextSet.of(pairs, target.pad_id)


def _write(path: Path, pairs: list[Pair]) -> None:
    write_text(path, json.dumps(pairs))


def _read(path: Path) -> list[Pair]:
    try:
        return [tuple(pair) for pair in json.loads(path.read_text(encoding="utf-8"))]
    except ValueError as error:
        raise LabError(f"{path} is damaged; delete it and run again.") from error
