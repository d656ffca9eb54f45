"""Evaluation prompts whose answers nobody trained on.

The grammar already keeps one answer key in 16 from every training text. This file
adds the check that matters for a drafter: the *target's own* greedy answer must not
stand among the responses that drafters were trained on. Those are remembered as
fingerprints, so that the check can be repeated without making them again.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.files import write_text
from xpress_lab.methods import PlainDecoding
from xpress_lab.pocket.corpus import examples
from xpress_lab.presets import FAMILIES
from xpress_lab.target import Target
from xpress_lab.training.texts import TextSet

SEED = 2026  # of the held-out draw; far from the training seeds


def fingerprint(response: list[int]) -> str:
    """Sixteen hex digits that stand for a response's token ids, end token dropped."""
    return hashlib.blake2b(repr(response).encode(), digest_size=8).hexdigest()


def response_fingerprints(texts: TextSet, end_id: int) -> set[str]:
    """Fingerprints of all responses of a training set."""
    found = set()
    for row, first, last in zip(
        texts.tokens, texts.prompt_lengths, texts.lengths, strict=True
    ):
        response = row[first:last].tolist()
        found.add(fingerprint(strip_end(response, end_id)))
    return found


def strip_end(tokens: list[int], end_id: int) -> list[int]:
    return tokens[:-1] if tokens and tokens[-1] == end_id else tokens


def unseen_prompts(
    target: Target, seen: set[str], count: int, max_new_tokens: int = 128
) -> dict[str, list[str]]:
    """``count`` held-out prompts a family whose greedy answers are not in ``seen``.

    The grammar's reference answer is checked too.
    """
    end_id = target.tokenizer.eos_token_id
    chosen: dict[str, list[str]] = {}
    for family in FAMILIES:
        kept = []
        for example in tqdm(
            examples(family, 2 * count, SEED, held_out=True), f"held-out {family}"
        ):
            if len(kept) == count:
                break
            answer = decode(
                target,
                PlainDecoding(),
                target.encode(example.prompt),
                max_new_tokens=max_new_tokens,
            ).tokens
            reference = target.tokenizer(example.response).input_ids
            marks = {fingerprint(strip_end(answer, end_id)), fingerprint(reference)}
            if not marks & seen:
                kept.append(example.prompt)
        if len(kept) < count:
            raise LabError(f"{family}: only {len(kept)} unseen prompts, not {count}.")
        chosen[family] = kept
    return chosen


def write_prompts(prompts: dict[str, list[str]], folder: Path) -> None:
    """One FAMILY.jsonl a family, one ``{"turns": [prompt]}`` a line."""
    folder.mkdir(parents=True, exist_ok=True)
    for family, texts in prompts.items():
        lines = "".join(json.dumps({"turns": [text]}) + "\n" for text in texts)
        write_text(folder / f"{family}.jsonl", lines)


def write_fingerprints(marks: Iterable[str], path: Path) -> None:
    """One a line, sorted."""
    write_text(path, "\n".join(sorted(marks)) + "\n")
