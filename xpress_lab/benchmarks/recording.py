"""Texts with the moment at which each of their pieces came: what a race plays back."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.lab import Lab
from xpress_lab.methods import Method
from xpress_lab.sampling import Sampling

RACERS = ("ar", "dflash", "markov", "xpress")


@dataclass(frozen=True)
class Lane:
    """One method's text on a time line; all fields but the first run in step.

    Attributes:
        method: its name.
        pieces: text of the prefill's token, then of what each round emitted.
        counts: tokens in each piece.
        moments: seconds at which each piece stood there, counted from the first one.
    """

    method: str
    pieces: tuple[str, ...]
    counts: tuple[int, ...]
    moments: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """When the text was finished."""
        return self.moments[-1]

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def pieces_at(self, moment: float) -> int:
        """How many pieces stand there at a moment; the first is always there."""
        return max(1, sum(when <= moment for when in self.moments))

    def tokens_at(self, moment: float) -> int:
        return sum(self.counts[: self.pieces_at(moment)])

    def speed_at(self, moment: float) -> float:
        """Tokens a second so far, the prefill's token not counted; 0 at the start."""
        spent = min(moment, self.seconds)
        return (self.tokens_at(moment) - 1) / spent if spent > 0 else 0.0

    def steps(self) -> list[tuple[str, int, float]]:
        """Piece, tokens and moment, one after the other."""
        return list(zip(self.pieces, self.counts, self.moments, strict=True))


def record(
    lab: Lab,
    prompt: str,
    methods: Iterable[str | Method] = RACERS,
    *,
    repeats: int = 3,
    temperature: float = 0.0,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> list[Lane]:
    """Let methods answer a prompt in turns, and note when each piece came.

    Args:
        repeats: times that each method answers; its quickest answer counts, since
            whatever else the machine does can only slow one down.
    """
    if repeats < 1:
        raise LabError(f"repeats must be 1 or more, not {repeats}.")
    chosen = [lab.method(m) if isinstance(m, str) else m for m in methods]
    settings = {"max_new_tokens": max_new_tokens, "seed": seed}
    settings["sampling"] = Sampling(temperature)
    best: dict[str, Lane] = {}
    for _ in range(repeats):
        for method in chosen:
            lane = _run(lab, method, prompt, settings)
            before = best.get(method.name)
            if before is None or lane.seconds < before.seconds:
                best[method.name] = lane
    return [best[method.name] for method in chosen]


def _run(lab: Lab, method: Method, prompt: str, settings: dict) -> Lane:
    pieces, moments = [], []

    def note(tokens: list[int]) -> None:
        moments.append(time.perf_counter())
        pieces.append(tokens)

    ids = lab.target.encode(prompt)
    decode(lab.target, method, ids, on_tokens=note, **settings)
    texts = _in_words(pieces, lab.target.tokenizer)
    since = tuple(moment - moments[0] for moment in moments)
    return Lane(method.name, texts, tuple(map(len, pieces)), since)


def _in_words(pieces: Sequence[list[int]], tokenizer) -> tuple[str, ...]:
    """Text of each piece, as what it adds to the text before it.

    A character may be spread over several tokens: it appears with the last of them.
    """
    tokens: list[int] = []
    texts, said = [], ""
    for piece in pieces:
        tokens += piece
        now = tokenizer.decode(tokens, skip_special_tokens=True).rstrip("\ufffd")
        texts.append(now[len(said) :])
        said = now
    return tuple(texts)
