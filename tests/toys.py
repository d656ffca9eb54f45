"""Toys shared by the tests: small enough to know everything about.

* A random Qwen3 target in float64 with random drafters and heads.  Nothing is
  trained, so drafts are mostly wrong; :class:`Scripted` forces right ones.
* An enumerable target: a table of next-token probabilities given the last two
  tokens.  The law of its first n tokens is a short list of numbers.
"""

import itertools
from types import SimpleNamespace

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from xpress_lab.batching import decode_batch
from xpress_lab.block_method import BlockMethod
from xpress_lab.cache import KVCache
from xpress_lab.drafters.dflash import DFlashConfig, DFlashDrafter
from xpress_lab.methods import Proposal
from xpress_lab.refiners.confidence import ConfidenceHead
from xpress_lab.refiners.markov import GatedMarkovHead, MarkovHead, RNNMarkovHead
from xpress_lab.refiners.xpress import XPressHead
from xpress_lab.target import Target, TargetOutput, at_each

VOCAB, HIDDEN, LAYERS = 40, 32, 4
MASK_ID = VOCAB - 1
PROMPT = [3, 14, 15, 9, 26]


def fill(module: torch.nn.Module, seed: int, gain: float = 1.0) -> None:
    """Random weights that keep activations near one, so that nothing is degenerate.

    Norm scales are drawn around one: a scale that is not used must show.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            if parameter.dim() == 1:
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(gain * noise / parameter.shape[-1] ** 0.5)


def tiny_target(
    tied: bool = True, dtype: torch.dtype = torch.float64, seed: int | None = None
) -> Target:
    """A random 4-layer Qwen3; the default seeds give a varied greedy text."""
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = Qwen3ForCausalLM(config).double()
    fill(model, (3 if tied else 5) if seed is None else seed, gain=2.0)
    tables = {model.get_input_embeddings().weight, model.get_output_embeddings().weight}
    with torch.no_grad():
        for table in tables:
            table *= 1.25  # a mean top probability near one half
    return Target(model.to(dtype))


def tiny_drafter(
    target: Target,
    block_size: int,
    taps: tuple[int, ...] = (0, 2),
    layers: int = 2,
    tap_norm: bool = False,
    seed: int = 2,
    anchor_first: bool = False,
) -> DFlashDrafter:
    """A random drafter for ``target``, in the target's dtype."""
    drafter = DFlashDrafter(
        DFlashConfig(
            hidden_size=HIDDEN,
            intermediate_size=40,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            vocab_size=VOCAB,
            num_target_layers=LAYERS,
            target_layer_ids=taps,
            mask_token_id=MASK_ID,
            block_size=block_size,
            rope_theta=10_000.0,
            tap_norm=tap_norm,
            sample_from_anchor=anchor_first,
        )
    ).to(target.dtype)
    fill(drafter, seed)
    return drafter.eval().requires_grad_(False)


def strong_head(
    kind: str,
    block_size: int,
    vocab: int = VOCAB,
    hidden: int = HIDDEN,
    rank: int = 6,
    dtype: torch.dtype = torch.float64,
    seed: int = 3,
    size: float = 3.0,
    inputs: int | None = None,
):
    """A random head, mixer included, whose bias has standard deviation ``size``."""
    xpress = kind == "xpress"
    inputs = inputs or vocab
    if xpress:
        head = XPressHead(hidden, vocab, block_size, rank, inputs=inputs).double()
    elif kind == "markov":
        head = MarkovHead(vocab, rank, inputs=inputs).double()
    else:
        other = {"markov-gated": GatedMarkovHead, "markov-rnn": RNNMarkovHead}[kind]
        head = other(vocab, hidden, rank, inputs=inputs).double()
    fill(head, seed)
    table = head.fuse.w1 if xpress else head.markov_w1
    read_out = head.read.w2 if xpress else head.markov_w2
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(
        (64, block_size, hidden), generator=generator, dtype=torch.float64
    )
    previous = torch.randint(inputs, (64, block_size), generator=generator)
    with torch.no_grad():
        table.weight *= 2.0 * rank**0.5
        if xpress:
            head.fuse.in_proj.weight *= 2.0
            head.mix.L *= 0.7 * block_size**0.5
        read_out.weight *= size / head(states, previous).std()
    return head.to(dtype).eval().requires_grad_(False)


def make_method(
    name: str,
    target: Target,
    block_size: int,
    passes: int | None = 3,
    candidates: int | None = None,
    **drafter,
) -> BlockMethod:
    """A bare drafter or one with a head, both random, ready to decode."""
    net = tiny_drafter(target, block_size, **drafter)
    head = None
    if name != "dflash":
        head = strong_head(name, block_size, dtype=target.dtype).fold()
    return BlockMethod(name, target, net, head, passes, candidates=candidates)


def sharp_confidence(
    hidden: int, rank: int = 0, seed: int = 6, dtype=torch.float64
) -> ConfidenceHead:
    """A random confidence head that is sure of some slots and not of others."""
    confidence = ConfidenceHead(hidden, rank).double()
    fill(confidence, seed, gain=4.0)
    confidence.proj.bias.detach().zero_()
    return confidence.to(dtype).eval().requires_grad_(False)


def generate(target: Target, prompt: list[int], count: int) -> list[int]:
    """transformers' own greedy text, with its own cache: the reference."""
    ids = torch.tensor([prompt])
    out = target.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


def full_logits(target: Target, tokens: list[int]) -> torch.Tensor:
    """``[T, V]`` logits of a fresh pass over ``tokens``, without our cache."""
    with torch.no_grad():
        return target.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


class Scripted:
    """Drafts that make the target accept exactly the scheduled counts.

    Knows the target's greedy text: the first ``a`` drafts of a round are right, the
    next is wrong, the rest are arbitrary.  With ``inner`` a real drafter runs along,
    so that its cache can be looked at; its drafts are not used.
    """

    name = "scripted"

    @property
    def budget(self) -> int:
        return self.block_size - 1

    def __init__(
        self, text: list[int], schedule, block_size: int, inner=None, wrong=None
    ):
        self.text, self.block_size, self.inner = text, block_size, inner
        self.tap_ids = () if inner is None else inner.tap_ids
        self.schedule, self.wrong = list(schedule), wrong
        self.after_draft = lambda request, drafting, hidden: None

    def describe(self) -> str:
        return "scripted"

    def begin(self, capacity: int) -> "Scripted":
        self.counts = itertools.cycle(self.schedule)
        self.drafting = None if self.inner is None else self.inner.begin(capacity)
        return self

    def propose(self, request, sampling, noise_stream, watch, keep_trace) -> Proposal:
        if self.drafting is not None:
            hidden = self.drafting.hidden_states(request)
            self.after_draft(request, self.drafting, hidden)
        keep = next(self.counts)
        drafts = []
        for slot in range(self.block_size - 1):
            place = request.start + 1 + slot
            truth = self.text[place] if place < len(self.text) else 0
            wrong = truth != self.wrong and self.wrong
            wrong = (truth + 7) % VOCAB if wrong in (False, None) else wrong
            drafts.append(truth if slot < keep else wrong)
        return Proposal(torch.tensor([drafts], dtype=torch.long))


class EnumerableTarget:
    """A target that is a table, shaped like :class:`xpress_lab.target.Target`.

    ``logits[a, b]`` are the next-token logits after the tokens a, b.  Embedding, head
    and taps are random tables, so that a real drafter can run on them; what it drafts
    has nothing to do with the table, as for any bad drafter.
    """

    def __init__(self, vocab: int = 3, hidden: int = 8, seed: int = 0):
        generator = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.logits = 1.2 * table(vocab, vocab, vocab)
        self.embedding, self.tapped = table(vocab + 1, hidden), table(vocab, hidden)
        self.read_out = 0.5 * table(vocab, hidden)
        self.vocab_size, self.hidden = vocab, hidden
        self.device, self.dtype = torch.device("cpu"), torch.float64
        self.stop_ids, self.tokenizer = (), None
        self.config = SimpleNamespace(max_position_embeddings=64)

    def new_cache(self, rows: int, capacity: int) -> KVCache:
        """One "layer": keys are places in the text, values the tokens there."""
        return KVCache(1, rows, 1, capacity, 1, dtype=self.dtype)

    def forward(
        self,
        tokens,
        cache,
        tap_ids=(),
        *,
        last_only=False,
        ends=None,
        positions=None,
        visible=None,
    ) -> TargetOutput:
        """As a one-headed attention that looks for the place before a token's own.

        Of what a token may see it finds the entries at that place and averages over
        them: a wrong mask or position gives wrong logits, as in a real model. The
        first token of a text finds itself.
        """
        new, length = tokens.shape[1], cache.length
        if positions is None:
            positions = torch.tensor(cache.lengths)[:, None] + torch.arange(new)
        if visible is None:
            visible = torch.arange(length + new) <= positions[:, :, None]
        places, seen = cache.update(
            positions[:, None, :, None].to(self.dtype),
            tokens[:, None, :, None].to(self.dtype),
            0,
        )
        cache.advance(new)
        sought = (positions - 1).clamp_min(0)[:, :, None]
        found = (visible & (places[:, 0, :, 0][:, None] == sought)).to(self.dtype)
        found = found / found.sum(-1, keepdim=True)  # nothing found: nan, never right
        kinds = torch.nn.functional.one_hot(seen[:, 0, :, 0].long(), self.vocab_size)
        before = found @ kinds.to(self.dtype)  # [N, T, V], one-hot if all is well
        logits = torch.einsum(
            "nta,ntac->ntc", before, self.logits[:, tokens].movedim(0, 2)
        )
        taps = self.tapped[tokens] if tap_ids else None
        if last_only:
            logits = logits[:, -1:] if ends is None else at_each(logits, ends)
        return TargetOutput(logits, taps)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.read_out.T

    def head_rows(self, ids: torch.Tensor):
        return self.read_out[ids], None

    def method(
        self,
        name: str,
        block_size: int,
        passes: int | None,
        draft_ids=None,
        anchor_first: bool = False,
        threshold: float = 0.0,
        costs=None,
    ) -> BlockMethod:
        """A real drafter and head on this target; the mask id has its own row."""
        drafter = DFlashDrafter(
            DFlashConfig(
                hidden_size=self.hidden,
                intermediate_size=8,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=4,
                vocab_size=self.vocab_size,
                num_target_layers=3,
                target_layer_ids=(0,),
                mask_token_id=self.vocab_size,
                block_size=block_size,
                sample_from_anchor=anchor_first,
            )
        ).double()
        fill(drafter, seed=4)
        head = confidence = None
        if name != "dflash":
            vocab = self.vocab_size if draft_ids is None else len(draft_ids)
            inputs = vocab + (draft_ids is not None)
            head = strong_head(
                name,
                block_size,
                vocab,
                self.hidden,
                rank=3,
                size=1.0,
                inputs=inputs,
            ).fold()
        if threshold or costs:
            rank = head.rank if name.startswith("markov") else 0
            confidence = sharp_confidence(self.hidden, rank)
        return BlockMethod(
            name,
            self,
            drafter.eval(),
            head,
            passes,
            draft_ids,
            confidence,
            threshold,
            costs=costs,
        )


def exact_law(table: torch.Tensor, first: int, second: int, length: int):
    """``[V ** length]`` probabilities of the next ``length`` tokens after two.

    Args:
        table: ``[V, V, V]`` next-token probabilities by the last two tokens.
    """
    vocab = table.shape[-1]
    law = []
    for word in itertools.product(range(vocab), repeat=length):
        path, chance = (first, second, *word), 1.0
        for place in range(length):
            chance *= float(table[path[place], path[place + 1], path[place + 2]])
        law.append(chance)
    return torch.tensor(law, dtype=torch.float64)


def sampled(target, method, sampling, count: int, new: int, prompt=(1, 2)) -> list:
    """Texts of seeds 0 to ``count`` - 1, many side by side: that each is the one that
    it would be alone is for test_batching to say."""
    texts = []
    for first in range(0, count, 250):
        seeds = list(range(first, min(first + 250, count)))
        prompts = [list(prompt)] * len(seeds)
        how = {"sampling": sampling, "max_new_tokens": new, "seeds": seeds}
        texts += decode_batch(target, method, prompts, **how)
    return texts


def word_index(tokens: torch.Tensor, vocab: int) -> torch.Tensor:
    """``[N, n]`` tokens to ``[N]`` places in :func:`exact_law`'s list."""
    index = torch.zeros(len(tokens), dtype=torch.long)
    for column in tokens.T:
        index = index * vocab + column
    return index


def chi_square(tokens: torch.Tensor, law: torch.Tensor, vocab: int) -> float:
    """p-value of the observed words against their exact law; rare words are pooled.

    A word of probability zero that was seen gives p = 0.
    """
    from scipy.stats import chisquare

    seen = torch.bincount(word_index(tokens, vocab), minlength=len(law)).double()
    if seen[law == 0].sum() > 0:
        return 0.0
    expected = law * len(tokens)
    rare = expected < 8
    if rare.any():
        seen = torch.cat([seen[~rare], seen[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    positive = expected > 0
    result = chisquare(seen[positive].numpy(), expected[positive].numpy())
    return float(result.pvalue)
