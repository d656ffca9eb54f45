"""The speculative loop on several texts side by side.

:func:`decode_batch` does for N rows what :func:`~xpress_lab.decoding.decode` does for
one text: a round is one proposal and one target call for all of them. Rows part at
once, for each advances by as many drafts as the target accepted of its own. What keeps
a row's text what it would be alone:

- A row has its own length in each cache, its own positions, and a mask that ends at
  them. Shorter prompts and shorter stretches of new context are padded on the right,
  where no token of the row looks; roll-back forgets padding and rejected drafts alike.
- A row draws from its own three random streams, as many numbers as it would alone.
- A finished row leaves, and the last row moves into its place: the batch shrinks, so
  what has ended costs nothing.

Apart from rounding, then, a row's tokens are those of ``decode`` with its seed (but
where a schedule of drafts looks at the whole batch and T > 0: there its law is).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from xpress_lab.decoding import Generation, Round, Writer, check_request, choose
from xpress_lab.errors import LabError
from xpress_lab.methods import Method, Proposal, Request
from xpress_lab.sampling import RowStreams, Sampling, Streams
from xpress_lab.stopwatch import Stopwatch
from xpress_lab.target import Target
from xpress_lab.verification import Verdict, accept


@dataclass
class Row:
    """A text that is being written, and its random streams."""

    writer: Writer
    streams: Streams


@torch.inference_mode()
def decode_batch(
    target: Target,
    method: Method,
    prompts: Sequence[Sequence[int]],
    *,
    sampling: Sampling = Sampling(),  # noqa: B008  frozen, so safe to share
    max_new_tokens: int | Sequence[int] = 128,
    stop_ids: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    keep_trace: bool = False,
) -> list[Generation]:
    """Continue each prompt with the target's text; texts in the prompts' order.

    Args:
        prompts: token ids, of any lengths.
        max_new_tokens: exact upper limit, one for all or one a prompt.
        stop_ids: ids that end a text; by default the target's own, () for none.
        seeds: of each prompt's random streams, by default 0, 1, 2, ...
        keep_trace: keep the blocks of every Jacobi pass.

    Returns:
        Generations as :func:`~xpress_lab.decoding.decode` makes them, but that
        ``seconds`` are the batch's until the text left it, and that ``passes`` of a
        round are the batch's too: they go on until its last row has settled.

    Raises:
        LabError: for methods that draft trees, and for what ``decode`` refuses.
    """
    even = isinstance(max_new_tokens, int)
    budgets = [max_new_tokens] * len(prompts) if even else list(max_new_tokens)
    seeds = range(len(prompts)) if seeds is None else seeds
    check_batch(target, method, prompts, budgets, seeds)
    stops = frozenset(target.stop_ids if stop_ids is None else stop_ids)
    rows = [
        Row(
            Writer(
                Generation(list(prompt), block_size=method.block_size), budget, stops
            ),
            Streams(seed, target.device),
        )
        for prompt, budget, seed in zip(prompts, budgets, seeds, strict=True)
    ]
    texts = [row.writer.text for row in rows]
    longest = max(len(p) + budget for p, budget in zip(prompts, budgets, strict=True))
    watch = Stopwatch(target.device)
    cache = target.new_cache(len(rows), longest + method.block_size)
    # A drafter writes its block behind the padding of its new context.
    drafting = method.begin(longest + 2 * method.block_size, len(rows))

    lengths = [len(prompt) for prompt in prompts]
    tokens = padded(prompts, target.device)
    ends = torch.tensor(lengths, device=target.device) - 1
    out = target.forward(tokens, cache, method.tap_ids, last_only=True, ends=ends)
    cache.crop(lengths)
    anchor = choose(out.logits[:, -1], sampling, streams_of(rows))
    for row, token in zip(rows, anchor.tolist(), strict=True):
        row.writer.write([token])
    request = request_after(tokens, ends, anchor, out.taps, lengths)
    watch.lap("prefill")

    while rows:
        finished = [row.writer.finished for row in rows]
        if any(finished):
            for row in rows:
                if row.writer.finished:
                    row.writer.close(watch, target.tokenizer)
            left = close_gaps(finished)
            cache.keep_rows(left)
            drafting.keep_rows(left)
            rows, request = [rows[i] for i in left], request_of(request, left)
            watch.lap("accept")
            continue

        streams = streams_of(rows)
        proposal = drafting.propose(request, sampling, streams.draft, watch, keep_trace)
        block = torch.cat([request.anchor[:, None], proposal.tokens], dim=1)
        out = target.forward(block, cache, method.tap_ids)
        watch.lap("verify")

        drafts, q, counts = proposal.tokens, proposal.q, proposal.counts
        verdict = accept(out.logits, drafts, q, sampling, streams, counts)
        kept = verdict.accepted.tolist()
        starts = [start + k + 1 for start, k in zip(request.starts, kept, strict=True)]
        cache.crop(starts)  # the new anchors have not been run yet
        record(rows, proposal, block, verdict)
        request = request_after(block, *verdict, out.taps, starts)
        watch.lap("accept")
    return texts


def check_batch(target, method, prompts, budgets, seeds) -> None:
    """Refuse what cannot work, before any model runs."""
    if not prompts:
        raise LabError("There are no prompts: give at least one.")
    if not method.batched:
        raise LabError(
            f"{method.name} drafts token trees, which are verified one text at a time: "
            "decode the prompts one by one, or choose a method that drafts chains."
        )
    for what, given in (("values of max_new_tokens", budgets), ("seeds", seeds)):
        if len(given) != len(prompts):
            raise LabError(
                f"There are {len(given)} {what} for {len(prompts)} prompts: "
                "give one a prompt, or leave the choice."
            )
    for prompt, budget in zip(prompts, budgets, strict=True):
        check_request(target, prompt, budget, len(prompt) + budget + method.block_size)


def padded(prompts: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """``[N, longest]`` ids; the filler on the right is behind all that is looked at."""
    width = max(map(len, prompts))
    rows = [[*prompt, *[0] * (width - len(prompt))] for prompt in prompts]
    return torch.tensor(rows, device=device)


def streams_of(rows: list[Row]) -> RowStreams:
    return RowStreams([row.streams for row in rows])


def request_after(
    tokens: torch.Tensor,
    last: torch.Tensor,
    anchor: torch.Tensor,
    taps: torch.Tensor | None,
    starts: list[int],
) -> Request:
    """What the next proposal may depend on.

    Args:
        tokens: ``[N, T]`` what the target has just run, with ``taps`` ``[N, T, n*H]``.
        last: ``[N]`` the last of them that a row keeps.
        anchor: ``[N]`` the target's own token after it.
        starts: of each row, where that token stands.
    """
    places, longest = last[:, None], int(last.max()) + 1
    fresh = tokens.roll(-1, dims=1).scatter(1, places, anchor[:, None])
    return Request(
        anchor,
        tokens.gather(1, places).squeeze(1),
        None if taps is None else taps[:, :longest].contiguous(),
        starts,
        fresh[:, :longest],
    )


def request_of(request: Request, rows: list[int]) -> Request:
    """The same for some of the rows."""
    return Request(
        request.anchor[rows],
        request.before_anchor[rows],
        None if request.taps is None else request.taps[rows],
        [request.starts[row] for row in rows],
        request.fresh[rows],
    )


def close_gaps(finished: list[bool]) -> list[int]:
    """Which row stands in each place once the finished ones have left: the last rows
    fill the gaps, all others stay where they are."""
    left = [row for row, done in enumerate(finished) if not done]
    late = [row for row in left if row >= len(left)]
    return [late.pop() if finished[place] else place for place in range(len(left))]


def record(
    rows: list[Row], proposal: Proposal, block: torch.Tensor, verdict: Verdict
) -> None:
    """Write what each row's verification said, and note the round."""
    passes = [step.tolist() for step in proposal.trace or []]
    said = zip(block.tolist(), *(v.tolist() for v in verdict), strict=True)
    for number, (ids, accepted, next_token) in enumerate(said):
        if proposal.counts is not None:
            ids = ids[: proposal.counts[number] + 1]
        writer = rows[number].writer
        emitted = writer.write([*ids[1 : accepted + 1], next_token])
        trace = [step[number][: len(ids) - 1] for step in passes]
        writer.text.rounds.append(
            Round(accepted, emitted, proposal.passes, ids, next_token, trace)
        )
