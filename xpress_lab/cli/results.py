"""`tables`, `evaluate` and `reproduce`: whole results, and printing them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from xpress_lab.cli.shared import (
    Device,
    Dtype,
    Json,
    Model,
    Tier,
    Weights,
    app,
    clear_errors,
    print_summary,
    print_throughput,
)
from xpress_lab.errors import LabError


@app.command()
def tables(
    file: Annotated[Path, typer.Argument(help="CSV written by bench.")],
    as_json: Json = False,
):
    """Print tau and speed-up in the paper's layout, its own figures beside; of batches,
    tokens a second.

    Example: xpress-lab tables data/results/pocket.csv
    """
    from xpress_lab.benchmarks import throughput
    from xpress_lab.benchmarks.rows import read_frame
    from xpress_lab.benchmarks.tables import summary

    with clear_errors():
        if not file.is_file():
            raise LabError(f"No results at {file}: run xpress-lab bench --out {file}.")
        if throughput.is_throughput(file):
            rows = throughput.read_frame(file)
            print_throughput(throughput.throughput_summary(rows), as_json)
        else:
            print_summary(summary(read_frame(file)), as_json)


@app.command()
def evaluate(
    tier: Tier = "laptop",
    prompts: Annotated[
        Path | None, typer.Option(help="Folder of JSONL prompts.")
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Results folder; a second run resumes it."),
    ] = None,
    weights: Weights = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "bfloat16",
):
    """Measure a tier on its benchmarks: tau, speed beside transformers, identity.

    Takes about four hours for the laptop tier on two cores.

    Example: xpress-lab evaluate --tier laptop --prompts benchmarks/
    """
    from xpress_lab.evaluation import evaluate as run

    out_folder = out_folder or Path("outputs/evaluate") / tier
    with clear_errors():
        where = {"device": device, "folder": weights, "model": model}
        lines = run(tier, out_folder, prompts, dtype=dtype, say=typer.echo, **where)
    print_summary(lines, as_json=False)
    typer.echo(f"Everything is in {out_folder}.")


@app.command()
def reproduce(
    out_folder: Annotated[Path, typer.Option("--out", help="Results folder.")] = Path(
        "outputs/reproduce"
    ),
    device: Device = "cpu",
):
    """Measure the pocket tier end to end: tables, curves, pictures, index.html.

    Example: xpress-lab reproduce --out outputs/reproduce
    """
    from xpress_lab.report import reproduce as run

    say: Callable[[str], None] = typer.echo
    with clear_errors():
        lines = run(out_folder, device, say)
    print_summary(lines, as_json=False)
    typer.echo(f"Everything is in {out_folder}; open index.html there.")
