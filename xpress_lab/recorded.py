"""Greedy verification along a text that the target has written before.

At T = 0 the loop emits the target's own greedy text whatever is drafted. So once that
text and the tapped states at its places are recorded, a verification needs no target
call: drafts are kept as far as they agree with the text. Methods are then compared on
the very same tokens, at a fraction of the price, for most rows of a verification are
thrown away. What it cannot tell is time, nor anything at T > 0.
"""

import math
from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from xpress_lab.batching import decode_batch, padded
from xpress_lab.cache import KVCache
from xpress_lab.errors import LabError
from xpress_lab.methods import PlainDecoding
from xpress_lab.target import Target, TargetOutput, at_each


class Bookmarks(KVCache):
    """How far each row has been read, and which text it reads; no keys, no values."""

    def __init__(self, rows: int, capacity: int):
        super().__init__(layers=0, rows=rows, heads=0, capacity=capacity, head_dim=0)
        self.texts = list(range(rows))

    def keep_rows(self, rows: Sequence[int]) -> None:
        super().keep_rows(rows)
        self.texts = [self.texts[row] for row in rows]


class RecordedTarget(Target):
    """A target that answers from its recorded greedy texts.

    Its verdicts on a chain of drafts are those of the target it was made from, up to
    the rounding of calls of other shapes. What the target did not say has logit -inf:
    greedy verification is all that it is for.

    Args:
        target: writes the texts, several side by side.
        prompts: token ids; the loop must be given the same ones in the same order.
        new_tokens: how many are recorded after each prompt. Stop ids do not end them,
            for the drafts of a last round are judged beyond the end as well.
        tap_ids: all layers that methods will ask for.
    """

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Sequence[int]],
        new_tokens: int,
        tap_ids: Sequence[int] = (),
    ):
        super().__init__(target.model, target.tokenizer)
        texts = decode_batch(
            target, PlainDecoding(), prompts, max_new_tokens=new_tokens, stop_ids=()
        )
        whole = [text.prompt + text.tokens for text in texts]
        self.ids, self.tap_ids = padded(whole, target.device), tuple(sorted(tap_ids))
        if tap_ids:
            taps = pad_sequence([self._run(target, ids) for ids in whole], True)
            self.taps = taps.chunk(len(tap_ids), dim=-1)

    @torch.inference_mode()
    def _run(self, target: Target, ids: list[int]) -> torch.Tensor:
        """``[T, n*H]``, what the tapped layers put out along a text."""
        cache = target.new_cache(1, len(ids))
        tokens = torch.tensor([ids], device=target.device)
        return target.states(tokens, cache, self.tap_ids)[1][0]

    def new_cache(self, rows: int, capacity: int) -> Bookmarks:
        """Bookmarks at the beginning of every text.

        ``capacity`` is a prompt, its new tokens and a block, as the loop asks for it.
        """
        count, length = self.ids.shape
        if rows != count or capacity - 1 > length:
            raise LabError(
                f"{count} texts of {length} tokens are recorded; {rows} of "
                f"{capacity - 1} are asked for."
            )
        return Bookmarks(rows, capacity)

    def forward(
        self,
        tokens: torch.Tensor,
        cache: Bookmarks,
        tap_ids: tuple[int, ...] = (),
        *,
        last_only: bool = False,
        ends: torch.Tensor | None = None,
        **tree,
    ) -> TargetOutput:
        """What :meth:`Target.forward` would return, at every place up to which
        ``tokens`` are the text."""
        if tree:
            raise LabError("A recorded text has one branch: it cannot judge a tree.")
        steps = torch.arange(tokens.shape[1], device=self.device)
        texts, starts = torch.tensor([cache.texts, cache.lengths], device=self.device)
        places = (starts[:, None] + steps).clamp_max(self.ids.shape[1] - 2)
        if ends is not None:
            self._check_prompts(tokens, texts, steps <= ends[:, None])
        said = self.ids[texts[:, None], places + 1]
        cache.advance(tokens.shape[1])
        if last_only:
            said = said[:, -1:] if ends is None else at_each(said, ends)
        shape = (*said.shape, self.vocab_size)
        logits = torch.full(shape, -math.inf, device=self.device, dtype=self.dtype)
        logits.scatter_(-1, said[..., None], 0.0)
        return TargetOutput(logits, self._taps_at(tap_ids, texts[:, None], places))

    def _check_prompts(self, tokens, texts, inside) -> None:
        known = self.ids[texts, : tokens.shape[1]]
        if known.shape != tokens.shape or (known != tokens)[inside].any():
            raise LabError("These prompts, in this order, are not the recorded ones.")

    def _taps_at(self, tap_ids, texts, places) -> torch.Tensor | None:
        if not tap_ids:
            return None
        if not set(tap_ids) <= set(self.tap_ids):
            raise LabError(
                f"Layers {list(tap_ids)} are asked for, {list(self.tap_ids)} recorded."
            )
        layers = [self.taps[self.tap_ids.index(tap)] for tap in tap_ids]
        return torch.cat([layer[texts, places] for layer in layers], dim=-1)
