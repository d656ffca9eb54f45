"""`sweep-layers`: the refiner on drafters of several depths."""

from pathlib import Path
from typing import Annotated

import typer

from xpress_lab.cli.shared import Json, app, clear_errors, parse_depths, show


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
