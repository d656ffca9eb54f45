"""`bench`, `tables` and `reproduce`: measuring, and printing what was measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from xpress_lab.cli.shared import (
    Device,
    Dtype,
    Json,
    Tier,
    app,
    clear_errors,
    parse_budgets,
    parse_passes,
    parse_thresholds,
    print_summary,
)
from xpress_lab.errors import LabError


@app.command()
def bench(
    tier: Tier = "pocket",
    methods: Annotated[
        str, typer.Option(help="Comma list or 'all'.")
    ] = "ar,dflash,markov,xpress",
    passes: Annotated[
        str, typer.Option(help="K of xpress, one or several: 1,2,4,fixed")
    ] = "6",
    budget: Annotated[
        str | None,
        typer.Option(help="Drafts of trees, one or several: 16,32; else a chain's."),
    ] = None,
    rescoring: Annotated[
        str, typer.Option(help="Scores of xpress+ddtree: marginals,paths")
    ] = "marginals",
    confidence: Annotated[
        str,
        typer.Option(help="Cut blocks before the first less likely draft: 0,0.4"),
    ] = "0",
    benchmarks: Annotated[str, typer.Option(help="Comma list or 'all'.")] = "all",
    prompts: Annotated[
        Path | None, typer.Option(help="Folder of JSONL prompts.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Once or more; 0 if left out.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Prompts a benchmark.", min=1)] = 20,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    batch_size: Annotated[int, typer.Option(help="1 on this tier.")] = 1,
    seed: Annotated[list[int] | None, typer.Option()] = None,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="CSV; a second run resumes it.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Json = False,
):
    """Measure tau and speed of several methods on the same prompts.

    Example: xpress-lab bench --methods ar,dflash,xpress --limit 20 --out mine.csv
    """
    from xpress_lab.benchmarks import prompts as reading
    from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
    from xpress_lab.benchmarks.tables import summary
    from xpress_lab.lab import load_lab

    with clear_errors():
        if batch_size != 1:
            raise LabError(f"batch_size {batch_size} is not supported yet: use 1.")
        lab = load_lab(tier, device=device, dtype=dtype)
        names = lab.trained() if methods == "all" else methods.split(",")
        ks = [parse_passes(k) for k in passes.split(",")]
        arms = run_arms(
            names,
            ks,
            parse_budgets(budget),
            rescoring.split(","),
            parse_thresholds(confidence),
        )
        folder = reading.prompt_folder(tier, prompts)
        wanted = reading.benchmark_names(folder, benchmarks)
        rows = run_bench(
            lab,
            Bench(
                arms=arms,
                prompts={n: reading.read_prompts(folder, n, limit) for n in wanted},
                temperatures=tuple(temperature or [0.0]),
                seeds=tuple(seed or [0]),
                max_new_tokens=max_new_tokens,
            ),
            out_file,
        )
        lines = summary(rows)
    print_summary(lines, as_json)


@app.command()
def tables(
    file: Annotated[Path, typer.Argument(help="CSV written by bench.")],
    as_json: Json = False,
):
    """Print tau and speed-up in the paper's layout, its own figures beside.

    Example: xpress-lab tables data/results/pocket.csv
    """
    from xpress_lab.benchmarks.runner import read_frame
    from xpress_lab.benchmarks.tables import summary

    with clear_errors():
        if not file.is_file():
            raise LabError(f"No results at {file}: run xpress-lab bench --out {file}.")
        lines = summary(read_frame(file))
    print_summary(lines, as_json)


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
