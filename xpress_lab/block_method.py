"""The methods that draft a block in one pass: dFlash, bare or with a head."""

from collections.abc import Sequence

import torch

from xpress_lab.borrowed import Borrowed
from xpress_lab.cache import KVCache
from xpress_lab.candidates import (
    check_candidates,
    default_candidates,
    solve_by_candidates,
)
from xpress_lab.draft_laws import DraftLaw, Tabled
from xpress_lab.drafters.dflash import DFlashDrafter
from xpress_lab.errors import LabError
from xpress_lab.jacobi import Solution, solve, solve_sequentially
from xpress_lab.methods import Proposal, Request
from xpress_lab.refiners.confidence import (
    ConfidenceHead,
    check_costs,
    check_threshold,
    leading_sure,
)
from xpress_lab.sampling import Sampling, Stream, gumbel_noise
from xpress_lab.scheduling import RoundCosts, Schedule
from xpress_lab.screening import screen_for
from xpress_lab.target import Target


class BlockMethod:
    """A dFlash drafter, bare or with a head that refines its block.

    Args:
        name: how results call it.
        target, drafter: the pair; the drafter borrows the target's tables.
        head: ``None`` (dflash), a sequential head (the Markov family) or a parallel
            one (xpress), already folded for inference.
        passes: Jacobi passes K of a parallel head; ``None`` goes to the fixed point.
        draft_ids: ``[D]`` the target ids that may be drafted, ``None`` for all.
        confidence: the head by which proposals are cut, ``None`` for none.
        threshold: verify drafts up to the first less likely one; 0 verifies all.
        costs: of a round; drafts are then sent while they are worth it, by
            :mod:`xpress_lab.scheduling`, whatever the threshold.
        candidates: C of :mod:`xpress_lab.candidates`; 0 for full passes only,
            ``None`` to choose by vocabulary and passes. Of a parallel head only.
    """

    batched = True

    def __init__(
        self,
        name: str,
        target: Target,
        drafter: DFlashDrafter,
        head=None,
        passes: int | None = None,
        draft_ids: torch.Tensor | None = None,
        confidence: ConfidenceHead | None = None,
        threshold: float = 0.0,
        candidates: int | None = None,
        costs: RoundCosts | None = None,
    ):
        config = drafter.config
        self.name, self.drafter, self.head, self.passes = name, drafter, head, passes
        self.borrowed = Borrowed(target, draft_ids)
        self.confidence = confidence
        self.threshold = check_threshold(threshold, confidence)
        self.costs = check_costs(costs, confidence)
        self.candidates = 0
        if head is not None and not head.sequential:
            default = default_candidates(self.borrowed.vocab_size, passes)
            asked = default if candidates is None else candidates
            self.candidates = check_candidates(asked, passes)
            self.screen = screen_for(head.w2, config.drafts) if asked else None
        elif candidates:
            raise LabError(
                f"candidates={candidates} is for xpress, whose passes they shorten; "
                f"{name} makes none."
            )
        self.budget, self.tap_ids = config.drafts, config.target_layer_ids
        self.block_size = self.budget + 1
        mask_id = torch.tensor([config.mask_token_id], device=target.device)
        masks = self.borrowed.embed(mask_id).expand(config.block_size - 1, -1)
        self.mask_embeddings = masks.to(drafter.norm.weight.dtype)

    def begin(self, capacity: int, rows: int = 1) -> "BlockDrafting":
        return BlockDrafting(self, capacity, rows)

    def drafter_pass(self, taps, anchor, positions, visible, cache) -> torch.Tensor:
        """Hidden states ``[N, B, H]`` of the anchor ``[N]`` and its masks after new
        context ``[N, C, n*H]``; see :meth:`DFlashDrafter.forward`."""
        dtype = self.mask_embeddings.dtype
        first = self.borrowed.embed(anchor)[:, None].to(dtype)
        masks = self.mask_embeddings.expand(len(anchor), -1, -1)
        return self.drafter(
            torch.cat([first, masks], dim=1),
            self.drafter.project(taps.to(dtype)),
            positions,
            visible,
            cache,
        )

    def base_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """``[N, B, H]`` to the drafter's logits ``[N, S, D]``."""
        first = self.drafter.config.first_slot
        return self.borrowed.logits(hidden[:, first:].contiguous())

    def describe(self) -> str:
        config, how = self.drafter.config, "bare marginals"
        if self.head is not None and self.head.sequential:
            how = f"{config.drafts} serial steps"
        elif self.head is not None:
            how = "passes to the fixed point"
            how = how if self.passes is None else f"K={self.passes} passes"
            by_rows = f", {self.candidates} candidate rows a slot first"
            how += by_rows if self.candidates else ""
        taps = ",".join(map(str, self.tap_ids))
        ids = self.borrowed.draft_ids
        says = "" if ids is None else f"draft vocabulary {len(ids)}, "
        layout = "anchor-first" if config.sample_from_anchor else "fill-in"
        cut = f", cut below confidence {self.threshold:g}" if self.threshold else ""
        cut = cut if self.costs is None else ", sent by schedule"
        return (
            f"{self.name}: block {config.block_size}, {layout}, taps {taps}, "
            f"{says}{how}{cut}"
        )


class BlockDrafting:
    """The drafter's cache, and one proposal after another."""

    def __init__(self, method: BlockMethod, capacity: int, rows: int = 1):
        self.method = method
        self.cache = self.new_cache(rows, capacity)
        self.schedule = None if method.costs is None else Schedule(method.costs)

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """Where the drafter keeps the keys and values of its context."""
        return self.method.drafter.new_cache(rows, capacity)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.cache.keep_rows(rows)
        if self.schedule is not None:
            self.schedule.keep_rows(rows)

    def propose(self, request, sampling, noise_stream, watch, keep_trace) -> Proposal:
        borrowed = self.method.borrowed
        hidden, base = self.draft(request)
        watch.lap("draft")

        scale = None if sampling.greedy_draft else sampling.scale
        noise = self.noise(base, sampling, noise_stream)
        solution = self._solve(
            hidden,
            base,
            request,
            scale,
            noise,
            keep_trace,
            candidates=self.method.candidates,
        )
        counts = self.counts(hidden, request, solution.tokens)
        kept = None if counts is None else max(counts)
        q = None if noise is None else self.law(solution)
        trace = [borrowed.to_target(step[:, :kept]) for step in solution.trace]
        tokens = borrowed.to_target(solution.tokens[:, :kept])
        watch.lap("refine")
        return Proposal(tokens, q, solution.passes, trace, counts=counts)

    def law(self, solution: Solution) -> DraftLaw:
        """What the drafts of a block were drawn from."""
        return Tabled(solution.scores.softmax(-1), self.method.borrowed)

    def noise(self, base, sampling: Sampling, stream: Stream) -> torch.Tensor | None:
        """The noise of a block, ``[N, S, D]``; ``None`` where drafts are argmaxes."""
        if sampling.greedy_draft:
            return None
        dtype = sampling.scale(base[:, :0]).dtype
        return gumbel_noise(base.shape, stream, base.device, dtype)

    def draft(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states ``[N, B, H]`` and base logits ``[N, S, D]`` of a block."""
        hidden = self.hidden_states(request)
        return hidden, self.method.base_logits(hidden)

    def hidden_states(self, request: Request) -> torch.Tensor:
        """One drafter pass: ``[N, B, H]`` hidden states of the block at ``start``.

        The cache takes the new context's keys. The block's own keys are written
        behind them but never counted, so the next call overwrites them: they came
        from masks.
        """
        positions, visible = self._places(request)
        hidden = self.method.drafter_pass(
            request.taps, request.anchor, positions, visible, self.cache
        )
        self.cache.advance(request.taps.shape[1])
        self.cache.crop(request.starts)  # padding of rows with less new context
        return hidden

    def _places(self, request: Request) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Positions ``[N, C + B]`` of new context and block, and the keys
        ``[N, 1, 1, keys]`` that a row's block sees, ``None`` for all.

        The block's keys are written behind the C places of new context. Where a row
        fills fewer of them, its positions go on without a gap and the mask leaves the
        padding out.
        """
        device, new = request.taps.device, request.taps.shape[1]
        slots, lengths = self.method.drafter.config.block_size, self.cache.lengths
        if all(start == self.cache.length + new for start in request.starts):
            end = request.starts[0] + slots
            return torch.arange(self.cache.length, end, device=device)[None], None
        held = torch.tensor(lengths, device=device)[:, None]
        start = torch.tensor(request.starts, device=device)[:, None]
        context = held + torch.arange(new, device=device)
        block = start + torch.arange(slots, device=device)
        keys = torch.arange(max(lengths) + new + slots, device=device)
        behind = (keys >= held + new) & (keys < held + new + slots)
        visible = (keys < start) | behind
        return torch.cat([context, block], dim=1), visible[:, None, None]

    def counts(self, hidden, request, tokens) -> list[int] | None:
        """How many drafts of each row are worth verifying; ``None``, which is all,
        unless a threshold or costs are set."""
        if not self.method.threshold and self.schedule is None:
            return None
        logits = self.sureness(hidden, request, tokens)
        if self.schedule is not None:
            return self.schedule.counts(logits, request.starts)
        return leading_sure(logits, self.method.threshold)

    def sureness(self, hidden, request, tokens) -> torch.Tensor:
        """``[N, S]`` what the confidence head says of each draft, as logits."""
        method = self.method
        slots = hidden[:, method.drafter.config.first_slot :]
        anchor = method.borrowed.to_draft(request.anchor)
        previous = torch.cat([anchor[:, None], tokens[:, :-1]], dim=1)
        return method.confidence(slots, previous, method.head)

    def _solve(self, hidden, base, request, scale, noise, keep_trace, *, candidates=0):
        head, passes = self.method.head, self.method.passes
        to_draft = self.method.borrowed.to_draft
        anchor = to_draft(request.anchor)
        how = {"scale": scale, "noise": noise}
        prepared = None if head is None else head.prepare(hidden)
        if head is not None and head.sequential:
            rows = prepared[:, self.method.drafter.config.first_slot :]

            def step(k: int, drafted: torch.Tensor, state):
                bias, state = head.step(rows[:, k], drafted[:, -1], state)
                return base[:, k] + bias, state

            return solve_sequentially(step, base, anchor, **how)
        how["keep_trace"] = keep_trace
        block = base, anchor, to_draft(request.before_anchor)
        if candidates:
            how |= {"count": candidates, "passes": passes, "screen": self.method.screen}
            return solve_by_candidates(head, prepared, *block, **how)
        return solve(
            lambda previous, first: (
                base[:, first:] + head.bias(prepared, previous, first)
            ),
            *block,
            passes=0 if head is None else passes,
            lock=True,
            **how,
        )
