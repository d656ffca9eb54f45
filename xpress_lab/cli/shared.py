"""What all commands share: the application, common options, errors and tables."""

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from xpress_lab.errors import LabError
from xpress_lab.presets import SCHEDULED

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Parallel draft refinement for speculative decoding: run, train, measure.",
)
out = Console(width=None if sys.stdout.isatty() else 160)  # whole cells in a pipe

Tier = Annotated[str, typer.Option(help="pocket, laptop or paper")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64")]
Weights = Annotated[
    Path | None,
    typer.Option(help="Folder of trained arms, as train writes it; else the shipped."),
]
Model = Annotated[
    str | None,
    typer.Option(help="Another target, by Hub id or folder; its drafters: --weights."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Passes = Annotated[
    str, typer.Option(help="Jacobi passes K of xpress: a number, or 'fixed'.")
]


@contextmanager
def clear_errors():
    """Bad input, or a disk that refuses, ends in one line on stderr and exit code 2."""
    try:
        yield
    except (LabError, OSError) as error:
        typer.echo(f"xpress-lab: {error}", err=True)
        raise typer.Exit(2) from error


def parse_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def parse_passes(text: str) -> int | None:
    if text in ("fixed", "none"):
        return None
    if not text.isdigit():
        raise LabError(f"--passes takes a number or 'fixed', not {text!r}.")
    return int(text)


def parse_budgets(text: str | None) -> list[int | None]:
    return [None] if text is None else parse_counts(text, "--budget")


def parse_counts(text: str, option: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isdigit() for number in numbers):
        raise LabError(f"{option} takes numbers such as 16,32, not {text!r}.")
    return [int(number) for number in numbers]


def parse_sizes(text: str) -> tuple[int, ...]:
    sizes = text.split(",")
    if not all(size.isdigit() and int(size) for size in sizes):
        raise LabError(f"--batch-size takes numbers such as 1,4,16, not {text!r}.")
    return tuple(sorted({int(size) for size in sizes}))


def parse_depths(text: str) -> list[int]:
    if not all(depth.isdigit() for depth in text.split(",")):
        raise LabError(f"--layers takes numbers such as 1,2,3, not {text!r}.")
    return [int(depth) for depth in text.split(",")]


def parse_thresholds(text: str) -> list[float]:
    """Thresholds of confidence; ``auto`` is :data:`SCHEDULED`."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts if part != "auto"]
    except ValueError:
        numbers = [SCHEDULED]  # no threshold either
    if any(number < 0 for number in numbers):
        raise LabError(
            f"--confidence takes numbers such as 0,0.4, and auto; not {text!r}."
        )
    return [SCHEDULED if part == "auto" else float(part) for part in parts]


def show(frame, title: str, digits: int = 2) -> None:
    """Print a data frame as a rich table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    frame = frame.reset_index() if frame.index.name else frame
    for column in frame.columns:
        table.add_column(str(column), justify="right")
    for row in frame.itertuples(index=False):
        cells = [f"{c:.{digits}f}" if isinstance(c, float) else str(c) for c in row]
        table.add_row(*cells)
    out.print(table)


def save_records(frame, path: Path | None) -> None:
    """A frame as a CSV that says how it was made, if a path is given."""
    from xpress_lab.files import write_text
    from xpress_lab.provenance import how_made

    if path is not None:
        write_text(path, frame.assign(**how_made()).to_csv(index=False))


def print_records(frame, as_json: bool, path: Path | None = None) -> None:
    """A frame as a list of flat records, or as a table; to a CSV too, if asked."""
    save_records(frame, path)
    if as_json:
        typer.echo(frame.to_json(orient="records"))
    else:
        show(frame, "")


def print_summary(lines, as_json: bool) -> None:
    from xpress_lab.benchmarks.tables import paper_layout, published_layout, readable

    if as_json:
        typer.echo(lines.to_json(orient="records"))
        return
    show(readable(lines), "Pooled over texts, 95 % bootstrap intervals over texts")
    out.print(
        "tau says how well the target's own text is drafted, not whether that text is "
        "right. Texts that go in circles are easy to draft and flatter it.\n"
    )
    for temperature in lines["temperature"].unique():
        what = f"T={temperature:g}: speed-up over ar / tau"
        show(paper_layout(lines, temperature), what)
        if temperature in (0.0, 1.0):
            show(
                published_layout(temperature),
                f"T={temperature:g}, published: Qwen3-8B on one H200",
            )


def print_throughput(lines, as_json: bool) -> None:
    from xpress_lab.benchmarks.throughput import throughput_layout

    if as_json:
        typer.echo(lines.to_json(orient="records"))
        return
    for temperature in lines["temperature"].unique():
        what = f"T={temperature:g}: tokens a second / speed-up over ar, by batch size"
        show(throughput_layout(lines, temperature), f"{what}; medians over turns")
