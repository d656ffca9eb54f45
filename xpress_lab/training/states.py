"""The target's states of training texts: computed once, read in every step.

A drafter reads the target's hidden states and is judged by its distribution. Neither
changes while drafters train, yet the target costs more than they do. So its states
are kept on disk, one record a token, and a training step only reads. Whoever writes
the texts saves them at once; what is missing is computed here.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from xpress_lab.errors import LabError
from xpress_lab.files import write_whole
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

    def to(self, device: torch.device) -> "States":
        """The same states on a device."""
        return States(*(part.to(device) for part in self))


@torch.no_grad()
def target_states(target: Target, texts: TextSet, tap_ids: tuple[int, ...]) -> States:
    """Run the target over whole texts; the states come to the texts' device."""
    rows, length = texts.tokens.shape
    cache = target.new_cache(rows, length)
    last, taps = target.states(texts.tokens.to(target.device), cache, tap_ids)
    wide = torch.promote_types(last.dtype, torch.float32)
    lse = torch.full((rows, length), torch.nan, dtype=wide)
    wanted = texts.in_response().roll(-1, dims=1)
    wanted[:, -1] = False
    for row in range(rows):  # row by row: logits are wide
        logits = target.head(last[row, wanted[row]])
        lse[row, wanted[row]] = logits.to(wide).logsumexp(-1).to(lse.device)
    return States(taps, last, lse).to(texts.tokens.device)


class StateFolder:
    """Where states of one target at given taps are kept, a file per shard of texts.

    The folder's name tells target, taps and dtype, and each file its texts, so that
    states are never read for others.
    """

    def __init__(
        self,
        target: Target,
        tap_ids: tuple[int, ...],
        folder: Path,
        dtype: torch.dtype = torch.bfloat16,
    ):
        self.target, self.tap_ids, self.dtype = target, tap_ids, dtype
        self.width = (len(tap_ids) + 1) * target.config.hidden_size
        self.path = folder / self._key()

    def gigabytes(self, tokens: int) -> float:
        """Room that the states of so many tokens take."""
        return tokens * (self.width * self.dtype.itemsize + 4) / 1e9

    def file(self, shard: int) -> Path:
        return self.path / f"{shard:04d}.safetensors"

    def has(self, shard: int, texts: TextSet) -> bool:
        """Whether the states of exactly these texts are there."""
        if not self.file(shard).is_file():
            return False
        with self.open(shard) as file:
            return file.metadata()["texts"] == _fingerprint(texts)

    def open(self, shard: int):
        """A shard's file, whose tensors are read slice by slice."""
        try:
            return safe_open(self.file(shard), "pt")
        except (SafetensorError, OSError) as error:
            raise LabError(
                f"{self.file(shard)} is damaged; delete it and run again."
            ) from error

    def save(self, shard: int, texts: TextSet, states, lse) -> None:
        """Keep ``[tokens, width]`` states and ``[tokens]`` lse, text after text."""
        self.path.mkdir(parents=True, exist_ok=True)
        tensors = {"states": states.to(self.dtype), "lse": lse.float()}
        about = {"texts": _fingerprint(texts)}
        try:
            write_whole(self.file(shard), lambda p: save_file(tensors, p, about))
        except (LabError, SafetensorError) as error:
            raise LabError(
                f"Cannot keep the target's states in {self.path}: "
                f"{self.gigabytes(len(states)):.2f} GB more are needed there."
            ) from error

    def compute(self, shard: int, texts: TextSet) -> None:
        """Run the target over the texts of a shard and keep its states."""
        order = texts.lengths.argsort(stable=True)
        states: list = [None] * len(texts)
        lse: list = [None] * len(texts)
        for rows in order.split(ROWS):
            part = texts.select(rows)
            read = target_states(self.target, part, self.tap_ids)
            both = torch.cat([read.taps, read.last], dim=-1)
            for place, row in enumerate(rows.tolist()):
                length = int(texts.lengths[row])
                states[row] = both[place, :length].to(self.dtype)
                lse[row] = read.lse[place, :length]
        self.save(shard, texts, torch.cat(states), torch.cat(lse))

    def _key(self) -> str:
        """Weights, taps and dtype in sixteen hex digits."""
        mark = hashlib.blake2b(digest_size=8)
        for tensor in self.target.model.state_dict().values():
            mark.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
        mark.update(repr((self.tap_ids, self.dtype)).encode())
        return mark.hexdigest()


class StateStore:
    """States of a whole text set, read by text.

    Args:
        folder: where states are kept. Shards that are missing there are computed.
        shard: texts a file, as they were written.
    """

    def __init__(self, folder: StateFolder, texts: TextSet, shard: int):
        self.folder, self.texts, self.shard = folder, texts, shard
        parts = torch.arange(len(texts)).split(shard)
        sets = [texts.select(rows) for rows in parts]
        missing = [i for i, part in enumerate(sets) if not folder.has(i, part)]
        tokens = sum(int(sets[i].lengths.sum()) for i in missing)
        what = f"target states ({folder.gigabytes(tokens):.1f} GB)"
        for index in tqdm(missing, what, disable=not missing):
            folder.compute(index, sets[index])
        self.starts = torch.cat(
            [part.lengths.cumsum(0) - part.lengths for part in sets]
        ).tolist()
        self._files = [folder.open(index) for index in range(len(sets))]

    @property
    def target(self) -> Target:
        return self.folder.target

    def read(self, rows: torch.Tensor, multiple: int = 1) -> States:
        """States of some texts, as :meth:`TextSet.select` pads them, zero behind."""
        width = self.texts.select(rows, multiple).tokens.shape[1]
        records = [self._record(row) for row in rows.tolist()]
        both = pad_sequence([both for both, _ in records], True)
        lse = pad_sequence([lse for _, lse in records], True, torch.nan)
        short = width - both.shape[1]
        both = F.pad(both, (0, 0, 0, short)).to(self.target.dtype)
        lse = F.pad(lse, (0, short), value=torch.nan)
        size = self.target.config.hidden_size
        return States(both[..., :-size], both[..., -size:], lse)

    def _record(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        file, start = self._files[row // self.shard], self.starts[row]
        end = start + int(self.texts.lengths[row])
        return file.get_slice("states")[start:end], file.get_slice("lse")[start:end]


def _fingerprint(texts: TextSet) -> str:
    """Token ids and lengths, padding aside."""
    mark = hashlib.blake2b(digest_size=8)
    mark.update(texts.lengths.contiguous().numpy())
    mark.update(texts.prompt_lengths.contiguous().numpy())
    place = torch.arange(texts.tokens.shape[1])
    mark.update(texts.tokens[place < texts.lengths[:, None]].numpy())
    return mark.hexdigest()
