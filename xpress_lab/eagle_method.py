"""`eagle`: drafts a chain token by token, each step on the drafter's own state."""

from collections.abc import Sequence

import torch

from xpress_lab.argmax import first_argmax
from xpress_lab.borrowed import Borrowed
from xpress_lab.draft_laws import Tabled
from xpress_lab.drafters.eagle import EagleDrafter
from xpress_lab.methods import Proposal, Request
from xpress_lab.sampling import Sampling, draw
from xpress_lab.target import Target, at_each


class EagleMethod:
    """An EAGLE-3 drafter; a block is the anchor and ``chain`` drafts.

    Args:
        draft_ids: ``[D]`` the target ids that may be drafted, ``None`` for all.
    """

    name, batched = "eagle", True

    def __init__(
        self,
        target: Target,
        drafter: EagleDrafter,
        draft_ids: torch.Tensor | None = None,
    ):
        self.drafter, self.borrowed = drafter, Borrowed(target, draft_ids)
        self.budget = drafter.config.chain
        self.block_size = self.budget + 1
        self.tap_ids = drafter.config.target_layer_ids

    def begin(self, capacity: int, rows: int = 1) -> "EagleDrafting":
        return EagleDrafting(self, capacity, rows)

    def describe(self) -> str:
        taps = ",".join(map(str, self.tap_ids))
        ids = self.borrowed.draft_ids
        says = "" if ids is None else f"draft vocabulary {len(ids)}, "
        return f"eagle: chain of {self.block_size - 1}, taps {taps}, {says}serial"


class EagleDrafting:
    """The drafter's cache. Keys made from its own states never outlive a round."""

    def __init__(self, method: EagleMethod, capacity: int, rows: int = 1):
        self.method = method
        self.cache = method.drafter.new_cache(rows, capacity)

    def keep_rows(self, rows: Sequence[int]) -> None:
        self.cache.keep_rows(rows)

    def propose(
        self, request: Request, sampling: Sampling, noise_stream, watch, keep_trace
    ) -> Proposal:
        borrowed = self.method.borrowed
        hidden = self.hidden_states(request)
        verified = self.cache.lengths
        drafts, rows = [], []
        for step in range(self.method.block_size - 1):
            if step:
                hidden = self._step(drafts[-1], hidden)
            logits = borrowed.logits(self.method.drafter.norm(hidden))[:, -1]
            if sampling.greedy_draft:
                picked = first_argmax(logits)
            else:
                rows.append(sampling.scale(logits).softmax(-1))
                picked = draw(rows[-1], noise_stream)
            drafts.append(borrowed.to_target(picked))
        self.cache.crop(verified)
        watch.lap("draft")
        q = Tabled(torch.stack(rows, dim=1), borrowed) if rows else None
        return Proposal(torch.stack(drafts, dim=1), q, len(drafts))

    def hidden_states(self, request: Request) -> torch.Tensor:
        """Columns of newly verified tokens, from the target's taps: ``[N, 1, H]``,
        the newest one's state."""
        drafter, device = self.method.drafter, request.taps.device
        dtype, new = drafter.norm.weight.dtype, request.taps.shape[1]
        held = torch.tensor(self.cache.lengths, device=device)
        places = held[:, None] + torch.arange(new, device=device)
        states = drafter(
            self.method.borrowed.embed(request.fresh).to(dtype),
            drafter.project(request.taps.to(dtype)),
            places,
            self.cache,
            self._causal(places),
        )
        self.cache.advance(new)
        self.cache.crop(request.starts)  # padding of rows with fewer new columns
        starts = torch.tensor(request.starts, device=device)
        return at_each(states, starts - held - 1)

    def _step(self, token: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """One column further: the last draft with the last state."""
        drafter = self.method.drafter
        places = torch.tensor(self.cache.lengths, device=token.device)[:, None]
        embedded = self.method.borrowed.embed(token)[:, None].to(hidden.dtype)
        mask = self._causal(places) if self.cache.ragged else None
        states = drafter(embedded, hidden, places, self.cache, mask)
        self.cache.advance(1)
        return states

    def _causal(self, places: torch.Tensor) -> torch.Tensor:
        """``[N, 1, T, keys]``: columns at ``places`` ``[N, T]`` see what is before."""
        keys = torch.arange(self.cache.length + places.shape[1], device=places.device)
        return (keys <= places[:, :, None])[:, None]
