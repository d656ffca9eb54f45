"""Where the time of a round goes, operation by operation, as torch's profiler sees it.

Every operation belongs to a part of the round (target, drafter, refiner, or the loop
around them) and to a kind. What is left of a part when its operations are taken off is
the time between them: Python, and torch on its way to a kernel. Watching costs a few
microseconds an operation, so parts with many small ones look dearer than they are.
"""

import time
from collections import defaultdict
from collections.abc import Sequence

import pandas as pd
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from xpress_lab.benchmarks.overhead import model_calls, replaced
from xpress_lab.benchmarks.runner import RunArm
from xpress_lab.benchmarks.tables import method_label
from xpress_lab.decoding import decode
from xpress_lab.lab import Lab

LOOP, BETWEEN = "loop", "between operations"
PART = "part: "  # before the names of ranges
KINDS = {
    "matrix products": ("mm", "addmm", "bmm", "baddbmm", "_linear_pointwise"),
    "attention": ("_scaled_dot_product_flash_attention_for_cpu",),
}
OTHER = "other operations"
KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}


def profile_rounds(
    lab: Lab, arms: Sequence[RunArm], prompts: Sequence[str], new_tokens: int = 64
) -> pd.DataFrame:
    """What each arm's rounds consist of, prefill left out; on a CPU.

    Returns:
        One row per arm, part and kind: milliseconds (a round), calls (a round; of the
        parts themselves where the kind is "between operations"), and share (of the
        round).
    """
    rows = []
    for arm in arms:
        method = arm.method(lab)
        name = method_label(
            arm.name, arm.passes_label, arm.rescoring_label, arm.budget, arm.cut
        )
        spent, calls, rounds = defaultdict(float), defaultdict(int), 0
        decode(lab.target, method, lab.target.encode(prompts[0]), max_new_tokens=8)
        for prompt in tqdm(prompts, name, leave=False, disable=None):
            rounds += _watch(lab, method, prompt, new_tokens, spent, calls)
        whole = sum(spent.values())
        rows += [
            {
                "arm": name,
                "part": part,
                "kind": kind,
                "milliseconds": seconds / rounds * 1e3,
                "calls": calls[part, kind] / rounds,
                "share": seconds / whole,
            }
            for (part, kind), seconds in spent.items()
        ]
    order = ["arm", "milliseconds"]
    return pd.DataFrame(rows).sort_values(order, ascending=[True, False])


def _watch(lab, method, prompt: str, new_tokens: int, spent, calls) -> int:
    """Add one text's rounds to what was spent; how many there were."""
    watching = profile(activities=[ProfilerActivity.CPU])
    begun = []

    def on_tokens(_) -> None:
        if not begun:  # the first token comes from reading the prompt
            watching.start()
            begun.append(time.perf_counter())

    with replaced(model_calls(lab.target, method), _named):
        text = decode(
            lab.target,
            method,
            lab.target.encode(prompt),
            max_new_tokens=new_tokens,
            stop_ids=(),
            on_tokens=on_tokens,
        )
    whole = time.perf_counter() - begun[0]
    watching.stop()
    for event in watching.events():
        part, name = _part_of(event), event.name.removeprefix("aten::")
        kind = KIND_OF.get(name.removeprefix("mkldnn::"), OTHER)
        kind = BETWEEN if event.name.startswith(PART) else kind
        seconds = event.self_cpu_time_total * 1e-6
        spent[part, kind] += seconds
        calls[part, kind] += 1
        whole -= seconds
    spent[LOOP, BETWEEN] += whole
    return len(text.rounds)


def _named(call, part: str):
    """The same function, within a range that the profiler sees."""

    def ranged(*args, **kwargs):
        with record_function(PART + part):
            return call(*args, **kwargs)

    return ranged


def _part_of(event) -> str:
    """The innermost range that an operation ran in."""
    while event is not None:
        if event.name.startswith(PART):
            return event.name.removeprefix(PART)
        event = event.cpu_parent
    return LOOP
