"""What the loop costs besides its model calls, and how that moves with the context.

A round is made of model calls (target, drafter, refiner) and of what the loop does
between them: positions, masks, acceptance, bookkeeping. The first part may grow with
the context, for attention reads it all. The second must not.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import NamedTuple

import pandas as pd
from tqdm import tqdm

from xpress_lab import block_method as drafting
from xpress_lab.benchmarks.runner import RunArm, rotated
from xpress_lab.benchmarks.tables import method_label
from xpress_lab.decoding import decode
from xpress_lab.devices import synchronize
from xpress_lab.graphs import Graph
from xpress_lab.lab import Lab
from xpress_lab.methods import Method
from xpress_lab.replayed import ReplayedTarget
from xpress_lab.target import Target

SOLVERS = ("solve", "solve_by_candidates", "solve_sequentially")


class Place(NamedTuple):
    """A function by its owner and name, and the part of a round that it belongs to."""

    part: str
    owner: object
    name: str


@contextmanager
def replaced(places: Sequence[Place], by) -> Iterator[None]:
    """Within it, the function at each place is what ``by(function, part)`` makes."""
    own = [place.name in vars(place.owner) for place in places]
    kept = [getattr(place.owner, place.name) for place in places]
    for place, call in zip(places, kept, strict=True):
        setattr(place.owner, place.name, by(call, place.part))
    try:
        yield
    finally:
        for (_, owner, name), call, there in zip(places, kept, own, strict=True):
            setattr(owner, name, call) if there else delattr(owner, name)


class Meter:
    """Adds up the time within chosen calls; a call within a call counts once.

    Attributes:
        seconds: so far.
    """

    def __init__(self, device):
        self.device, self.seconds, self._depth = device, 0.0, 0

    def timed(self, call, _part: str):
        """The same function, metered."""

        def metered(*args, **kwargs):
            self._depth += 1
            started = time.perf_counter()
            try:
                out = call(*args, **kwargs)
                synchronize(self.device)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - started
            return out

        return metered


def model_calls(target: Target, method: Method) -> list[Place]:
    """Where a round runs a model: target, drafter, refiner."""
    places = [
        Place("target", target.model.get_decoder(), "forward"),
        Place("target", target, "head"),
        Place("graph", Graph, "__call__"),  # which makes none of these calls on CUDA
    ]
    drafter = getattr(method, "drafter", None)
    if drafter is not None:
        places += [Place("drafter", drafter, name) for name in ("forward", "project")]
    if getattr(method, "head", None) is not None:
        places += [Place("refiner", method.head, "prepare")]
    if hasattr(method, "borrowed"):
        places += [Place("drafter", method.borrowed, "logits")]
        places += [Place("refiner", drafting, solver) for solver in SOLVERS]
    return places


def round_costs(
    lab: Lab,
    arms: Sequence[RunArm],
    words: Sequence[int],
    contexts: Sequence[int],
    turns: int = 5,
    new_tokens: int = 64,
) -> pd.DataFrame:
    """Time of a round by context length, arms and lengths in turns.

    Args:
        words: ids that prompts are cut from, over again where they are too few.
        contexts: lengths of prompts, in tokens.

    Returns:
        One row per arm and context: rounds (of all turns); medians over turns of
        round_ms, model_ms and outside_ms, the mean of a turn's rounds; spread, the
        interquartile range of outside_ms; and overhead, outside over model time.
    """
    methods = {arm: arm.method(lab) for arm in arms}
    cases = tuple((arm, context) for context in contexts for arm in arms)
    prompts = {c: list(islice(cycle(words), c)) for c in contexts}
    found = []
    replayed = isinstance(lab.target, ReplayedTarget)  # recordings belong to lengths
    for arm, context in cases if replayed else cases[: len(arms)]:
        ids, some = prompts[context], {"max_new_tokens": new_tokens, "stop_ids": ()}
        decode(lab.target, methods[arm], ids, **some)
    for turn in tqdm(range(turns), "turns", disable=None):
        for arm, context in rotated(cases, turn):
            cost = measure_round(lab, methods[arm], prompts[context], new_tokens)
            settings = arm.name, arm.passes_label, arm.rescoring_label, arm.budget
            label = method_label(*settings)
            found.append({"context": context, "arm": label} | cost)
    groups = pd.DataFrame(found).groupby(["context", "arm"], sort=False)
    table = groups[["round_ms", "model_ms", "outside_ms"]].median()
    table.insert(0, "rounds", groups["rounds"].sum())
    low, high = (groups["outside_ms"].quantile(q) for q in (0.25, 0.75))
    table["spread"] = high - low
    table["overhead"] = table["outside_ms"] / table["model_ms"]
    return table.reset_index()


def measure_round(lab: Lab, method: Method, ids: list[int], new_tokens: int) -> dict:
    """Mean milliseconds of a text's rounds, prefill left out."""
    meter = Meter(lab.target.device)
    started: list[float] = []

    def on_tokens(_) -> None:
        if not started:  # the first token comes from reading the prompt
            started.extend((time.perf_counter(), meter.seconds))

    with replaced(model_calls(lab.target, method), meter.timed):
        text = decode(
            lab.target,
            method,
            ids,
            max_new_tokens=new_tokens,
            stop_ids=(),
            on_tokens=on_tokens,
        )
        ended = time.perf_counter()
    rounds = len(text.rounds)
    whole, model = ended - started[0], meter.seconds - started[1]
    return {
        "rounds": rounds,
        "round_ms": whole / rounds * 1e3,
        "model_ms": model / rounds * 1e3,
        "outside_ms": (whole - model) / rounds * 1e3,
    }
