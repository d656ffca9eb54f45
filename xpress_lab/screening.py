"""Screening: prove in bfloat16 that no other token can win.

The certificate of :mod:`xpress_lab.candidates` asks a weak question of the whole
vocabulary: does any token beat the ones chosen? Products in bfloat16 answer it for half
the bytes wherever the answer is clear, because their error is bounded. Rounding w and z
changes each term of w.z by a factor within (1 +- u)^2, u = 2^-8, and rounding the sum
by one more, so by Cauchy and Schwarz

    |bf16(w.z) - w.z| <= ((1 + u)^3 - 1) |w| |z| < 4 u |w| |z|,

where what is left of 4 u covers sums in float32. If every other token's approximate
score is below the chosen one's exact score by more than that, no exact pass could
choose otherwise. If some are not, nothing is said, and exact passes decide: screening
never changes a result, only what it costs.
"""

import time

import torch
import torch.nn.functional as F

ROUNDING = torch.finfo(torch.bfloat16).eps / 2  # u
TRIALS = 5


class Screen:
    """w2 in bfloat16, and its longest row.

    Args:
        w2: ``[V, r]`` in float32 or float64.
    """

    def __init__(self, w2: torch.Tensor):
        self.rows = w2.bfloat16()
        self.longest = w2.norm(dim=1).max()

    def slack(self, z: torch.Tensor) -> torch.Tensor:
        """``[N, S]`` how far products with latents ``[N, S, r]`` can be off."""
        return 4 * ROUNDING * self.longest * z.norm(dim=-1)

    def clears(
        self,
        z: torch.Tensor,
        base: torch.Tensor,
        ids: torch.Tensor,
        best: torch.Tensor,
    ) -> bool:
        """Whether no token but ``ids`` can reach the score ``best`` in any slot.

        Args:
            z: ``[N, S, r]`` exact latents.
            base: ``[N, S, V]`` the drafter's logits, in the dtype of ``z``.
            ids: ``[N, S, C]`` tokens that need no screening.
            best: ``[N, S]`` exact score of each slot's choice.
        """
        scores = F.linear(z.bfloat16(), self.rows).to(base.dtype).add_(base)
        scores.scatter_(-1, ids, -torch.inf)
        sums = 8 * torch.finfo(base.dtype).eps * best.abs()
        return bool((scores.amax(dim=-1) < best - self.slack(z) - sums).all())


def screen_for(w2: torch.Tensor, slots: int) -> Screen | None:
    """A screen if its product is quicker here than the exact one; else ``None``.

    Not every CPU multiplies in bfloat16: both are timed, which takes a few products.
    """
    if w2.dtype != torch.float32 or w2.device.type != "cpu":
        return None
    screen, z = Screen(w2), torch.ones(slots, w2.shape[1])

    def seconds(z: torch.Tensor, rows: torch.Tensor) -> float:
        taken = []
        for _ in range(TRIALS):
            started = time.perf_counter()
            F.linear(z, rows)
            taken.append(time.perf_counter() - started)
        return min(taken)

    quicker = seconds(z.bfloat16(), screen.rows) < seconds(z, w2)
    return screen if quicker else None
