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
    parse_sizes,
    print_summary,
    print_throughput,
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
    benchmarks: Annotated[str, typer.Option(help="Comma list or 'all'.")] = "all",
    prompts: Annotated[
        Path | None, typer.Option(help="Folder of JSONL prompts.")
    ] = None,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Once or more; 0 if left out.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Prompts a benchmark.", min=1)] = 20,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    batch_size: Annotated[
        str,
        typer.Option(help="Texts side by side; above 1, or several: 1,4,16: speed."),
    ] = "1",
    turns: Annotated[
        int, typer.Option(help="Times that every batch size is timed.", min=1)
    ] = 5,
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

    Batches: xpress-lab bench --batch-size 1,4,16,32 --limit 22 --out batches.csv
    """
    from xpress_lab.benchmarks import prompts as reading
    from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
    from xpress_lab.benchmarks.tables import summary
    from xpress_lab.benchmarks.throughput import (
        Load,
        pool_of,
        run_throughput,
        throughput_summary,
    )
    from xpress_lab.lab import load_lab
    from xpress_lab.presets import CHAINS

    with clear_errors():
        sizes = parse_sizes(batch_size)
        lab = load_lab(tier, device=device, dtype=dtype)
        names = lab.trained() if methods == "all" else methods.split(",")
        if methods == "all" and sizes != (1,):
            names = [name for name in names if name in CHAINS]
        ks = [parse_passes(k) for k in passes.split(",")]
        arms = run_arms(names, ks, parse_budgets(budget), rescoring.split(","))
        folder = reading.prompt_folder(tier, prompts)
        wanted = reading.benchmark_names(folder, benchmarks)
        given = {n: reading.read_prompts(folder, n, limit) for n in wanted}
        how = {
            "arms": arms,
            "temperatures": tuple(temperature or [0.0]),
            "max_new_tokens": max_new_tokens,
        }
        if sizes == (1,):
            each = Bench(prompts=given, seeds=tuple(seed or [0]), **how)
            print_summary(summary(run_bench(lab, each, out_file)), as_json)
            return
        if len(seed or [0]) > 1:
            raise LabError("Batches are timed with one --seed: name it once.")
        pool, chosen = pool_of(given, sizes), (seed or [0])[0]
        load = Load(prompts=pool, sizes=sizes, turns=turns, seed=chosen, **how)
        lines = throughput_summary(run_throughput(lab, load, out_file))
        print_throughput(lines, as_json)


@app.command()
def tables(
    file: Annotated[Path, typer.Argument(help="CSV written by bench.")],
    as_json: Json = False,
):
    """Print tau and speed-up in the paper's layout, its own figures beside; of batches,
    tokens a second.

    Example: xpress-lab tables data/results/pocket.csv
    """
    from xpress_lab.benchmarks import runner, throughput
    from xpress_lab.benchmarks.tables import summary

    with clear_errors():
        if not file.is_file():
            raise LabError(f"No results at {file}: run xpress-lab bench --out {file}.")
        if throughput.is_throughput(file):
            rows = throughput.read_frame(file)
            print_throughput(throughput.throughput_summary(rows), as_json)
        else:
            print_summary(summary(runner.read_frame(file)), as_json)


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
