"""`eagle`: drafts a chain token by token, each step on the drafter's own state."""

import torch

from xpress_lab.borrowed import Borrowed
from xpress_lab.drafters.eagle import EagleDrafter
from xpress_lab.methods import Proposal, Request
from xpress_lab.sampling import Sampling, draw
from xpress_lab.target import Target


class EagleMethod:
    """An EAGLE-3 drafter; a block is the anchor and ``chain`` drafts."""

    name = "eagle"

    def __init__(self, target: Target, drafter: EagleDrafter):
        self.drafter, self.borrowed = drafter, Borrowed(target)
        self.budget = drafter.config.chain
        self.block_size = self.budget + 1
        self.tap_ids = drafter.config.target_layer_ids

    def begin(self, capacity: int) -> "EagleDrafting":
        return EagleDrafting(self, capacity)

    def describe(self) -> str:
        taps = ",".join(map(str, self.tap_ids))
        return f"eagle: chain of {self.block_size - 1}, taps {taps}, serial"


class EagleDrafting:
    """The drafter's cache. Keys made from its own states never outlive a round."""

    def __init__(self, method: EagleMethod, capacity: int):
        self.method = method
        self.cache = method.drafter.new_cache(1, capacity)

    def propose(
        self, request: Request, sampling: Sampling, noise_stream, watch, keep_trace
    ) -> Proposal:
        hidden = self.hidden_states(request)
        verified = self.cache.length
        drafts, rows = [], []
        for step in range(self.method.block_size - 1):
            if step:
                hidden = self._step(drafts[-1], hidden)
            logits = self.method.borrowed.logits(self.method.drafter.norm(hidden))
            if sampling.greedy_draft:
                drafts.append(logits[:, -1].argmax(-1))
            else:
                rows.append(sampling.scale(logits[:, -1]).softmax(-1))
                drafts.append(draw(rows[-1], noise_stream))
        self.cache.crop(verified)
        watch.lap("draft")
        q = torch.stack(rows, dim=1) if rows else None
        return Proposal(torch.stack(drafts, dim=1), q, len(drafts))

    def hidden_states(self, request: Request) -> torch.Tensor:
        """Columns of newly verified tokens, from the target's taps: ``[N, 1, H]``,
        the newest one's state."""
        drafter, start = self.method.drafter, self.cache.length
        dtype, new = drafter.norm.weight.dtype, request.taps.shape[1]
        places = torch.arange(start, start + new, device=request.taps.device)
        causal = torch.arange(start + new, device=places.device) <= places[:, None]
        states = drafter(
            self.method.borrowed.embed(request.fresh).to(dtype),
            drafter.project(request.taps.to(dtype)),
            places[None],
            self.cache,
            causal[None, None],
        )
        self.cache.advance(new)
        return states[:, -1:]

    def _step(self, token: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """One column further: the last draft with the last state."""
        drafter, place = self.method.drafter, self.cache.length
        positions = torch.full((1, 1), place, device=token.device)
        embedded = self.method.borrowed.embed(token)[:, None].to(hidden.dtype)
        states = drafter(embedded, hidden, positions, self.cache)
        self.cache.advance(1)
        return states
