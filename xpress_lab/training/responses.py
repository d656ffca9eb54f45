"""Training texts in the target's own words.

A drafter is judged by the target's tokens, so it learns from texts that the target
wrote itself: part greedy, part sampled, in shards that survive an interruption.
"""

import json
from pathlib import Path

import torch
from tqdm import tqdm

from xpress_lab.checkpoints import write_whole
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
    """Let the target answer all prompts; finished shards are read, not made again."""
    encoded = [target.encode(prompt) for prompt in prompts]
    order = sorted(range(len(encoded)), key=lambda i: (len(encoded[i]), i))
    shards = [order[i : i + recipe.batch] for i in range(0, len(order), recipe.batch)]
    folder.mkdir(parents=True, exist_ok=True)
    pairs: list[Pair] = []
    for index, rows in enumerate(tqdm(shards, "responses")):
        path = folder / f"{index:04d}.json"
        if not path.is_file():
            batch = [encoded[i] for i in rows]
            greedy = (index * recipe.greedy_share) % 1 < recipe.greedy_share
            text = json.dumps(_answer(target, batch, recipe, greedy, seed + index))
            write_whole(path, lambda p, text=text: p.write_text(text, encoding="utf-8"))
        pairs += [tuple(pair) for pair in json.loads(path.read_text(encoding="utf-8"))]
    return TextSet.of(pairs, target.tokenizer.pad_token_id)


def _answer(target: Target, batch, recipe, greedy: bool, seed: int) -> list[Pair]:
    """One batch through transformers' own generate, left-padded."""
    tokenizer = target.tokenizer
    width = max(map(len, batch))
    pad = tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(p)) + p for p in batch])
    seen = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch])
    torch.manual_seed(seed)
    sampling = {} if greedy else {"temperature": recipe.temperature, "top_k": 0}
    out = target.model.generate(
        input_ids=ids.to(target.device),
        attention_mask=seen.to(target.device),
        do_sample=not greedy,
        max_new_tokens=recipe.max_new_tokens,
        **sampling,
    )
    answers = [_until_stop(row, target.stop_ids) for row in out[:, width:].tolist()]
    return list(zip(batch, answers, strict=True))


def _until_stop(ids: list[int], stops: tuple[int, ...]) -> list[int]:
    end = next((i for i, token in enumerate(ids) if token in stops), len(ids) - 1)
    return ids[: end + 1]
