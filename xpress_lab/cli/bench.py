"""`bench`: methods on the same prompts, and what else can be measured of them."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from xpress_lab.cli.shared import (
    Device,
    Json,
    Model,
    Tier,
    Weights,
    app,
    clear_errors,
    parse_budgets,
    parse_counts,
    parse_names,
    parse_passes,
    parse_sizes,
    parse_thresholds,
    print_records,
    print_summary,
    print_throughput,
    save_records,
    show,
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
        typer.Option(
            help="Cut blocks before the first less likely draft: 0,0.4; "
            "auto: send drafts while they are worth their time."
        ),
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
    weights: Weights = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Annotated[
        str | None, typer.Option(help="float32 (if left out), bfloat16, float16, ...")
    ] = None,
    kernels: Annotated[
        bool, typer.Option(help="Refiner latency by size instead: plain and fast.")
    ] = False,
    tune: Annotated[
        bool, typer.Option(help="Break-even tau, best block and K here instead.")
    ] = False,
    candidates: Annotated[
        str | None,
        typer.Option(help="How often candidate rows fail instead: 16,64,256"),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(help="Time of a round by context length instead: 256,1024,4096"),
    ] = None,
    profile: Annotated[
        bool, typer.Option(help="Where the time of a round goes instead.")
    ] = False,
    stages: Annotated[
        bool, typer.Option(help="Print stage times of a round, not the summary.")
    ] = False,
    calibrate: Annotated[
        str | None,
        typer.Option(help="What confidence heads are worth instead: markov,xpress"),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for --kernels.")] = 120.0,
    as_json: Json = False,
):
    """Measure tau and speed of several methods on the same prompts.

    Example: xpress-lab bench --methods ar,dflash,xpress --limit 20 --out mine.csv

    Batches: xpress-lab bench --batch-size 1,4,16,32 --limit 22 --out batches.csv

    On a GPU, refiner latency and speed by batch: xpress-lab bench --kernels --json

    Example: xpress-lab bench --tune --limit 5

    Example: xpress-lab bench --context 256,1024,4096 --methods ar,dflash,xpress

    Example: xpress-lab bench --stages --limit 8 --json

    Example: xpress-lab bench --profile --methods xpress --limit 2

    Example: xpress-lab bench --calibrate markov,xpress --temperature 0 --temperature 1
    """
    from xpress_lab.benchmarks import prompts as reading
    from xpress_lab.benchmarks.runner import Bench, run_arms, run_bench
    from xpress_lab.benchmarks.tables import stage_costs, summary
    from xpress_lab.benchmarks.throughput import (
        Load,
        pool_of,
        run_throughput,
        throughput_summary,
    )
    from xpress_lab.lab import load_lab

    say = partial(typer.echo, err=True)
    with clear_errors():
        sizes = parse_sizes(batch_size)
        if kernels:
            found = latencies(device, dtype, seconds)
            return print_records(found, as_json, out_file)
        where = {"device": device, "folder": weights, "model": model}
        lab = load_lab(tier, dtype=dtype or "float32", **where)
        folder = reading.prompt_folder(tier, prompts)
        wanted = reading.benchmark_names(folder, benchmarks)
        texts = {n: reading.read_prompts(folder, n, limit) for n in wanted}
        temperatures, seeds = tuple(temperature or [0.0]), tuple(seed or [0])
        if tune:
            return print_tuning(lab, texts, as_json, out_file)
        how = texts, temperatures, seeds, max_new_tokens
        if candidates is not None:
            return print_records(failures(lab, candidates, *how), as_json, out_file)
        if calibrate is not None:
            return print_records(calibrations(lab, calibrate, *how), as_json, out_file)
        names = all_methods(lab, sizes) if methods == "all" else parse_names(methods)
        ks = [parse_passes(k) for k in passes.split(",")]
        if context is not None:
            found = by_context(lab, run_arms(names, ks), texts, context, turns)
            return print_records(found, as_json, out_file)
        if profile:
            from xpress_lab.benchmarks.round_profile import profile_rounds

            how = every(texts), max_new_tokens
            found = profile_rounds(lab, run_arms(names, ks), *how)
            return print_records(found, as_json, out_file)
        thresholds = parse_thresholds(confidence)
        arms = run_arms(
            names, ks, parse_budgets(budget), parse_names(rescoring), thresholds
        )
        arms = scheduled(lab, arms, texts, max(sizes))
        how = {
            "arms": arms,
            "temperatures": temperatures,
            "max_new_tokens": max_new_tokens,
        }
        if sizes == (1,):
            each = Bench(prompts=texts, seeds=seeds, **how)
            rows = run_bench(lab, each, out_file, say)
            if stages:
                return print_records(stage_costs(rows), as_json)
            return print_summary(summary(rows), as_json)
        if len(seeds) > 1:
            raise LabError("Batches are timed with one --seed: name it once.")
        pool, first = pool_of(texts, sizes), seeds[0]
        load = Load(prompts=pool, sizes=sizes, turns=turns, seed=first, **how)
        rows = run_throughput(lab, load, out_file, say)
        print_throughput(throughput_summary(rows), as_json)


def scheduled(lab, arms, texts: dict[str, list[str]], rows: int):
    """The arms; what a round costs is measured for those that go by a schedule."""
    from dataclasses import replace

    from xpress_lab.benchmarks.row_costs import measure_round_costs
    from xpress_lab.presets import SCHEDULED

    def ready(arm):
        if arm.confidence != SCHEDULED:
            return arm
        costs = measure_round_costs(lab, arm, every(texts), rows)
        said = [f"{1e3 * part:.3f}" for part in costs]
        typer.echo(
            f"{arm.name}: a round takes {said[0]} ms, {said[1]} more a text and "
            f"{said[2]} more a draft",
            err=True,
        )
        return replace(arm, confidence=0.0, costs=costs)

    return tuple(map(ready, arms))


def every(texts: dict[str, list[str]]) -> list[str]:
    """The prompts of all benchmarks, one after another."""
    return [prompt for some in texts.values() for prompt in some]


def all_methods(lab, sizes: tuple[int, ...]) -> list[str]:
    """Every method of the tier; in batches chains alone. Says which have no weights."""
    from xpress_lab.presets import CHAINS, METHODS

    trained = lab.trained()
    lacking = [name for name in METHODS if name not in trained]
    if lacking:
        typer.echo(
            f"Left out, for want of weights in {lab.folder}: {', '.join(lacking)}. "
            "xpress-lab train --only NAME trains one.",
            err=True,
        )
    return [name for name in trained if sizes == (1,) or name in CHAINS]


def failures(lab, counts: str, texts: dict[str, list[str]], *how):
    """How often a block of candidate rows is no fixed point of full passes."""
    from xpress_lab.benchmarks.certificates import certificate_failures

    return certificate_failures(lab, texts, parse_counts(counts, "--candidates"), *how)


def calibrations(lab, arms: str, texts: dict[str, list[str]], *how):
    """What the confidence heads of some arms say, beside what the target does."""
    from xpress_lab.benchmarks.calibration import calibration

    return calibration(lab, parse_names(arms), texts, *how)


def by_context(lab, arms, texts: dict[str, list[str]], lengths: str, turns: int):
    """Time of a round by the length of its context, cut from all prompts in a row."""
    from xpress_lab.benchmarks.overhead import round_costs

    words = [token for prompt in every(texts) for token in lab.target.encode(prompt)]
    return round_costs(lab, arms, words, parse_counts(lengths, "--context"), turns)


def latencies(device: str, dtype: str | None, seconds: float):
    """Refiner latency by size, with a line of progress for each. On CUDA in bfloat16
    unless told otherwise, and with the pocket's speed by batch size below."""
    import pandas as pd

    from xpress_lab.benchmarks.refiner_latency import refiner_latency
    from xpress_lab.benchmarks.throughput import end_to_end
    from xpress_lab.devices import pick_device, pick_dtype
    from xpress_lab.lab import load_lab

    where, say = pick_device(device), partial(typer.echo, err=True)
    dtype = dtype or ("bfloat16" if where.type == "cuda" else "float32")
    kind = pick_dtype(dtype)
    table = pd.DataFrame(refiner_latency(where, kind, seconds=seconds, say=say))
    if where.type != "cuda":
        return table
    lab = load_lab("pocket", device=device, dtype=dtype)
    return pd.concat([table, end_to_end(lab, say=say)])


def print_tuning(
    lab, texts: dict[str, list[str]], as_json: bool, path: Path | None
) -> None:
    """The reader's cost model and the published one; the first goes to a file."""
    import pandas as pd

    from xpress_lab.benchmarks.cost_model import published_costs, tune, verdict

    measured = tune(lab, every(texts))
    costs = published_costs()
    save_records(measured, path)
    if as_json:
        print_records(pd.concat([measured, costs]), as_json)
        return
    show(measured, "Measured here: milliseconds, and the model's speed-up")
    show(costs, "Published, T=0: the round that tau and speed-up imply, in plain steps")
    for line in verdict(measured, costs):
        typer.echo(line)
