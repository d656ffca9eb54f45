"""`sweep-layers`, `sweep-losses`: arms that differ in one thing, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from xpress_lab.cli.shared import (
    Json,
    app,
    clear_errors,
    parse_counts,
    parse_depths,
    show,
)


@app.command("sweep-layers")
def sweep_layers(
    layers: Annotated[
        str, typer.Option(help="Layers of the drafter, as a comma list.")
    ] = "1,2,3",
    limit: Annotated[int, typer.Option(help="Prompts a family.", min=1)] = 20,
    temperature: Annotated[
        list[float] | None, typer.Option(help="Once or more; 0 and 1 if left out.")
    ] = None,
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder of weights and results.")
    ] = Path("outputs/layers"),
    seed: Annotated[int, typer.Option()] = 0,
    as_json: Json = False,
):
    """Train dflash and xpress on pocket drafters of several depths; measure them.

    Run it again after an interruption to go on.

    Example: xpress-lab sweep-layers --layers 1,2,3 --out outputs/layers
    """
    from dataclasses import replace

    from xpress_lab.presets import get_tier
    from xpress_lab.training.depths import sweep_layers as run

    with clear_errors():
        tier = replace(get_tier("pocket"), seed=seed)
        temperatures = tuple(temperature or (0.0, 1.0))
        depths = parse_depths(layers)
        lines = run(tier, depths, out_folder, limit, temperatures, typer.echo)
    if as_json:
        typer.echo(lines.to_json(orient="records"))
        return
    told = ["drafter_layers", "temperature", "benchmark", "arm", "tau", "speedup"]
    show(lines[told], "tau and speed-up over ar, by depth of the drafter")
    typer.echo(f"Weights, layers.csv and layers-summary.csv are in {out_folder}.")


@app.command("sweep-losses")
def sweep_losses(
    seeds: Annotated[
        str, typer.Option(help="Training seeds, as a comma list.")
    ] = "0,1,2",
    steps: Annotated[
        int | None, typer.Option(help="Of each arm; the tier's if left out.", min=1)
    ] = None,
    limit: Annotated[int, typer.Option(help="Prompts a family.", min=1)] = 20,
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder of results.")
    ] = Path("outputs/losses"),
    cores: Annotated[
        int | None, typer.Option(help="Arms at a time; one a core if left out.", min=1)
    ] = None,
    as_json: Json = False,
):
    """Train the pocket xpress arm without each term of its loss in turn; measure it.

    Run it again after an interruption to go on.

    Example: xpress-lab sweep-losses --seeds 0,1,2 --out outputs/losses
    """
    from xpress_lab.presets import get_tier
    from xpress_lab.training.loss_sweep import sweep_losses as run

    with clear_errors():
        numbers = parse_counts(seeds, "--seeds")
        tier = get_tier("pocket")
        lines = run(tier, out_folder, numbers, steps, limit, cores, typer.echo)
    if as_json:
        typer.echo(lines.to_json(orient="records"))
        return
    told = ["loss", "passes", "tau", "share", "share_low", "share_high", "read"]
    spread = ["share_lowest_seed", "share_highest_seed"]
    show(lines[told + spread], "tau, its share of the whole loss's, passes until final")
    typer.echo(f"losses.csv and losses-summary.csv are in {out_folder}.")
