"""The target's states of training texts: computed once, read in every step.

A drafter reads the target's hidden states and is judged by its distribution. Neither
changes while drafters train, yet the target costs more than they do. So its states
are written to disk, one record per token, and a training step only reads.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import torch
from tqdm import tqdm

from xpress_lab.errors import LabError
from xpress_lab.files import write_text
from xpress_lab.target import Target
from xpress_lab.training.texts import TextSet

ROWS = 16  # texts a target call


class States(NamedTuple):
    """What blocks are cut from, for S texts of length L.

    taps: ``[S, L, n*H]``. last: ``[S, L, H]``, what the output head reads. lse:
    ``[S, L]`` log of the normaliser, so that probabilities of *some* tokens can be
    had without the logits of all; nan where no response token follows.
    """

    taps: torch.Tensor
    last: torch.Tensor
    lse: torch.Tensor


@torch.no_grad()
def target_states(target: Target, texts: TextSet, tap_ids: tuple[int, ...]) -> States:
    """Run the target over whole texts."""
    rows, length = texts.tokens.shape
    cache = target.new_cache(rows, length)
    last, taps = target.states(texts.tokens, cache, tap_ids)
    wide = torch.promote_types(last.dtype, torch.float32)
    lse = torch.full((rows, length), torch.nan, dtype=wide)
    wanted = texts.in_response().roll(-1, dims=1)
    wanted[:, -1] = False
    for row in range(rows):  # row by row: logits are wide
        logits = target.head(last[row, wanted[row]])
        lse[row, wanted[row]] = logits.to(wide).logsumexp(-1)
    return States(taps, last, lse)


class StateStore:
    """States of a whole text set in one file, read by text.

    The file's name tells texts, target and taps, so a store is never read for
    others. Building goes on where it was interrupted.

    Args:
        folder: where the file is kept.
        dtype: of taps and last states on disk.
    """

    def __init__(
        self,
        target: Target,
        texts: TextSet,
        tap_ids: tuple[int, ...],
        folder: Path,
        dtype: torch.dtype = torch.bfloat16,
    ):
        self.target, self.texts, self.tap_ids = target, texts, tap_ids
        self.dtype = dtype
        self.width = (len(tap_ids) + 1) * target.config.hidden_size
        self.offsets = torch.cat([torch.zeros(1).long(), texts.lengths.cumsum(0)])
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{self._key()}.states"
        tokens = int(self.offsets[-1])
        self.gigabytes = tokens * (self.width * dtype.itemsize + 4) / 1e9
        self._states = self._map("", tokens * self.width, dtype).view(-1, self.width)
        self._lse = self._map(".lse", tokens, torch.float32)
        self._build()

    def read(self, rows: torch.Tensor) -> States:
        """States of some texts, as :meth:`TextSet.select` pads them.

        Records past a text's end are those of its neighbours; no block sees them.
        """
        length = int(self.texts.lengths[rows].max())
        places = self.offsets[rows][:, None] + torch.arange(length)
        places = places.clamp_max(len(self._lse) - 1)
        size = self.target.config.hidden_size
        both = self._states[places].to(self.target.dtype)
        return States(both[..., :-size], both[..., -size:], self._lse[places])

    def _map(self, suffix: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        name = str(self.path) + suffix
        try:
            return torch.from_file(name, shared=True, size=size, dtype=dtype)
        except RuntimeError as error:
            raise LabError(
                f"Cannot keep the target's states in {self.path.parent}: "
                f"{self.gigabytes:.1f} GB are needed there."
            ) from error

    def _build(self) -> None:
        done_file = self.path.with_suffix(".done")
        order = self.texts.lengths.argsort(stable=True)
        batches = order.split(ROWS)
        done = json.loads(done_file.read_text()) if done_file.is_file() else 0
        if done == len(batches):
            return
        what = f"target states ({self.gigabytes:.1f} GB)"
        for index in tqdm(range(done, len(batches)), what, initial=done):
            rows = batches[index]
            texts = self.texts.select(rows)
            self._write(rows, target_states(self.target, texts, self.tap_ids))
            if index % 50 == 49 or index == len(batches) - 1:
                write_text(done_file, json.dumps(index + 1))

    def _write(self, rows: torch.Tensor, states: States) -> None:
        both = torch.cat([states.taps, states.last], dim=-1).to(self.dtype)
        for row, text in enumerate(rows.tolist()):
            start, length = int(self.offsets[text]), int(self.texts.lengths[text])
            self._states[start : start + length] = both[row, :length]
            self._lse[start : start + length] = states.lse[row, :length]

    def _key(self) -> str:
        """Texts, weights, taps and dtype in sixteen hex digits."""
        mark = hashlib.blake2b(digest_size=8)
        for tensor in (self.texts.tokens, self.texts.lengths):
            mark.update(tensor.contiguous().numpy())
        for tensor in self.target.model.state_dict().values():
            mark.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
        mark.update(repr((self.tap_ids, self.dtype)).encode())
        return mark.hexdigest()
