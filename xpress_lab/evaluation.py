"""A tier on the seven benchmarks: tau of every method, speed in turns, identity.

Three parts, each a CSV that grows as it is measured and that a second run goes on with.
*tau*: every method on every prompt, texts side by side, for the target's verdict does
not depend on the clock; at T = 0 along texts that the target has written once. *speed*:
batch 1, ours and transformers' own decoding taking turns on some of the prompts.
*identity*: greedy texts against ``model.generate``.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from xpress_lab.benchmarks.identity import compare_texts
from xpress_lab.benchmarks.peers import race, speed_over
from xpress_lab.benchmarks.prompts import benchmark_names, prompt_folder, read_prompts
from xpress_lab.benchmarks.rows import read_frame
from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
from xpress_lab.benchmarks.tables import labelled, means, summary
from xpress_lab.errors import LabError
from xpress_lab.files import read_json, write_json, write_text
from xpress_lab.lab import DEFAULT_PASSES, Lab, load_lab
from xpress_lab.provenance import how_made
from xpress_lab.viz import acceptance, evaluated
from xpress_lab.viz.style import save_figure, use_style

METHODS = ("ar", "dflash", "markov", "xpress")


@dataclass(frozen=True)
class Amounts:
    """How much each part takes; prompts are counted by benchmark."""

    prompts: int = 40
    raced: int = 8
    compared: int = 5
    new_tokens: int = 256
    raced_tokens: int = 128
    compared_tokens: int = 128
    batch: int = 20
    passes: tuple[int, ...] = (1, 2, 4, 6, 8)
    temperatures: tuple[float, ...] = (0.0, 1.0)


def evaluate(
    tier: str,
    out: Path,
    prompts: Path | None = None,
    *,
    dtype: str = "bfloat16",
    say: Callable[[str], None] = print,
    amounts: Amounts = Amounts(),  # noqa: B008  frozen, so safe to share
    **where,
) -> pd.DataFrame:
    """Measure what is missing in ``out``, draw, write; returns the summary table.

    Args:
        prompts: folder of benchmark prompts; see
            :func:`xpress_lab.benchmarks.prompts.prompt_folder`.
        dtype: in which taus and speeds are measured. Identity is looked at in float32
            too, where it must hold.
        where: device, folder of trained arms and model, as in
            :func:`xpress_lab.lab.load_lab`.
    """
    folder = prompt_folder(tier, prompts)
    texts = {
        n: read_prompts(folder, n, amounts.prompts) for n in benchmark_names(folder)
    }
    lab = load_lab(tier, dtype=dtype, **where)
    out.mkdir(parents=True, exist_ok=True)
    check_settings(out / "made.json", settings(lab, amounts))
    say(f"Measuring {sum(map(len, texts.values()))} prompts; results grow in {out}.")
    speed = grow(
        out / "speed.csv", first(texts, amounts.raced), partial(raced, lab, amounts)
    )
    for kind in dict.fromkeys(("float32", dtype)):
        own = lab if kind == dtype else load_lab(tier, dtype=kind, **where)
        some = first(texts, amounts.compared)
        grow(out / f"identity-{kind}.csv", some, partial(compared, own, amounts))
    rows = tau_rows(lab, texts, amounts, out / "tau.csv")
    lines = summary(rows)
    lines.to_csv(out / "summary.csv", index=False)
    means(rows).to_csv(out / "means.csv", index=False)
    draw(out, rows, lines, speed)
    write_json(out / "made.json", settings(lab, amounts) | how_made())
    return lines


def tau_rows(lab: Lab, texts: dict[str, list[str]], amounts: Amounts, path: Path):
    """Every method on every prompt, several texts side by side."""
    bench = Bench(
        run_arms(METHODS, amounts.passes),
        texts,
        amounts.temperatures,
        max_new_tokens=amounts.new_tokens,
        batch_size=amounts.batch,
        recorded=amounts.batch > 1,
        name="tau",
    )
    run_bench(lab, bench, path)
    return read_frame(path)


def raced(lab: Lab, amounts: Amounts, prompts: dict[str, list[str]]) -> pd.DataFrame:
    """Seconds of our methods and of transformers' own, in turns."""
    methods = [lab.method(name, DEFAULT_PASSES) for name in METHODS]
    return race(lab, prompts, methods, max_new_tokens=amounts.raced_tokens)


def compared(lab: Lab, amounts: Amounts, prompts: dict[str, list[str]]) -> pd.DataFrame:
    """Greedy texts against plain generation's."""
    methods = [lab.method(name, DEFAULT_PASSES) for name in METHODS]
    return compare_texts(lab, prompts, methods, amounts.compared_tokens)


def first(texts: dict[str, list[str]], count: int) -> dict[str, list[str]]:
    return {name: prompts[:count] for name, prompts in texts.items()}


def grow(
    path: Path,
    prompts: dict[str, list[str]],
    measure: Callable[[dict[str, list[str]]], pd.DataFrame],
) -> pd.DataFrame:
    """Measure benchmark by benchmark what a file lacks; the file as a frame.

    A benchmark's rows appear together or not at all, for its name says that it is done.
    """
    present = set(pd.read_csv(path)["benchmark"]) if path.is_file() else set()
    missing = [name for name in prompts if name not in present]
    for name in tqdm(missing, path.stem, disable=None):
        frame = measure({name: prompts[name]})
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        write_text(path, text + frame.to_csv(index=False, header=not text))
    return pd.read_csv(path)


def draw(out: Path, rows: pd.DataFrame, lines: pd.DataFrame, speed: pd.DataFrame):
    """The pictures of the report."""
    use_style()
    best = f"xpress K={DEFAULT_PASSES}"
    chosen = ["dflash", "markov", best]
    some = labelled(rows)
    some = some[some["arm"].isin(chosen)]
    figures = {
        "tau": acceptance.tau_bars(lines, chosen),
        "passes": acceptance.tau_by_passes(lines),
        "slots": acceptance.slot_curves(some),
        "gains": evaluated.gains(rows, best),
        "context": evaluated.context_curves(some),
        "repetition": evaluated.repetition(some, best),
        "speed": evaluated.speed(speed_over(speed)),
    }
    for name, figure in figures.items():
        save_figure(figure, out / f"{name}.png")


def settings(lab: Lab, amounts: Amounts) -> dict:
    """What all results of a folder have in common; JSON values."""
    return {
        "seed": 0,
        "target": lab.target_name,
        "dtype": str(lab.target.dtype).removeprefix("torch."),
        "amounts": json.loads(json.dumps(asdict(amounts))),
        "recorded": amounts.batch > 1,  # greedy texts; see xpress_lab.recorded
    }


def check_settings(path: Path, wanted: dict) -> None:
    """Note the settings of a new folder; raise where one was begun with others."""
    if not path.is_file():
        write_json(path, wanted | how_made())
        return
    found = read_json(path)
    for name, value in wanted.items():
        if found.get(name) != value:
            raise LabError(
                f"{path.parent} was begun with {name} {found.get(name)}, this run has "
                f"{value}: choose another folder."
            )
