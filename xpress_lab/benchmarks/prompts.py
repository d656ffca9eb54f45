"""Prompts of a benchmark: a folder of JSONL files, one ``{"turns": [...]}`` a line."""

import json
import os
import random
from pathlib import Path

from xpress_lab.errors import LabError
from xpress_lab.presets import get_tier, model_cache

SHUFFLE_SEED = 0  # the protocol's: shuffle, then take the first ones (methods 6.2)


def prompt_folder(tier: str, given: str | Path | None = None) -> Path:
    """Where prompts are read: ``given``, XPRESS_LAB_PROMPTS, or the tier's own.

    The pocket tier ships its prompts, for others they are fetched.
    """
    named = given or os.environ.get("XPRESS_LAB_PROMPTS")
    own = get_tier(tier).folder() / "prompts"
    folder = Path(named) if named else own if own.is_dir() else fetched_prompts()
    if not folder.is_dir() or not any(folder.glob("*.jsonl")):
        raise LabError(
            f"No prompts in {folder}: it should hold NAME.jsonl files with one "
            '{"turns": ["..."]} a line. Name such a folder by --prompts or '
            "XPRESS_LAB_PROMPTS, or run: xpress-lab fetch prompts"
        )
    return folder


def fetched_prompts() -> Path:
    """Where ``xpress-lab fetch prompts`` puts the seven benchmarks."""
    return model_cache() / "prompts"


def benchmark_names(folder: Path, wanted: str = "all") -> list[str]:
    """Names from ``all`` or a comma list, checked against the folder."""
    present = sorted(path.stem for path in folder.glob("*.jsonl"))
    if wanted == "all":
        return present
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    unknown = [name for name in names if name not in present]
    if unknown or not names:
        raise LabError(
            f"Unknown benchmark {', '.join(unknown) or wanted!r}: "
            f"{folder} has {', '.join(present)}."
        )
    return names


def read_prompts(folder: Path, name: str, limit: int | None = None) -> list[str]:
    """First turns of a benchmark, in the protocol's shuffled order."""
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        raise LabError(f"No prompts at {path}.")
    prompts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            turns = json.loads(line)["turns"]
            prompts.append(turns[0])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise LabError(
                f'{path}, line {number}: not {{"turns": [...]}} ({error}).'
            ) from error
    random.Random(SHUFFLE_SEED).shuffle(prompts)
    return prompts if limit is None else prompts[:limit]
