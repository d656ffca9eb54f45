"""`generate`: an answer, or several side by side, and how they were drafted."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from xpress_lab.cli.shared import (
    Device,
    Dtype,
    Json,
    Model,
    Passes,
    Tier,
    Weights,
    app,
    clear_errors,
    parse_passes,
)

if TYPE_CHECKING:
    from xpress_lab.decoding import Generation


@app.command()
def generate(
    prompts: Annotated[
        list[str],
        typer.Argument(
            help="A question or request; several are answered side by side.",
            metavar="PROMPT...",
        ),
    ],
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
    seed: Annotated[
        int, typer.Option(help="Of the first prompt; one more for each that follows.")
    ] = 0,
    weights: Weights = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: Json = False,
):
    """Answer a prompt, or several at once, and say how the tokens were drafted.

    Example: xpress-lab generate "Where does Anna live?" --method xpress --passes 6
    """
    from xpress_lab.lab import load_lab

    with clear_errors():
        where = {"device": device, "dtype": dtype, "folder": weights, "model": model}
        lab = load_lab(tier, **where)
        ways = {"budget": budget, "rescoring": rescoring, "confidence": confidence}
        ways["candidates"] = candidates
        chosen = lab.method(method, parse_passes(passes), **ways)
        typer.echo(chosen.describe(), err=True)
        if strange := lab.unknown_words(" ".join(prompts)):
            typer.echo(
                f"This target does not know: {', '.join(strange)}. It was trained on "
                "a small vocabulary; data/checkpoints/pocket/prompts holds what it "
                "understands.",
                err=True,
            )
        how = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            "keep_trace": False,
        }
        if len(prompts) == 1:
            stream = None if as_json else _stream
            texts = [lab.generate(*prompts, chosen, seed=seed, on_text=stream, **how)]
        else:
            seeds = range(seed, seed + len(prompts))
            texts = lab.generate_batch(prompts, chosen, seeds=seeds, **how)
    if as_json:
        found = [_as_table(text, chosen.describe()) for text in texts]
        typer.echo(json.dumps(found if len(prompts) > 1 else found[0]))
        return
    for prompt, text in zip(prompts, texts, strict=True):
        typer.echo("" if len(prompts) == 1 else f"> {prompt}\n{text.text}\n")
        typer.echo(
            f"{len(text.tokens)} tokens in {len(text.rounds)} verifications, "
            f"tau {text.tau:.2f}, decode {text.decode_seconds * 1e3:.0f} ms",
            err=True,
        )


def _as_table(text: "Generation", method: str) -> dict:
    return {
        "text": text.text,
        "tokens": text.tokens,
        "method": method,
        "tau": text.tau if text.rounds else None,
        "verify_steps": len(text.rounds),
        "accepted": [r.accepted for r in text.rounds],
        "passes": [r.passes for r in text.rounds],
        "seconds": text.seconds,
    }


def _stream(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()
