"""The speculative loop: draft, verify, keep what the target agrees with.

One function serves every method, whether it drafts a chain or a token tree. It loses
nothing: at T = 0 the output is the target's own greedy text, at T > 0 a sample from the
target's own distribution, whatever the drafter proposes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from xpress_lab.argmax import first_argmax
from xpress_lab.errors import LabError
from xpress_lab.methods import Method, Request
from xpress_lab.sampling import RowStreams, Sampling, Streams, draw
from xpress_lab.stopwatch import Stopwatch
from xpress_lab.target import Target
from xpress_lab.trees import placed
from xpress_lab.verification import accept

STAGES = ("draft", "refine", "tree", "verify", "accept")


@dataclass
class Round:
    """One verification.

    accepted: leading drafts that the target kept. emitted: tokens that went into
    the text, accepted + 1 unless a stop id or the budget cut them. passes: head
    evaluations. block: anchor and drafts. trace: the drafts after the seed and
    after each pass (kept on request).

    Of a token tree, ``block`` holds the anchor and all nodes. parents: of each node,
    as a place in ``block``. path: places in ``block`` of the nodes that were kept.
    scores: log of the belief that the text runs through each node. All three are empty
    for a chain.
    """

    accepted: int
    emitted: int
    passes: int
    block: list[int]
    next_token: int
    trace: list[list[int]] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@dataclass
class Generation:
    """A finished text and how it was made.

    tokens: new ids, at most ``max_new_tokens``, a stop id included if one ended it.
    rounds: one entry per verification; the first token comes from the prefill and
    belongs to none. seconds: prefill, draft, refine, tree, verify, accept.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    block_size: int = 1
    text: str = ""

    @property
    def tau(self) -> float:
        """Tokens emitted per verification, bonus included: sum emitted / rounds.

        ``nan`` for a text that the prefill alone finished.
        """
        emitted = sum(r.emitted for r in self.rounds)
        return emitted / len(self.rounds) if self.rounds else float("nan")

    @property
    def decode_seconds(self) -> float:
        """Time of the loop, prefill excluded."""
        return sum(self.seconds.get(stage, 0.0) for stage in STAGES)

    @property
    def trace(self) -> list[Round]:
        """Per round: the block at every Jacobi pass, and what was accepted."""
        return self.rounds


@dataclass
class Writer:
    """Writes a text up to its first stop id or its budget, whichever comes first."""

    text: Generation
    budget: int
    stops: frozenset[int]
    on_tokens: Callable[[list[int]], None] | None = None

    def write(self, tokens: list[int]) -> int:
        """Append what still may go in; how many tokens that were."""
        tokens = tokens[: self.budget - len(self.text.tokens)]
        stop = next((i for i, t in enumerate(tokens) if t in self.stops), len(tokens))
        tokens = tokens[: stop + 1]
        self.text.tokens += tokens
        if self.on_tokens:
            self.on_tokens(tokens)
        return len(tokens)

    @property
    def finished(self) -> bool:
        tokens = self.text.tokens
        return len(tokens) >= self.budget or tokens[-1] in self.stops

    def close(self, watch: Stopwatch, tokenizer) -> None:
        """Note the times so far and put the ids into words."""
        self.text.seconds = dict(watch.seconds)
        if tokenizer is not None:
            words = tokenizer.decode(self.text.tokens, skip_special_tokens=True)
            self.text.text = words


@torch.inference_mode()
def decode(
    target: Target,
    method: Method,
    prompt: Sequence[int],
    *,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen, so safe to share
    max_new_tokens: int = 128,
    stop_ids: Sequence[int] | None = None,
    seed: int = 0,
    on_tokens: Callable[[list[int]], None] | None = None,
    keep_trace: bool = False,
) -> Generation:
    """Continue ``prompt`` with the target's text, drafted by ``method``.

    Args:
        prompt: token ids, at least one.
        max_new_tokens: exact upper limit, in tokens.
        stop_ids: ids that end the text; by default the target's own, () for none.
        seed: of the three random streams (used at T > 0).
        on_tokens: called with each round's new ids, for streaming.
        keep_trace: keep the block of every Jacobi pass.
    """
    stops = frozenset(target.stop_ids if stop_ids is None else stop_ids)
    longest = len(prompt) + max_new_tokens
    check_request(target, prompt, max_new_tokens, longest + method.block_size)
    capacity = longest + max(method.block_size, method.budget + 1)
    streams = Streams(seed, target.device)
    watch = Stopwatch(target.device)
    text = Generation(list(prompt), block_size=method.block_size)
    writer = Writer(text, max_new_tokens, stops, on_tokens)
    cache, drafting = target.new_cache(1, capacity), method.begin(capacity)

    ids = torch.tensor([text.prompt], device=target.device)
    out = target.forward(ids, cache, method.tap_ids, last_only=True)
    anchor, taps = choose(out.logits[:, -1], sampling, streams), out.taps
    before_anchor, start = ids[:, -1], len(prompt)
    fresh = torch.cat([ids[:, 1:], anchor[:, None]], dim=1)
    writer.write(anchor.tolist())
    watch.lap("prefill")

    while not writer.finished:
        proposal = drafting.propose(
            Request(anchor, before_anchor, taps, start, fresh),
            sampling,
            streams.draft,
            watch,
            keep_trace,
        )
        block, tree = torch.cat([anchor[:, None], proposal.tokens], 1), proposal.tree
        where = {} if tree is None else placed(tree, start, target.device)
        out = target.forward(block, cache, method.tap_ids, **where)
        watch.lap("verify")

        if tree is None:
            drafts, q = proposal.tokens, proposal.q
            verdict = accept(out.logits, drafts, q, sampling, streams)
            anchor = verdict.next_token
            known = torch.cat([block[0], anchor, verdict.accepted])
            *block_ids, next_token, last = known.tolist()  # the only wait for a device
            rows, said, shape = slice(last + 1), block_ids[1 : last + 1], ()
            cache.crop(start + last + 1)  # the new anchor has not been run yet
        else:
            choices, block_ids = (
                choose(out.logits[0], sampling, streams),
                block[0].tolist(),
            )
            rows = tree.walk(choices.tolist())
            anchor, last = choices[rows[-1:]], rows[-1]
            next_token = int(anchor)
            said = [block_ids[row] for row in rows[1:]]
            shape = tree.parents, rows[1:], tree.scores
            cache.keep(start, rows)
        kept = len(said)
        emitted = writer.write([*said, next_token])
        trace = [step[0].tolist() for step in proposal.trace or []]
        text.rounds.append(
            Round(kept, emitted, proposal.passes, block_ids, next_token, trace, *shape)
        )
        start += kept + 1
        taps = None if out.taps is None else out.taps[:, rows]
        before_anchor = block[:, last]
        fresh = torch.cat([block[:, rows][:, 1:], anchor[:, None]], dim=1)
        watch.lap("accept")

    writer.close(watch, target.tokenizer)
    return text


def choose(
    logits: torch.Tensor, sampling: Sampling, streams: Streams | RowStreams
) -> torch.Tensor:
    """The target's own next token for ``[N, V]`` logits."""
    if sampling.greedy:
        return first_argmax(logits)
    return draw(sampling.probabilities(logits), streams.residual)


def check_request(target, prompt, max_new_tokens: int, capacity: int) -> None:
    """Refuse what cannot work, before any model runs."""
    if len(prompt) == 0:
        raise LabError("The prompt is empty: give at least one token.")
    if max_new_tokens < 1:
        raise LabError(f"max_new_tokens must be 1 or more, not {max_new_tokens}.")
    if min(prompt) < 0 or max(prompt) >= target.vocab_size:
        raise LabError(
            f"Prompt ids must lie in 0..{target.vocab_size - 1} for this target; "
            f"got {min(prompt)}..{max(prompt)}."
        )
    longest = getattr(target.config, "max_position_embeddings", None)
    if longest is not None and capacity > longest:
        raise LabError(
            f"Prompt of {len(prompt)} and {max_new_tokens} new tokens do not fit the "
            f"target's {longest} positions (a block of drafts included)."
        )
