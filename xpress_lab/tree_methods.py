"""Methods that draft token trees: DDTree and PRESTO, on a drafter alone or with xPress.

A tree method drafts a block as its chain does and then plants a tree on what the
drafter believes. xPress and trees can meet in three ways (methods 4.3):

- *refined marginals*: K Jacobi passes, the last refined logits into DDTree. Right on
  the main path; off it the logits are conditioned on the wrong prefix.
- *paths*: the head evaluated after each path of the tree, all paths of a level in one
  batch. Every node is scored after its own prefix, and no pass is needed.
- *PRESTO*: the head's conditional as the auxiliary, the base marginals as q.

Building a tree draws no random numbers, so its walk at T > 0 has nothing to reuse.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from xpress_lab.block_method import BlockDrafting, BlockMethod
from xpress_lab.errors import LabError
from xpress_lab.methods import Proposal
from xpress_lab.ngram import NGram
from xpress_lab.trees import (
    AUXILIARY_WEIGHT,
    Path,
    Score,
    TokenTree,
    ddtree,
    grow,
    presto,
)

RESCORINGS = ("marginals", "paths")


class Beliefs(NamedTuple):
    """What a drafted block says about the target's text, in draft ids.

    marginals: ``[S, D]`` log-probabilities of each slot, blind to the path.
    conditional: the head's log-probabilities after each path, ``None`` without a head.
    before: two *target* ids, the token before the anchor and the anchor.
    """

    marginals: torch.Tensor
    conditional: Score | None
    before: Path


Plant = Callable[[Beliefs, int], TokenTree]


class TreeMethod:
    """A chain's drafter, whose beliefs become a tree of ``budget`` drafts.

    Args:
        name: how results call it.
        chain: the method that drafts the block; its passes K refine the marginals,
            K = 0 leaves them the drafter's own.
        plant: makes the tree from :class:`Beliefs`.
        budget: M, by default the chain's own number of drafts, so that the target
            verifies as many tokens. 0 or less drafts nothing.
        how: says the kind of tree in one or two words.
    """

    batched = False  # a tree's mask and its walk are one text's

    def __init__(
        self,
        name: str,
        chain: BlockMethod,
        plant: Plant,
        budget: int | None = None,
        how: str = "",
    ):
        self.name, self.chain, self.plant, self.how = name, chain, plant, how
        self.block_size, self.tap_ids = chain.block_size, chain.tap_ids
        self.budget = chain.budget if budget is None else max(budget, 0)

    def begin(self, capacity: int) -> "TreeDrafting":
        return TreeDrafting(self, capacity)

    def describe(self) -> str:
        tree = f"tree of {self.budget} drafts by {self.how}"
        return f"{self.name}: {tree}, on {self.chain.describe()}"


class TreeDrafting(BlockDrafting):
    """A chain's drafting up to its logits; then a tree instead of a chain."""

    def __init__(self, method: TreeMethod, capacity: int):
        super().__init__(method.chain, capacity)
        self.tree_method = method

    def propose(self, request, sampling, noise_stream, watch, keep_trace) -> Proposal:
        borrowed, plan = self.method.borrowed, self.tree_method
        hidden, base = self.draft(request)
        watch.lap("draft")
        scores, passes, trace = base, 0, []
        if self.method.head is not None and self.method.passes != 0:
            solution = self._solve(hidden, base, request, None, None, keep_trace)
            scores, passes, trace = solution.scores, solution.passes, solution.trace
        watch.lap("refine")

        temperature = 1.0 if sampling.greedy else sampling.temperature
        beliefs = Beliefs(
            log_probs(scores[0], temperature),
            self._conditional(hidden, base, request, temperature),
            (int(request.before_anchor), int(request.anchor)),
        )
        tree = plan.plant(beliefs, plan.budget)
        ids = torch.tensor([tree.tokens], dtype=torch.long, device=base.device)
        tokens = borrowed.to_target(ids)
        tree = TokenTree(tokens[0].tolist(), tree.parents, tree.scores)
        watch.lap("tree")
        trace = [borrowed.to_target(step) for step in trace]
        return Proposal(tokens, None, passes, trace, tree)

    def _conditional(self, hidden, base, request, temperature) -> Score | None:
        """The head's law after each path; the hidden part is prepared once for all."""
        head, to_draft = self.method.head, self.method.borrowed.to_draft
        if not hasattr(head, "bias_after"):
            return None
        prepared = None
        before = to_draft(torch.cat([request.before_anchor, request.anchor])).tolist()

        def conditional(paths: list[Path]) -> torch.Tensor:
            nonlocal prepared
            if prepared is None:
                prepared = head.prepare(hidden)
            previous = torch.tensor([(*before, *p) for p in paths], device=base.device)
            bias = head.bias_after(prepared, previous)
            return log_probs(base[:, len(paths[0])] + bias, temperature)

        return conditional


def log_probs(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """What logits believe about the target's token at this temperature."""
    logits = logits if temperature == 1 else logits / temperature
    return logits.log_softmax(dim=-1)


def by_marginals(beliefs: Beliefs, budget: int) -> TokenTree:
    """DDTree on each slot's marginals."""
    return ddtree(beliefs.marginals, budget)


def by_paths(beliefs: Beliefs, budget: int) -> TokenTree:
    """The most likely paths under the head's own conditionals."""
    return grow(beliefs.conditional, len(beliefs.marginals), budget)


def by_head(
    beliefs: Beliefs, budget: int, weight: float = AUXILIARY_WEIGHT
) -> TokenTree:
    """PRESTO with the head's conditional as its causal model."""
    return presto(beliefs.marginals, beliefs.conditional, budget, weight)


class ByNGram:
    """PRESTO with a 3-gram as its causal model.

    Args:
        draft_ids: ``[D]`` target ids of the draft vocabulary, ``None`` for all.
    """

    def __init__(
        self,
        ngram: NGram,
        draft_ids: torch.Tensor | None = None,
        weight: float = AUXILIARY_WEIGHT,
    ):
        self.ngram, self.draft_ids, self.weight = ngram, draft_ids, weight
        self.target_ids = None if draft_ids is None else draft_ids.tolist()

    def __call__(self, beliefs: Beliefs, budget: int) -> TokenTree:
        ids = self.draft_ids

        def auxiliary(paths: list[Path]) -> torch.Tensor:
            if ids is not None:
                paths = [[self.target_ids[d] for d in path] for path in paths]
            rows = self.ngram.log_probs([(*beliefs.before, *p)[-2:] for p in paths])
            rows = rows.to(beliefs.marginals)
            return rows if ids is None else rows[:, ids]

        return presto(beliefs.marginals, auxiliary, budget, self.weight)


def tree_method(
    name: str,
    chain: BlockMethod,
    budget: int | None = None,
    rescoring: str = "marginals",
    ngram: Callable[[], NGram] | None = None,
) -> TreeMethod:
    """A method by its name, ``CHAIN+ddtree`` or ``CHAIN+presto``.

    Args:
        chain: made with K = 0 unless :func:`uses_passes`.
        rescoring: of ``xpress+ddtree``, ``marginals`` or ``paths``.
        ngram: called for the auxiliary of a chain without a head.
    """
    if name.endswith("+ddtree"):
        if rescoring == "paths":
            return TreeMethod(name, chain, by_paths, budget, "paths")
        return TreeMethod(name, chain, by_marginals, budget, "marginals")
    if chain.head is not None:
        return TreeMethod(name, chain, by_head, budget, "marginals and the head")
    plant = ByNGram(ngram(), chain.borrowed.draft_ids)
    return TreeMethod(name, chain, plant, budget, "marginals and a 3-gram")


def uses_passes(name: str, rescoring: str = "marginals") -> bool:
    """Whether a method's drafts depend on K."""
    return name == "xpress" or (name == "xpress+ddtree" and rescoring == "marginals")


def check_rescoring(name: str, rescoring: str) -> None:
    """Refuse an unknown rescoring, or one that a method has no head for."""
    if rescoring not in RESCORINGS:
        raise LabError(
            f"Unknown rescoring {rescoring!r}: use {' or '.join(RESCORINGS)}."
        )
    if rescoring == "paths" and name != "xpress+ddtree":
        raise LabError(f"Rescoring by paths is for xpress+ddtree, not for {name}.")
