"""Is what speculation emits the target's law? Rules that are right, and wrong ones.

The target is a :class:`~xpress_lab.enumerable.Joint`, so the law of whole sentences is
a short list of numbers and a chi-square test can see any error. The drafter knows each
slot's law given the words written so far, but underrates half of the words that a slot
can take; its causal head hears the drafted words too, but only in part. So drafts are
good and not perfect.

A *rule* drafts a block and judges it. The right ones are those of the loop. The wrong
ones each contain one mistake that real systems have made; none of them shows in the
text, only in how often it is said.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from xpress_lab.enumerable import Joint, law_of_slot
from xpress_lab.jacobi import Solution, pick, solve
from xpress_lab.sampling import Streams, draw, gumbel_noise
from xpress_lab.verification import (
    Verdict,
    accept_by_rejection,
    accept_exact_match,
)

PARTIAL = 0.4  # weight that the drafter leaves to every second word of a slot
FEW = 8  # words expected less often than this are counted together


@dataclass(frozen=True)
class Block:
    """N sentences of which the first n words stand; the other S are to be drafted.

    written: ``[N, n]`` places in the vocabularies. hearing: how much of a drafted word
    the head takes in, 0 (the bare drafter) to 1 (exact conditionals).
    """

    joint: Joint
    written: torch.Tensor
    passes: int
    hearing: float = 0.5

    @property
    def slots(self) -> range:
        return range(self.written.shape[1], self.joint.table.ndim)

    @property
    def base(self) -> torch.Tensor:
        """Log law of each slot given the written words alone, tilted: ``[N, S, V]``."""
        rows = [law_of_slot(self.joint, self.written, slot) for slot in self.slots]
        law = torch.stack(rows, dim=1)
        law[..., 1::2] *= PARTIAL
        return (law / law.sum(dim=-1, keepdim=True)).log()

    def conditionals(self, drafts: torch.Tensor) -> torch.Tensor:
        """Exact law of each slot given all words before it, ``[N, S, V]``."""
        path = torch.cat([self.written, drafts], dim=1)
        rows = [law_of_slot(self.joint, path[:, :slot], slot) for slot in self.slots]
        return torch.stack(rows, dim=1)

    def refine(self, previous: torch.Tensor) -> torch.Tensor:
        """The head, in the solver's terms: its entries 0 and 1 are not read."""
        heard = self.conditionals(torch.cat([previous[:, 2:], previous[:, :1]], dim=1))
        return torch.lerp(self.base.exp(), heard, self.hearing).log()

    def noise(self, stream: torch.Generator) -> torch.Tensor:
        return gumbel_noise(tuple(self.base.shape), stream, dtype=torch.float64)

    def next_scores(self, drafts: torch.Tensor) -> torch.Tensor:
        """What one more pass over ``drafts`` would choose from, ``[N, S, V]``."""
        unread = torch.zeros(len(drafts), 2, dtype=torch.long)
        return self.refine(torch.cat([unread, drafts[:, :-1]], dim=1))

    def solve(self, noise: torch.Tensor | None) -> Solution:
        """K passes: sampled with frozen noise, or by argmax without."""
        ends = torch.zeros(len(self.written), dtype=torch.long)
        return solve(
            self.refine,
            self.base,
            ends,
            ends,
            passes=self.passes,
            noise=noise,
            keep_trace=True,
        )

    def target_rows(self, drafts: torch.Tensor) -> torch.Tensor:
        """``[N, S + 1, V]`` what the target says; behind the end there is one word."""
        p = self.conditionals(drafts)
        end = torch.zeros_like(p[:, :1])
        end[..., 0] = 1
        return torch.cat([p, end], dim=1)


Rule = Callable[[Block, Streams], tuple[torch.Tensor, Verdict]]


def frozen_noise(block: Block, streams: Streams):
    """Drafts drawn with frozen Gumbel noise; q from the scores that drew them."""
    drafted = block.solve(block.noise(streams.draft))
    p, q = block.target_rows(drafted.tokens), drafted.scores.softmax(-1)
    return drafted.tokens, accept_by_rejection(p, q, drafted.tokens, streams)


def fresh_noise(block: Block, streams: Streams):
    """New noise in every pass; q from the last pass."""
    scores = block.base
    drafts = pick(scores, block.noise(streams.draft))
    for _ in range(block.passes):
        scores = block.next_scores(drafts)
        drafts = pick(scores, block.noise(streams.draft))
    p = block.target_rows(drafts)
    return drafts, accept_by_rejection(p, scores.softmax(-1), drafts, streams)


def likeliest_words(block: Block, streams: Streams):
    """Argmax drafts with a one-hot q."""
    drafts = block.solve(None).tokens
    return drafts, accept_by_rejection(block.target_rows(drafts), None, drafts, streams)


def exact_match(block: Block, streams: Streams):
    """Argmax drafts, kept while they equal the target's own draws."""
    drafts = block.solve(None).tokens
    return drafts, accept_exact_match(block.target_rows(drafts), drafts, streams)


def likeliest_words_soft_q(block: Block, streams: Streams):
    """Wrong: argmax drafts are scored as if they had been drawn."""
    drafted = block.solve(None)
    p, q = block.target_rows(drafted.tokens), drafted.scores.softmax(-1)
    return drafted.tokens, accept_by_rejection(p, q, drafted.tokens, streams)


def q_one_pass_late(block: Block, streams: Streams):
    """Wrong unless the block has settled: q belongs to the next pass."""
    drafts = block.solve(block.noise(streams.draft)).tokens
    late = block.next_scores(drafts).softmax(-1)
    return drafts, accept_by_rejection(block.target_rows(drafts), late, drafts, streams)


def noise_decides_again(block: Block, streams: Streams):
    """Wrong: the noise that chose a draft also decides whether it is kept."""
    noise = block.noise(streams.draft)
    drafted = block.solve(noise)
    drafts, q = drafted.tokens, drafted.scores.softmax(-1)
    p, chosen = block.target_rows(drafts), drafts[..., None]
    ratio = (p[:, :-1].gather(2, chosen) / q.gather(2, chosen)).squeeze(2)
    uniform = (-(-noise.gather(2, chosen).squeeze(2)).exp()).exp()
    accepted = (uniform < ratio).long().cumprod(dim=1).sum(dim=1)
    law = _replacement_law(p, q, accepted)
    return drafts, Verdict(accepted, draw(law, streams.residual))


def noise_replaces(block: Block, streams: Streams):
    """Wrong: the noise that chose a rejected draft also draws what replaces it."""
    noise = block.noise(streams.draft)
    drafted = block.solve(noise)
    p, q = block.target_rows(drafted.tokens), drafted.scores.softmax(-1)
    verdict = accept_by_rejection(p, q, drafted.tokens, streams)
    law = _replacement_law(p, q, verdict.accepted)
    slot = verdict.accepted.clamp_max(noise.shape[1] - 1)
    again = pick(law.log(), noise[torch.arange(len(noise)), slot])
    rejected = verdict.accepted < noise.shape[1]
    return drafted.tokens, Verdict(
        verdict.accepted, torch.where(rejected, again, verdict.next_token)
    )


def _replacement_law(p, q, accepted) -> torch.Tensor:
    """``[N, V]``: max(p - q, 0) at the rejected slot; p behind the last."""
    rows, slots = torch.arange(len(p)), q.shape[1]
    law = p[rows, accepted]
    left = (law - q[rows, accepted.clamp_max(slots - 1)]).clamp_min(0)
    rejected = (accepted < slots) & (left.sum(dim=-1) > 0)
    return torch.where(rejected[:, None], left, law)


RIGHT: dict[str, Rule] = {
    "drawn, frozen noise": frozen_noise,
    "argmax, one-hot q": likeliest_words,
    "argmax, exact match": exact_match,
}
WRONG: dict[str, Rule] = {
    "argmax scored with a soft q": likeliest_words_soft_q,
    "q from one pass later": q_one_pass_late,
    "noise decides again": noise_decides_again,
    "noise draws the replacement": noise_replaces,
}


def speculate(
    joint: Joint,
    rule: Rule,
    passes: int,
    rows: int,
    seed: int = 0,
    hearing: float = 0.5,
) -> torch.Tensor:
    """``[rows, S]`` sentences, each written round by round until it is whole.

    All texts with n words go through their round together; every round adds a word or
    more, so n = 0, 1, 2, ... meets every text that still lacks words.
    """
    streams, slots = Streams(seed), joint.table.ndim
    text = torch.zeros(rows, slots, dtype=torch.long)
    count = torch.zeros(rows, dtype=torch.long)
    for n in range(slots):
        now = (count == n).nonzero().squeeze(1)
        if not len(now):
            continue
        drafts, verdict = rule(Block(joint, text[now, :n], passes, hearing), streams)
        said = torch.cat([drafts, verdict.next_token[:, None]], dim=1)
        said.scatter_(1, verdict.accepted[:, None], verdict.next_token[:, None])
        text[now, n:] = said[:, : slots - n]  # what lies past the verdict comes again
        count[now] += verdict.accepted + 1
    return text


def calibration(
    joint: Joint, passes: int, rows: int, seed: int = 0, hearing: float = 0.5
) -> pd.DataFrame:
    """Drafted words against q, in groups of blocks that agree on all words before.

    Blocks whose words before a slot are the same, both in the drafts and in the pass
    before, share that slot's q. One row per group and word; columns: slot (0-based),
    blocks, word, q, late_q (the next pass's), share (of blocks that drafted the word).
    """
    nothing = torch.empty(rows, 0, dtype=torch.long)
    block = Block(joint, nothing, passes, hearing)
    drafted = block.solve(block.noise(Streams(seed).draft))
    before, now = drafted.trace[-2:] if passes else [drafted.tokens] * 2
    q, late = drafted.scores.softmax(-1), block.next_scores(now).softmax(-1)
    lines, alike = [], torch.zeros(rows, 1, dtype=torch.long)
    for slot in block.slots:
        words = torch.cat([alike, before[:, :slot], now[:, :slot]], dim=1)
        groups = words.unique(dim=0, return_inverse=True)[1]
        for group in groups.unique():
            own = (groups == group).nonzero().squeeze(1)
            seen = torch.bincount(now[own, slot], minlength=q.shape[-1])
            for word in (q[own[0], slot] > 0).nonzero().flatten().tolist():
                lines.append(
                    {
                        "slot": slot,
                        "blocks": len(own),
                        "word": word,
                        "q": float(q[own[0], slot, word]),
                        "late_q": float(late[own[0], slot, word]),
                        "share": float(seen[word]) / len(own),
                    }
                )
    return pd.DataFrame(lines)


def counts(joint: Joint, sentences: torch.Tensor) -> np.ndarray:
    """How often each sentence came up, in the shape of the joint's table."""
    seen = np.zeros(joint.table.shape, dtype=int)
    np.add.at(seen, tuple(sentences.T.numpy()), 1)
    return seen


def p_value(seen: np.ndarray, law: np.ndarray) -> float:
    """Chance of counts at least this far from a law that they follow (chi-square).

    Outcomes that are expected less than :data:`FEW` times are counted together. An
    impossible outcome gives 0.
    """
    seen, law = np.ravel(seen).astype(float), np.ravel(law)
    if seen[law == 0].any():
        return 0.0
    expected = law * seen.sum()
    rare = expected < FEW
    if rare.any():
        seen = np.append(seen[~rare], seen[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    if len(seen) < 2:
        return 1.0  # nothing to disagree about
    distance = ((seen - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(seen) - 1) / 2, distance / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
