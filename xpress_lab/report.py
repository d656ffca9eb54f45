"""The main job: measure the pocket tier and write one folder to look at."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from jinja2 import Environment, PackageLoader

from xpress_lab.benchmarks.convergence import block_convergence, converged_share
from xpress_lab.benchmarks.peers import race, speed_over
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.rows import read_frame
from xpress_lab.benchmarks.runner import Bench, RunArm, run_bench
from xpress_lab.benchmarks.tables import (
    paper_layout,
    published_layout,
    stage_costs,
    summary,
    tau_gains,
)
from xpress_lab.files import write_json, write_text
from xpress_lab.lab import DEFAULT_PASSES, Lab, load_lab
from xpress_lab.presets import FAMILIES, get_tier
from xpress_lab.provenance import how_made
from xpress_lab.viz import acceptance
from xpress_lab.viz.jacobi_grid import gain, jacobi_grid
from xpress_lab.viz.style import save_figure, use_style

MAIN_ARMS = (
    RunArm("ar"),
    RunArm("dflash"),
    RunArm("markov"),
    RunArm("xpress", DEFAULT_PASSES),
)


MAIN_PAIRS = [(f"xpress K={DEFAULT_PASSES}", "dflash"), ("markov", "dflash")]
SWEEP_PAIRS = [
    ("xpress K=6", "xpress K=0"),
    ("xpress K=4", "markov"),
    ("xpress K=6", "xpress K=15"),
    ("xpress K=6", "dflash"),
]


@dataclass(frozen=True)
class Amount:
    """How many prompts a family each part of the job takes."""

    tables: int = 60
    sweep: int = 8
    plain_sampled: int = 10  # of plain decoding at T=1, whose tau is known to be 1


def reproduce(
    out: Path,
    device: str = "cpu",
    say: Callable[[str], None] = print,
    amount: Amount = Amount(),  # noqa: B008  frozen, so safe to share
) -> pd.DataFrame:
    """Measure, draw, write; returns the summary table.

    Four parts run in two processes of one thread each; the arms that a part compares
    take turns within its process. Results are appended to CSV files in ``out`` as
    they come, so an interrupted job goes on where it stopped. Delete the folder to
    measure afresh.
    """
    out.mkdir(parents=True, exist_ok=True)
    get_tier("pocket").folder()  # a missing data folder is told before work starts
    say(f"Measuring in two processes; results grow in {out}.")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        jobs = [pool.submit(measure, part, out, device, amount) for part in PARTS]
        for part, job in zip(PARTS, jobs, strict=True):
            job.result()
            say(f"done: {PARTS[part]}")
    rows = read_parts(out, "greedy", "sampled")
    sweep = read_parts(out, "passes-few", "passes-many")
    blocks = pd.read_csv(out / "convergence.csv")
    peers = speed_over(pd.read_csv(out / "peers.csv"))

    lines, costs, curve = summary(rows), stage_costs(rows), summary(sweep)
    lines.to_csv(out / "summary.csv", index=False)
    costs.to_csv(out / "stages.csv", index=False)
    gains = pd.concat([tau_gains(rows, MAIN_PAIRS), tau_gains(sweep, SWEEP_PAIRS)])
    gains.to_csv(out / "gains.csv", index=False)
    draw_all(out, load_lab("pocket", device=device), rows, lines, costs, curve, blocks)
    shares = converged_share(blocks, int(rows["block_size"].max()))
    write_index(out, lines, costs, shares, rows, peers, gains)
    return lines


PARTS = {
    "greedy": "tau and speed of every method at T=0",
    "sampled": "tau and speed of every method at T=1",
    "passes-few": "tau of K = 0..7, dflash and markov",
    "passes-many": "tau of K = 8..15, and the passes that a block needs",
}


def measure(part: str, out: Path, device: str, amount: Amount) -> None:
    """One part of the job, in a process of its own."""
    # Models this small lose more to the co-ordination of threads than they gain.
    torch.set_num_threads(1)
    lab, folder = load_lab("pocket", device=device), prompt_folder("pocket")
    prompts = {name: read_prompts(folder, name, amount.tables) for name in FAMILIES}
    few = {name: texts[: amount.sweep] for name, texts in prompts.items()}
    table = out / f"{part}.csv"
    if part == "greedy":
        first = {name: texts[:1] for name, texts in prompts.items()}
        methods = [lab.method(name) for name in ("ar", "dflash", "xpress")]
        peers = race(lab, first, methods, rounds=3)
        peers.round(6).to_csv(out / "peers.csv", index=False)
        run_bench(lab, Bench(MAIN_ARMS, prompts, name=part), table)
    elif part == "sampled":
        some = {name: texts[: amount.plain_sampled] for name, texts in prompts.items()}
        run_bench(lab, Bench(MAIN_ARMS, some, (1.0,), name=part), table)
        run_bench(lab, Bench(MAIN_ARMS[1:], prompts, (1.0,), name=part), table)
    elif part == "passes-few":
        arms = (RunArm("dflash"), RunArm("markov"))
        arms += tuple(RunArm("xpress", k) for k in range(8))
        run_bench(lab, Bench(arms, few, name=part), table)
    else:
        arms = tuple(RunArm("xpress", k) for k in range(8, 16))
        run_bench(lab, Bench(arms, few, name=part), table)
        block_convergence(lab, few).to_csv(out / "convergence.csv", index=False)


def read_parts(out: Path, *parts: str) -> pd.DataFrame:
    """Rows of several parts together."""
    return pd.concat([read_frame(out / f"{part}.csv") for part in parts])


def draw_all(out: Path, lab: Lab, rows, lines, costs, curve, blocks) -> None:
    """The pictures of the report."""
    use_style()
    figures = {
        "tau": acceptance.tau_bars(lines),
        "speed": acceptance.speed_bars(lines),
        "passes": acceptance.tau_by_passes(curve),
        "slots": acceptance.slot_curves(rows),
        "convergence": acceptance.convergence_curve(
            blocks, rows["block_size"].max() - 1
        ),
        "stages": acceptance.stage_bars(costs),
        "jacobi": jacobi_example(lab),
    }
    for name, figure in figures.items():
        save_figure(figure, out / f"{name}.png")


def jacobi_example(lab: Lab):
    """The pass-by-slot grid of a block that gained much, step by step."""
    prompts = [
        prompt
        for name in FAMILIES
        for prompt in read_prompts(prompt_folder("pocket"), name, 3)
    ]
    texts = [lab.generate(prompt, "xpress", passes=None) for prompt in prompts]
    rounds = [r for text in texts for r in text.rounds if r.passes <= 8]
    telling = max(rounds, key=lambda r: gain(r) * r.passes)
    return jacobi_grid(telling, lab.target.tokenizer.decode)


def identical_to_plain(rows: pd.DataFrame) -> tuple[int, int]:
    """Greedy texts equal to plain greedy token for token, out of how many."""
    greedy = rows[rows["temperature"] == 0]
    plain = greedy[greedy["method"] == "ar"].set_index(["benchmark", "prompt_id"])
    others = greedy[greedy["method"] != "ar"].set_index(["benchmark", "prompt_id"])
    same = others["token_hash"] == plain["token_hash"].reindex(others.index)
    return int(same.sum()), len(same)


def verdict(costs: pd.DataFrame) -> list[str]:
    """Does refining pay here? One sentence per temperature, with the reason."""
    sentences = []
    for temperature, at in costs.groupby("temperature"):
        by_arm = at.set_index("arm")
        bare = by_arm.loc["dflash"]
        refined = by_arm.loc[f"xpress K={DEFAULT_PASSES}"]
        ratio = refined["clock"] / bare["clock"]
        gain = refined["tau"] / bare["tau"]
        price = refined["round_ms"] / bare["round_ms"]
        outcome = "faster" if ratio >= 1 else "slower here"
        sentences.append(
            f"T={temperature:g}: xpress is {ratio:.2f}x dflash's speed ({outcome}): "
            f"tau grows {gain:.2f}x, a round costs {price:.2f}x "
            f"({refined['refine_ms']:.2f} ms of {refined['round_ms']:.2f} ms refine)."
        )
        for arm, row in by_arm.iterrows():
            if row["clock"] < 1 and arm != "ar":
                sentences.append(
                    f"T={temperature:g}: {arm} is slower here than plain decoding: "
                    f"tau {row['tau']:.2f} is under its break-even "
                    f"{row['break_even_tau']:.2f}."
                )
    return sentences


def write_index(out: Path, lines, costs, shares, rows, peers, gains) -> None:
    """index.html: the pictures, the tables, and how they were made (made.json too)."""
    same, compared = identical_to_plain(rows)
    made = {
        **how_made(),
        "seed": sorted(rows["seed"].unique().tolist()),
        "greedy texts identical to plain decoding": f"{same} of {compared}",
        "speed over model.generate, prefill left out": peers["speed"].to_dict(),
    }
    layouts = [
        (f"T={t:g}: speed-up over plain decoding / tau", paper_layout(lines, t))
        for t in (0.0, 1.0)
    ]
    layouts += [
        (f"Published, T={t:g}: Qwen3-8B on one H200", published_layout(t))
        for t in (0.0, 1.0)
    ]
    page = Environment(loader=PackageLoader("xpress_lab"), autoescape=True)
    html = page.get_template("report.html.j2").render(
        figures=FIGURES,
        tables=[(title, _html(table)) for title, table in layouts],
        gains=_html(gains.round(3).set_index("temperature")),
        summary=_html(lines.round(3).set_index("temperature")),
        stages=_html(costs.round(3).set_index("temperature")),
        shares=_html(shares.round(3)),
        same=same,
        compared=compared,
        verdicts=verdict(costs),
        made=made,
    )
    write_text(out / "index.html", html)
    write_json(out / "made.json", made)


FIGURES = {
    "jacobi": "One block, pass by pass: the drafter's own draft on top, every pass "
    "repairs the slots whose left neighbours are right already.",
    "tau": "Tokens emitted per verification, with 95 % bootstrap intervals.",
    "passes": "tau against the number of Jacobi passes.",
    "slots": "Share of verifications that accept at least slot k.",
    "convergence": "Share of blocks that are final after p passes.",
    "stages": "Where the time of a round goes.",
    "speed": "Speed-up over plain decoding in the same engine.",
}


def _html(frame: pd.DataFrame) -> str:
    return frame.to_html(border=0, na_rep="–")
