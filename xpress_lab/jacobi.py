"""The solver: a block of drafts as the fixed point of parallel passes.

A causal head asks for each slot's *previous* token, which is itself a draft. The
solver starts from the drafter's own choice and substitutes all slots at once:

    x^0_k = pick(base_k),   x^{p+1}_k = pick(refined_k(x^p_{<k}))

``pick`` is argmax at T = 0. At T > 0 it is argmax after adding Gumbel noise that is
drawn once per block and *frozen*, which makes the map deterministic again.

After p passes slots 1..p equal left-to-right decoding with the same head and noise
(slot 1 depends on the anchor alone; slot k is right one pass after slots < k are).
So B - 1 passes always suffice, and a block that a pass leaves unchanged is final.

Exactness at finite K: row k of the noise is independent of rows < k, and x^{K-1}_{<k}
is a function of rows < k only. Given those, the draw x^K_k has law exactly
softmax(refined_k(x^{K-1}_{<k}) / T), the q that the acceptance test is given. This
needs a causal head, noise shared with nothing else, and q from the tensor that was
sampled (methods 2.4).

Shapes: N rows, S = B - 1 drafted slots, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from xpress_lab.argmax import first_argmax
from xpress_lab.errors import LabError

# previous [N, B], first slot wanted -> logits [N, S - first, V]; without ``lock`` the
# first slot is left out and all are wanted.
Refine = Callable[..., torch.Tensor]
Scale = Callable[[torch.Tensor], torch.Tensor]  # Sampling.scale at T > 0
# previous [N, B], first slot wanted -> tokens [N, S - first]
Choose = Callable[[torch.Tensor, int], torch.Tensor]
# slot, drafted [N, k + 1], state -> logits [N, V], state
Step = Callable[[int, torch.Tensor, Any], tuple[torch.Tensor, Any]]


@dataclass
class Solution:
    """A solved block.

    Attributes:
        tokens: ``[N, S]`` drafts.
        scores: ``[N, S, V]`` the (scaled) logits from which the tokens were picked;
            softmax gives q at T > 0. ``None`` where nobody needs them.
        passes: evaluations of the head that were made.
        converged: whether the last pass left every row unchanged, so that more
            passes would change nothing.
        trace: ``[N, S]`` tokens of the seed and of each pass, if kept.
    """

    tokens: torch.Tensor
    scores: torch.Tensor | None
    passes: int
    converged: bool
    trace: list[torch.Tensor] = field(default_factory=list)


def solve(
    refine: Refine,
    base: torch.Tensor,
    anchor: torch.Tensor,
    before_anchor: torch.Tensor,
    *,
    passes: int | None = None,
    scale: Scale | None = None,
    noise: torch.Tensor | None = None,
    lock: bool = False,
    keep_trace: bool = False,
) -> Solution:
    """K parallel passes from the drafter's own choice.

    Args:
        refine: refined logits ``[N, S, V]`` for ``[N, B]`` previous tokens; with
            ``lock`` it is also given the first slot whose logits are wanted.
        base: ``[N, S, V]`` the drafter's logits.
        anchor, before_anchor: ``[N]`` ids; the latter is slot 0's previous token.
        passes: K; 0 is the bare drafter, ``None`` goes to the fixed point, which
            takes at most S passes. Stops early at a fixed point in any case: the
            result is the same.
        scale: temperature and filters; ``None`` leaves logits alone (T = 0).
        noise: ``[N, S, V]`` frozen Gumbel noise at T > 0, ``None`` at T = 0.
        lock: hold the settled prefix and evaluate only what lies behind it. A slot
            whose inputs a pass left unchanged would come out the same, so in exact
            arithmetic this changes nothing but the cost of a pass.
        keep_trace: also return the tokens of every pass.
    """
    limit = pass_limit(passes, base.shape[1])
    scale = scale or (lambda logits: logits)

    scores = scale(base)

    def choose(previous: torch.Tensor, first: int) -> torch.Tensor:
        nonlocal scores
        behind = scale(refine(previous, first) if lock else refine(previous))
        scores = torch.cat([scores[:, :first], behind], dim=1)
        return pick(behind, None if noise is None else noise[:, first:])

    seed = pick(scores, noise)
    trace = [seed] if keep_trace else []
    head = torch.stack([before_anchor, anchor], dim=1)
    tokens, done, converged = iterate(
        choose, seed, head, limit, lock=lock, trace=trace if keep_trace else None
    )
    return Solution(tokens, scores, done, converged, trace)


def pass_limit(passes: int | None, slots: int) -> int:
    """How many passes K allows: ``None`` goes to the fixed point, at most S."""
    if passes is not None and passes < 0:
        raise LabError(f"passes must be 0 or more (or None), not {passes}.")
    return slots if passes is None else min(passes, slots)


def iterate(
    choose: Choose,
    seed: torch.Tensor,
    head: torch.Tensor,
    limit: int,
    *,
    lock: bool = True,
    trace: list[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, int, bool]:
    """At most ``limit`` passes from any seed, until one changes nothing.

    Args:
        choose: tokens ``[N, S - first]`` of the slots from ``first`` on.
        seed: ``[N, S]`` where to start. The end does not depend on it: a pass makes
            one more slot final, whatever stood there.
        head: ``[N, 2]`` the token before the anchor, and the anchor.
        lock: as in :func:`solve`; without it ``first`` is always 0.
        trace: gathers the tokens of each pass.

    Returns:
        Tokens, passes made, and whether more of them would change nothing.
    """
    tokens, slots = seed, seed.shape[1]
    done, settled, converged = 0, 0, slots == 0
    while done < limit and not converged:
        previous = torch.cat([head, tokens[:, :-1]], dim=1)
        update = choose(previous, settled)
        same = (update == tokens[:, settled:]).all(dim=0).tolist()
        converged = all(same)
        tokens = torch.cat([tokens[:, :settled], update], dim=1)
        if lock and not converged:
            # The first slot that moved is settled too: all before it stood still.
            settled += same.index(False) + 1
        done += 1
        if trace is not None:
            trace.append(tokens)
    # After S passes every slot is final even if the last one moved.
    return tokens, done, converged or done >= slots


def solve_sequentially(
    step: Step,
    base: torch.Tensor,
    anchor: torch.Tensor,
    *,
    scale: Scale | None = None,
    noise: torch.Tensor | None = None,
) -> Solution:
    """Left to right, one slot per step: S serial steps with the same picks.

    Args:
        step: refined logits ``[N, V]`` of draft slot ``k`` (0-based) given the
            ``[N, k + 1]`` ids before it, the anchor and the drafts so far, and the
            state that the step before returned beside its logits (first ``None``).
    """
    scale = scale or (lambda logits: logits)
    rows, state = [], None
    drafted = anchor[:, None]
    for k in range(base.shape[1]):
        logits, state = step(k, drafted, state)
        rows.append(scale(logits))
        token = pick(rows[-1], None if noise is None else noise[:, k])
        drafted = torch.cat([drafted, token[:, None]], dim=1)
    scores = torch.stack(rows, dim=1) if rows else base
    return Solution(drafted[:, 1:], scores, len(rows), True)


def solve_in_order(
    refine: Refine,
    base: torch.Tensor,
    anchor: torch.Tensor,
    before_anchor: torch.Tensor,
    *,
    scale: Scale | None = None,
    noise: torch.Tensor | None = None,
) -> Solution:
    """The reference for :func:`solve`: decode slot by slot with the whole head.

    Slow on purpose (the head is evaluated once per slot); its tokens are what
    S parallel passes must give.
    """

    def step(k: int, drafted: torch.Tensor, _):
        unknown = anchor[:, None].expand(-1, base.shape[1] - k - 1)  # never seen
        previous = torch.cat([before_anchor[:, None], drafted, unknown], dim=1)
        return refine(previous)[:, k], None

    return solve_sequentially(step, base, anchor, scale=scale, noise=noise)


def pick(scores: torch.Tensor, noise: torch.Tensor | None) -> torch.Tensor:
    """argmax over V, of noisy scores if there is noise; the first of equals wins."""
    return first_argmax(scores if noise is None else scores + noise)
