"""``python -m xpress_lab.book``: build the site of the committed notebooks."""

import argparse
from pathlib import Path

import torch
from transformers.utils import logging

from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.recording import Lane, record
from xpress_lab.book.site import build
from xpress_lab.errors import LabError
from xpress_lab.lab import load_lab
from xpress_lab.notebooks import FOLDER, find
from xpress_lab.presets import data_folder

OUT = Path("outputs/book")
FAMILIES = ("chat", "code", "math")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m xpress_lab.book",
        description="Build a site of the notebooks as they are, without running them.",
    )
    parser.add_argument(
        "--out", type=Path, default=OUT, help=f"folder, by default {OUT}"
    )
    out = parser.parse_args().out
    logging.disable_progress_bar()
    try:
        build(
            find([]),
            out,
            glossary=FOLDER / "glossary.md",
            teaching=FOLDER / "teaching.md",
            races=run_races(),
            results=data_folder() / "results",
        )
    except LabError as error:
        raise SystemExit(str(error)) from error
    print(f"The book is in {out}: open {out / 'index.html'}")


def run_races() -> dict[str, list[Lane]]:
    """One race a family on the pocket tier, timed on this machine."""
    torch.set_num_threads(1)
    lab, folder = load_lab("pocket", device="cpu"), prompt_folder("pocket")
    prompts = [read_prompts(folder, family, 1)[0] for family in FAMILIES]
    return {prompt: record(lab, prompt, repeats=5) for prompt in prompts}


if __name__ == "__main__":
    main()
