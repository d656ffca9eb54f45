"""Do token trees keep the target's law? Rules in the manner of
:mod:`xpress_lab.exactness`, with the package's own trees and their own walk.

A tree is planted on what is believed before the target speaks, so texts that begin
alike get the same tree. The target then draws its own token after *every* node, and
its draws are followed for as long as the tree holds them. The wrong rules look much
alike and have each been made somewhere.
"""

from collections.abc import Callable

import torch

from xpress_lab.enumerable import law_of_slot
from xpress_lab.exactness import Block, Rule
from xpress_lab.sampling import Streams, draw
from xpress_lab.trees import Path, TokenTree, ddtree, grow, presto
from xpress_lab.verification import Verdict

BUDGET = 6
Plant = Callable[[Block], TokenTree]


def head_after(block: Block) -> Callable[[list[Path]], torch.Tensor]:
    """The head's log-probabilities ``[F, V]`` after each of F paths of one length."""

    def score(paths: list[Path]) -> torch.Tensor:
        rows, depth = len(paths), len(paths[0])
        slots = torch.zeros(rows, len(block.slots), dtype=torch.long)
        slots[:, :depth] = torch.tensor(paths).reshape(rows, depth)
        written = block.written[:1].expand(rows, -1)
        alike = Block(block.joint, written, block.passes, block.hearing)
        scores = alike.next_scores(slots)[:, depth]
        return scores.log_softmax(-1)

    return score


def by_marginals(block: Block) -> TokenTree:
    """DDTree on what the drafter believes of each slot."""
    return ddtree(block.base[0].log_softmax(-1), BUDGET)


def by_paths(block: Block) -> TokenTree:
    """Every node scored by the head after its own path."""
    return grow(head_after(block), len(block.slots), BUDGET)


def by_presto(block: Block) -> TokenTree:
    """PRESTO with the head as its causal model."""
    return presto(block.base[0].log_softmax(-1), head_after(block), BUDGET)


def node_laws(block: Block, tree: TokenTree) -> torch.Tensor:
    """``[M + 1, V]`` what the target says after the root and after each node."""
    joint, written = block.joint, block.written[:1]
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    rows = []
    for path in paths:
        text = torch.cat([written, torch.tensor([path], dtype=torch.long)], dim=1)
        ended = text.shape[1] == joint.table.ndim
        rows.append(the_end(joint) if ended else law_of_slot(joint, text, len(text[0])))
    return torch.cat(rows)


def the_end(joint) -> torch.Tensor:
    """``[1, V]`` behind the last slot there is one word, and it is not counted."""
    law = torch.zeros(1, max(joint.table.shape), dtype=torch.float64)
    law[0, 0] = 1
    return law


def walked(plant: Plant, laws=node_laws, narrow: bool = False) -> Rule:
    """A rule of :func:`xpress_lab.exactness.speculate` that follows a tree.

    Args:
        plant: the tree of texts that begin as ``block``'s first one does.
        laws: what the target is taken to say after each node.
        narrow: draw among the children alone where a node has any, which is wrong.
    """

    def rule(block: Block, streams: Streams) -> tuple[torch.Tensor, Verdict]:
        rows, slots = len(block.written), len(block.slots)
        drafts = torch.zeros(rows, slots, dtype=torch.long)
        accepted, own = torch.zeros(2, rows, dtype=torch.long)
        begun = torch.cat([torch.zeros(rows, 1, dtype=torch.long), block.written], 1)
        groups = begun.unique(dim=0, return_inverse=True)[1]
        for group in groups.unique():
            alike = (groups == group).nonzero().squeeze(1)
            one = Block(
                block.joint, block.written[alike[:1]], block.passes, block.hearing
            )
            tree = plant(one)
            law = laws(one, tree)
            law = among_children(law, tree) if narrow else law
            said = draw(law.repeat(len(alike), 1), streams.residual)
            for row, choices in zip(
                alike.tolist(), said.view(len(alike), -1).tolist(), strict=True
            ):
                path = tree.walk(choices)
                tokens = [tree.tokens[node - 1] for node in path[1:]]
                drafts[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.long)
                accepted[row], own[row] = len(tokens), choices[path[-1]]
        return drafts, Verdict(accepted, own)

    return rule


def among_children(law: torch.Tensor, tree: TokenTree) -> torch.Tensor:
    """The law of each node's children, where it has any."""
    mask = torch.zeros_like(law)
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        mask[parent, token] = 1
    mask[mask.sum(-1) == 0] = 1
    kept = law * mask
    return torch.where(kept.sum(-1, keepdim=True) > 0, kept, law)


def laws_of_first_children(block: Block, tree: TokenTree) -> torch.Tensor:
    """Wrong: each node is judged as if it were its parent's first child, as with a
    mask or a position that mixes up siblings."""
    first = {}
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        first.setdefault(parent, token)
    alike = [first[parent] for parent in tree.parents]
    return node_laws(block, TokenTree(alike, tree.parents, tree.scores))


RIGHT: dict[str, Rule] = {
    "DDTree on marginals": walked(by_marginals),
    "tree by paths": walked(by_paths),
    "PRESTO with the head": walked(by_presto),
}
WRONG: dict[str, Rule] = {
    "drawn among the children only": walked(by_marginals, narrow=True),
    "siblings mixed up": walked(by_marginals, laws_of_first_children),
}
