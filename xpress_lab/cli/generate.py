"""`generate`: one answer, and how it was drafted."""

import json
import sys
from typing import Annotated

import typer

from xpress_lab.cli.shared import (
    Device,
    Dtype,
    Json,
    Passes,
    Tier,
    app,
    clear_errors,
    parse_passes,
)


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
    candidates: Annotated[
        int | None,
        typer.Option(help="Rows a slot that xpress tries first; 0: off.", min=0),
    ] = None,
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
        ways["candidates"] = candidates
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
