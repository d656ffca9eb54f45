"""Refiners of fixed size: static buffers, K passes, and on CUDA one graph to replay.

A pass is a handful of small kernels, and launching them one by one from Python costs
more than running them. A graph launches all passes of a block at once, without the
host in between. It cannot stop early, so it always makes K passes; in exact arithmetic
the tokens are those of :func:`xpress_lab.jacobi.solve` with the same K and noise.

Elsewhere than on CUDA the same code simply runs, so that it can be tested anywhere.
Shapes: N rows, S drafted slots, B = S + 1, H hidden size, V vocabulary.
"""

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType

import torch

from xpress_lab.kernels import plain
from xpress_lab.kernels.noise import Noise

WARM_UPS = 3  # before a capture, so that nothing is compiled or allocated inside it


def kernels_for(device: torch.device) -> ModuleType:
    """The Triton kernels on CUDA, if Triton is installed; else their plain twins."""
    if device.type == "cuda" and find_spec("triton"):
        from xpress_lab.kernels import fused

        return fused
    return plain


class Runner:
    """The buffers of a block and the work on them; :meth:`work` says what that is.

    Args:
        head: folded, on the device where the work is to be done.
        base: ``[N, S, V]`` an example of base logits, for shape, dtype and device.
        hidden: ``[N, B, H]`` an example of hidden states.
        temperature: 0 for argmax; otherwise noise of a key given for each block.
        kernels: a module with ``latent``, ``choose`` and ``read_out``.
    """

    def __init__(
        self,
        head,
        base: torch.Tensor,
        hidden: torch.Tensor,
        temperature: float = 0.0,
        kernels: ModuleType | None = None,
    ):
        self.head, self.kernels = head, kernels or kernels_for(base.device)
        self.base, self.hidden = base.clone(), hidden.clone()
        ends = torch.zeros(2, len(base), dtype=torch.int64, device=base.device)
        self.before_anchor, self.anchor = ends[0], ends[1]
        self.key = torch.zeros(1, dtype=torch.int64, device=base.device)
        self.noise = Noise(self.key, temperature) if temperature else None
        self.replay: Callable[[], None] = self._run
        if base.device.type == "cuda":
            with torch.cuda.device(self.base.device):
                self.replay = self._capture()

    def work(self) -> torch.Tensor:
        """From the buffers to tokens ``[N, S]``."""
        raise NotImplementedError

    @torch.inference_mode()
    def __call__(
        self,
        hidden: torch.Tensor,
        base: torch.Tensor,
        anchor: torch.Tensor,
        before_anchor: torch.Tensor,
        key: int = 0,
    ) -> torch.Tensor:
        """Tokens ``[N, S]`` of a block; the next call overwrites them."""
        self.hidden.copy_(hidden)
        self.base.copy_(base)
        self.anchor.copy_(anchor)
        self.before_anchor.copy_(before_anchor)
        self.key.fill_(key)
        self.replay()
        return self.tokens

    def _run(self) -> None:
        self.tokens = self.work()

    @torch.inference_mode()
    def _capture(self) -> Callable[[], None]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        return graph.replay


class PassRunner(Runner):
    """xPress: K Jacobi passes over the whole vocabulary."""

    def __init__(self, head, base, hidden, passes: int, **how):
        self.passes = passes
        super().__init__(head, base, hidden, **how)

    def work(self) -> torch.Tensor:
        head, kernels = self.head, self.kernels
        prepared = head.prepare(self.hidden)
        tokens = kernels.choose(self.base, self.noise)
        ends = torch.stack([self.before_anchor, self.anchor], dim=1)
        for _ in range(self.passes):
            previous = torch.cat([ends, tokens[:, :-1]], dim=1)
            z = kernels.latent(head, prepared, previous)
            tokens = kernels.read_out(head.w2, z, self.base, self.noise)
        return tokens


class SerialRunner(Runner):
    """A vanilla Markov head at T = 0: S serial steps, with the same read-out."""

    def __init__(self, head, base, hidden, kernels: ModuleType | None = None):
        super().__init__(head, base, hidden, kernels=kernels)

    def work(self) -> torch.Tensor:
        head, slots = self.head, self.base.shape[1]
        token, tokens = self.anchor, []
        for k in range(slots):
            z = head.markov_w1(token)[:, None]
            at = self.base[:, k : k + 1]
            token = self.kernels.read_out(head.markov_w2.weight, z, at)[:, 0]
            tokens.append(token)
        return torch.stack(tokens, dim=1)
