"""Do token trees keep the target's law? Rules in the manner of
:mod:`xpress_lab.exactness`, with the package's own trees and their own walk.

A tree is planted on what is believed before the target speaks, so texts that begin
alike get the same tree. The target then draws its own token after *every* node, and
its draws are followed for as long as the tree holds them. The wrong rules look much
alike and have each been made somewhere.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from xpress_lab.enumerable import Joint, law_of_slot
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
        alike = replace(block, written=written)
        scores = alike.next_scores(slots)[:, depth]
        return scores.log_softmax(-1)

    return score


def by_marginals(block: Block, budget: int = BUDGET) -> TokenTree:
    """DDTree on what the drafter believes of each slot."""
    return ddtree(block.base[0].log_softmax(-1), budget)


def by_paths(block: Block, budget: int = BUDGET) -> TokenTree:
    """Every node scored by the head after its own path."""
    return grow(head_after(block), len(block.slots), budget)


def by_presto(block: Block, budget: int = BUDGET) -> TokenTree:
    """PRESTO with the head as its causal model."""
    return presto(block.base[0].log_softmax(-1), head_after(block), budget)


def paths_of(tree: TokenTree) -> list[Path]:
    """The drafts from the root to each node 0..M."""
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append((*paths[parent], token))
    return paths


def expected_kept(joint: Joint, tree: TokenTree) -> float:
    """Drafts that a walk keeps on average: the summed chance of all nodes, since the
    walk runs through a node whenever the sentence begins with its path."""
    return sum(float(joint.table[path].sum()) for path in paths_of(tree)[1:])


def node_laws(block: Block, tree: TokenTree) -> torch.Tensor:
    """``[M + 1, V]`` what the target says after the root and after each node."""
    joint, written, rows = block.joint, block.written[:1], []
    for path in paths_of(tree):
        text = torch.cat([written, torch.tensor([path], dtype=torch.long)], dim=1)
        ended = text.shape[1] == joint.table.ndim
        rows.append(the_end(joint) if ended else law_of_slot(joint, text, len(text[0])))
    return torch.cat(rows)


def the_end(joint: Joint) -> torch.Tensor:
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
        rows = len(block.written)
        drafts = [[0] * len(block.slots) for _ in range(rows)]
        accepted, own = [0] * rows, [0] * rows
        for alike, one in same_beginnings(block):
            tree = plant(one)
            law = laws(one, tree)
            law = among_children(law, tree) if narrow else law
            said = draw(law.repeat(len(alike), 1), streams.residual)
            said = said.view(len(alike), -1).tolist()
            for row, choices in zip(alike, said, strict=True):
                path = tree.walk(choices)
                for slot, node in enumerate(path[1:]):
                    drafts[row][slot] = tree.tokens[node - 1]
                accepted[row], own[row] = len(path) - 1, choices[path[-1]]
        verdict = Verdict(torch.tensor(accepted), torch.tensor(own))
        return torch.tensor(drafts), verdict

    return rule


def same_beginnings(block: Block) -> Iterator[tuple[list[int], Block]]:
    """Rows whose sentences stand at the same words, and a block of one such row."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for row, words in enumerate(block.written.tolist()):
        groups.setdefault(tuple(words), []).append(row)
    for alike in groups.values():
        yield alike, replace(block, written=block.written[alike[:1]])


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
