"""Candidate rows with a certificate: the fixed point for about one full pass.

A pass over a large vocabulary spends nearly all its time on reading w2, row by row,
for tokens that the drafter ranked hopelessly low. So most passes are made among
*candidates*, the C tokens of each slot with the highest base scores:

1. seed and passes as in :mod:`xpress_lab.jacobi`, each slot choosing among its own C
   candidates only, until such a pass changes nothing: a block y;
2. one pass F over the whole vocabulary. F(y) = y is the *certificate*: y is the
   answer. Otherwise full passes go on from F(y). Where it is quicker, a *screen*
   (:mod:`xpress_lab.screening`) is asked first, which proves the same or says nothing.

**Theorem (T = 0).** The result is x*, the fixed point of the full map F, whatever C
is and however the candidates were chosen. *Proof.* F is causal: F_k reads x_{<k} only.
(a) F has one fixed point, for x*_1 = F_1 and x*_k = F_k(x*_{<k}) leave no choice; so
F(y) = y means y = x*. (b) From any block y, if F leaves slots < j alone then those are
x*'s by (a) applied to them, and so is slot j of F(y), which reads nothing else. Each
further pass therefore settles one slot more, and S passes settle all. The candidates
decide only how many full passes it takes.

**Finite K.** K bounds the *full* passes; passes among candidates are not counted. The
result is the K-th full iterate from y, not from the drafter's seed. As after K plain
passes, slots 1..K are x*'s, and so is every slot up to the first that the last pass
moved. Behind those the two may differ, and tau with them. Where the certificate
holds, one full pass is enough for x*, which plain passes may need more than K for.

**T > 0.** With frozen noise F stays one deterministic map (its argmax is over scores
plus noise), and candidates are the top C of *noisy* base scores; the theorem holds for
the noise that was drawn, with the same x* and so the same q as plain passes to the
fixed point. At finite K, q is exact too, if y_{<k} is a function of noise rows < k
alone (see :mod:`xpress_lab.jacobi`). It is, because a slot chooses among candidates of
its own noise row. Candidates pooled over slots would let row k speak in earlier slots.
Filters (top-k, top-p) see whole rows in full passes only; among candidates they act on
what is there, which again touches nothing but y.

"Exact" is meant as in other solvers here: in exact arithmetic. A near-tie can fall
either way where a product is summed in another order.

Shapes: N rows, S = B - 1 drafted slots, V vocabulary, C candidates, r rank.
"""

from typing import NamedTuple

import torch

from xpress_lab.errors import LabError
from xpress_lab.jacobi import Scale, Solution, iterate, pass_limit, pick
from xpress_lab.kernels.choices import top_candidates
from xpress_lab.kernels.plain import read_out
from xpress_lab.products import times_table
from xpress_lab.refiners.xpress import FoldedXPressHead
from xpress_lab.screening import Screen

WORTHWHILE = 16_384  # rows of w2 from which candidates are the default
COUNT = 128  # C, by default


def default_candidates(vocabulary: int, passes: int | None) -> int:
    """C unless one is asked for: 0 (off) for small vocabularies, and wherever K is
    bounded, where candidates may change more than the time. From which size they pay
    was measured on CPUs."""
    return COUNT if passes is None and vocabulary >= WORTHWHILE else 0


def check_candidates(count: int, passes: int | None) -> int:
    """Refuse what has no meaning: C < 0, or candidates without a full pass."""
    if count < 0:
        raise LabError(f"candidates must be 0 (off) or more, not {count}.")
    if count and passes == 0:
        raise LabError(
            f"candidates={count} with passes=0: candidates need a full pass to check "
            "them; use passes=1 or more, or candidates=0."
        )
    return count


class Candidates(NamedTuple):
    """The candidates of a block, and what belongs to them.

    ids: ``[N, S, C]`` in rising order. rows: ``[N, S, C, r]`` of w2. base, noise: their
    ``[N, S, C]`` entries; noise is ``None`` at T = 0.
    """

    ids: torch.Tensor
    rows: torch.Tensor
    base: torch.Tensor
    noise: torch.Tensor | None

    def logits(self, z: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Refined logits ``[N, S - first, C]`` from latents of the slots from first."""
        products = z[..., None, :] @ self.rows[:, first:].mT
        return self.base[:, first:] + products[..., 0, :]

    def picked(self, scores: torch.Tensor, first: int = 0) -> torch.Tensor:
        """Ids ``[N, S - first]`` of the highest scores, noise added."""
        best = pick(scores, None if self.noise is None else self.noise[:, first:])
        return self.ids[:, first:].gather(-1, best[..., None])[..., 0]


def candidates_of(
    w2: torch.Tensor,
    base: torch.Tensor,
    count: int,
    scale: Scale | None = None,
    noise: torch.Tensor | None = None,
) -> Candidates:
    """The top C of each slot by its base scores, scaled and noisy at T > 0."""
    scores = base if scale is None else scale(base)
    ids = top_candidates(scores if noise is None else scores + noise, count)
    rows = w2.index_select(0, ids.flatten()).unflatten(0, ids.shape)
    of_noise = None if noise is None else noise.gather(-1, ids)
    return Candidates(ids, rows, base.gather(-1, ids), of_noise)


def solve_by_candidates(
    head: FoldedXPressHead,
    prepared: torch.Tensor,
    base: torch.Tensor,
    anchor: torch.Tensor,
    before_anchor: torch.Tensor,
    *,
    count: int,
    passes: int | None = None,
    scale: Scale | None = None,
    noise: torch.Tensor | None = None,
    keep_trace: bool = False,
    screen: Screen | None = None,
) -> Solution:
    """Passes among candidates, then full passes until one changes nothing.

    Args:
        head, prepared: the folded head, and its :meth:`prepare` of the block.
        count: C.
        passes: bounds the full passes, at least 1; ``None`` goes to the fixed point.
        base, anchor, before_anchor, scale, noise, keep_trace: as in
            :func:`xpress_lab.jacobi.solve`.
        screen: of ``head.w2``, asked at T = 0 before a full pass is made.

    Returns:
        A solution whose ``passes`` counts full passes: 1 says that the certificate
        held at once, by the screen or by a full pass. ``scores`` are left out at T = 0,
        where nobody needs them.
    """
    check_candidates(count, passes)
    limit = pass_limit(passes, base.shape[1])
    scaled = scale or (lambda logits: logits)
    few, scores = candidates_of(head.w2, base, count, scale, noise), base
    ends = torch.stack([before_anchor, anchor], dim=1)

    def among_candidates(previous: torch.Tensor, first: int) -> torch.Tensor:
        z = head.latent(prepared, previous, first)
        return few.picked(scaled(few.logits(z, first)), first)

    def among_all(previous: torch.Tensor, first: int) -> torch.Tensor:
        nonlocal scores
        z = head.latent(prepared, previous, first)
        if noise is None:
            return read_out(head.w2, z, base[:, first:]).tokens
        behind = scaled(base[:, first:] + times_table(z, head.w2))
        scores = torch.cat([scores[:, :first], behind], dim=1)
        return pick(behind, noise[:, first:])

    start = few.picked(scaled(few.base))
    trace = [start] if keep_trace else None
    block, _, _ = iterate(among_candidates, start, ends, base.shape[1], trace=trace)
    if screen is not None and noise is None:
        z = head.latent(prepared, torch.cat([ends, block[:, :-1]], dim=1))
        if screen.clears(z, base, few.ids, few.logits(z).amax(dim=-1)):
            return Solution(block, None, 1, True, [*trace, block] if trace else [])
    tokens, done, converged = iterate(among_all, block, ends, limit, trace=trace)
    return Solution(
        tokens, None if noise is None else scores, done, converged, trace or []
    )
