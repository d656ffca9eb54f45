"""Trees on the enumerable target: right rules keep its law, wrong ones do not."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from xpress_lab.enumerable import conditional, tour_joint
from xpress_lab.exactness import Block, counts, p_value, speculate
from xpress_lab.tree_exactness import (
    RIGHT,
    WRONG,
    by_marginals,
    by_paths,
    by_presto,
    expected_kept,
    head_after,
    laws_of_first_children,
    node_laws,
)
from xpress_lab.trees import TokenTree

ROWS = 12_000


def block(*words: int, rows: int = 1) -> Block:
    written = torch.tensor([words], dtype=torch.long).expand(rows, -1)
    return Block(tour_joint(), written, passes=0)


@pytest.mark.parametrize("name", RIGHT)
def test_right_rules_keep_the_law(name):
    joint = tour_joint()
    said = counts(joint, speculate(joint, RIGHT[name], 0, ROWS))
    assert said.sum() == ROWS
    assert p_value(said, joint.table) > 1e-4


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rules_are_seen(name):
    joint = tour_joint()
    said = counts(joint, speculate(joint, WRONG[name], 0, ROWS))
    assert p_value(said, joint.table) < 1e-6


def test_laws_of_nodes_are_conditionals_of_their_own_paths():
    joint = tour_joint()
    tree = TokenTree([0, 1, 1, 0, 0], [0, 0, 1, 2, 3], [0.0] * 5)
    laws = node_laws(block(), tree)
    for row, path in zip(
        laws, [(), (0,), (1,), (0, 1), (1, 0), (0, 1, 0)], strict=True
    ):
        exact = conditional(joint, path)
        assert_close(row[: len(exact)], torch.from_numpy(exact))
        assert row[len(exact) :].sum() == 0
    mixed = laws_of_first_children(block(), tree)
    assert_close(mixed[2], laws[1])  # the root's second child, taken for the first


def test_behind_the_last_slot_a_tree_says_one_word():
    laws = node_laws(block(0, 1, 0), TokenTree([0], [0], [0.0]))
    assert laws[1].tolist() == [1.0] + [0.0] * (laws.shape[1] - 1)


def test_the_head_scores_a_path_by_its_own_words():
    one = block(0)
    score = head_after(one)
    for path in [(), (0,), (1,), (1, 1)]:
        drafts = torch.tensor([[*path, 0, 0, 0][: len(one.slots)]])
        assert_close(
            score([path])[0].exp(), one.next_scores(drafts)[0, len(path)].exp()
        )
    assert not torch.allclose(score([(0,)]).exp(), score([(1,)]).exp())


@pytest.mark.parametrize("plant", [by_marginals, by_paths, by_presto])
def test_trees_are_bushy_enough_to_test_the_walk(plant):
    """Siblings and several levels: else wrong walks would pass unseen."""
    tree = plant(block())
    assert max(tree.depths) >= 2
    assert len(set(tree.parents)) < len(tree.parents)
    assert np.all(np.diff(tree.scores) <= 1e-12)


def test_what_is_kept_on_average_is_what_walks_keep():
    """The summed chance of the nodes, against walks along drawn sentences."""
    joint, tree = tour_joint(), by_marginals(block(), 9)
    edges = zip(tree.parents, tree.tokens, strict=True)
    children = {edge: node for node, edge in enumerate(edges, start=1)}
    kept = 0.0
    for sentence in np.argwhere(joint.table > 0):
        node, count = 0, 0
        while (child := children.get((node, sentence[count]))) is not None:
            node, count = child, count + 1
            if count == joint.table.ndim:
                break
        kept += joint.table[tuple(sentence)] * count
    assert expected_kept(joint, tree) == pytest.approx(kept)


def test_a_perfect_head_plants_the_best_tree():
    perfect = Block(tour_joint(), torch.empty(1, 0, dtype=torch.long), 0, hearing=1.0)
    for budget in range(1, 13):
        best = expected_kept(perfect.joint, by_paths(perfect, budget))
        for plant in (by_marginals, by_presto):
            assert best >= expected_kept(perfect.joint, plant(perfect, budget)) - 1e-9
