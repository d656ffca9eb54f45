"""Token trees: several drafts for one place, verified by the same target call.

A chain bets on one continuation; what stands behind its first wrong draft is lost. A
tree spreads the same number of drafts over several continuations. Each node is a
draft, and the nodes above it are the text that it presumes. The target sees all nodes
at once, every node its own path only. Then its own tokens are followed downwards for
as long as the tree holds them: greedy text stays the target's greedy text, and at
T > 0 every token emitted is a draw from the target given the tokens before it,
whatever tree was built (methods 4.1).

Which tree? The one whose M nodes are most likely to be reached, under some belief
about the target. :func:`ddtree` believes the slots' marginals, as if slots were
independent; :func:`presto` lets a causal model correct them; :func:`grow` takes any
belief that is given a prefix.

Shapes: S = B - 1 drafted slots, V tokens that can be drafted, M nodes, F prefixes.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from xpress_lab.errors import LabError

# Log-probabilities [F, V] of the token after each prefix [F, k] of k drafts.
Score = Callable[[torch.Tensor], torch.Tensor]

AUXILIARY_WEIGHT = 0.2  # of PRESTO's causal model; the best value of its authors


@dataclass(frozen=True)
class TokenTree:
    """Drafts that share prefixes. Node 0 is the root, the anchor; 1..M are drafts.

    tokens: of nodes 1..M. parents: theirs, each before its children. scores: log of
    the belief that the target's text runs through the node.
    """

    tokens: list[int]
    parents: list[int]
    scores: list[float]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def depths(self) -> list[int]:
        """Of nodes 0..M; a node stands ``depth`` places behind the anchor."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return depths

    def visible(self) -> torch.Tensor:
        """``[M + 1, M + 1]`` booleans: a node sees the root, its ancestors, itself."""
        sees = np.eye(len(self) + 1, dtype=bool)
        for node, parent in enumerate(self.parents, start=1):
            sees[node] |= sees[parent]
        return torch.from_numpy(sees)

    def walk(self, choices: Sequence[int]) -> list[int]:
        """Nodes from the root down, following the target's token at each.

        Args:
            choices: the target's token after each node 0..M.

        Returns:
            At least the root. The choice at the last node is the next anchor.
        """
        edges = zip(self.parents, self.tokens, strict=True)
        child = {edge: node for node, edge in enumerate(edges, start=1)}
        path = [0]
        while (node := child.get((path[-1], choices[path[-1]]))) is not None:
            path.append(node)
        return path


def placed(tree: TokenTree, start: int, device) -> dict[str, torch.Tensor]:
    """Where the target finds anchor and nodes: arguments of ``Target.forward``.

    positions ``[1, M + 1]``: ``start`` + depth. visible ``[1, M + 1, start + M + 1]``:
    the whole text so far, and of the tree what each node may see.
    """
    past = torch.ones(len(tree) + 1, start, dtype=torch.bool)
    visible = torch.cat([past, tree.visible()], dim=1)
    positions = start + torch.tensor(tree.depths)
    return {
        "positions": positions[None].to(device),
        "visible": visible[None].to(device),
    }


def ddtree(log_probs: torch.Tensor, budget: int) -> TokenTree:
    """The best tree if slots were independent (DDTree, methods 4.1).

    Best first: a node's successors are its next sibling and its first child. Neither
    scores higher than the node, so nodes leave the queue in order of their score and
    the first M are the M most likely prefixes.

    Args:
        log_probs: ``[S, V]`` log-probabilities of each slot.
        budget: M; the tree has fewer nodes only if there are no more of any chance.
            0 or less leaves the root alone.
    """
    slots, vocab = log_probs.shape
    if budget <= 0 or slots == 0:
        return TokenTree([], [], [])
    best, ids = log_probs.topk(min(budget, vocab), dim=-1)
    best, ids = best.tolist(), ids.tolist()
    tree = TokenTree([], [], [])
    # (-score, ranks along the path, parent); among equals the better ranks come first.
    queue = [(-best[0][0], (0,), 0)]
    while queue and len(tree) < budget:
        cost, ranks, parent = heapq.heappop(queue)
        if cost == float("inf"):
            break
        slot, rank = len(ranks) - 1, ranks[-1]
        tree.tokens.append(ids[slot][rank])
        tree.parents.append(parent)
        tree.scores.append(-cost)
        if rank + 1 < len(best[slot]):
            above = tree.scores[parent - 1] if parent else 0.0
            sibling = above + best[slot][rank + 1]
            heapq.heappush(queue, (-sibling, (*ranks[:-1], rank + 1), parent))
        if slot + 1 < slots:
            child = -cost + best[slot + 1][0]
            heapq.heappush(queue, (-child, (*ranks, 0), len(tree)))
    return tree


def grow(score: Score, slots: int, budget: int) -> TokenTree:
    """The best tree under a belief that looks at the whole prefix.

    A node's score is the sum of ``score`` along its path. No child outranks its
    parent, so the M best nodes form a tree, as in :func:`ddtree`. They are found
    level by level, to score a level's prefixes in one batch: a node that is not among
    the M best seen so far has no descendant among the M best of all. A queue that
    expands one node at a time ends with the same tree.

    Args:
        score: log-probabilities ``[F, V]`` after prefixes ``[F, k]``, none above 0.
        slots: S, the greatest depth.
        budget: M; 0 or less leaves the root alone.
    """
    kept: list[tuple[float, int, int, int]] = []  # (-score, node, parent, token)
    level, prefixes = [0], torch.zeros(1, 0, dtype=torch.long)
    totals, made = torch.zeros(1), 1
    while level and prefixes.shape[1] < slots and budget > 0:
        above, steps = totals.tolist(), score(prefixes)
        scores = (totals.to(steps)[:, None] + steps).flatten()
        floor = -kept[-1][0] if len(kept) == budget else -torch.inf
        better = (scores > floor).nonzero().squeeze(1)
        totals, order = scores[better].topk(min(budget, len(better)))
        rows, tokens = better[order] // steps.shape[1], better[order] % steps.shape[1]
        columns = totals.tolist(), rows.tolist(), tokens.tolist()
        fresh = []
        for total, row, token in zip(*columns, strict=True):
            if total > above[row]:
                raise LabError("Scores of tree nodes must be log-probabilities, <= 0.")
            fresh.append((-total, made + len(fresh), level[row], token))
        # Of equals the older wins, so that no node is kept without its parent.
        kept = sorted(kept + fresh)[:budget]
        level = [node for _, node, _, _ in kept if node >= made]
        made += len(fresh)
        count = len(level)
        totals, parents = totals[:count], prefixes.to(rows)[rows[:count]]
        prefixes = torch.cat([parents, tokens[:count, None]], dim=1)
    return _renumbered(kept)


def _renumbered(kept: list[tuple[float, int, int, int]]) -> TokenTree:
    """A tree whose nodes are numbered by their place in the list, from 1."""
    place = {0: 0} | {node: i for i, (_, node, _, _) in enumerate(kept, start=1)}
    return TokenTree(
        [token for *_, token in kept],
        [place[parent] for _, _, parent, _ in kept],
        [-cost for cost, *_ in kept],
    )


def presto(
    log_q: torch.Tensor,
    log_auxiliary: Score,
    budget: int,
    weight: float = AUXILIARY_WEIGHT,
) -> TokenTree:
    """The best tree under log q + weight x log p_aux(token | prefix) (methods 4.2).

    Marginals know what is likely at a place, not what fits what was chosen before;
    a cheap causal model takes the mixtures of two texts down again. The sum runs
    along the path, so that a node pays for the whole prefix that it presumes.

    Args:
        log_q: ``[S, V]`` the drafter's log-probabilities, blind to the prefix.
        log_auxiliary: those of the causal model after each prefix.
        budget: M; 0 or less leaves the root alone.
        weight: 0 is :func:`ddtree`.
    """
    if weight < 0:
        raise LabError(f"The auxiliary's weight must be 0 or more, not {weight}.")
    if weight == 0:
        return ddtree(log_q, budget)

    def score(prefixes: torch.Tensor) -> torch.Tensor:
        return log_q[prefixes.shape[1]] + weight * log_auxiliary(prefixes)

    return grow(score, len(log_q), budget)
