"""A joint distribution small enough to write down, for seeing what marginals lose.

Two independent choices, each spelled out over two slots: who travels (the city
follows from the name) and what they do (the third word follows from the second).
Everything below is exact; nothing is trained.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

TRAVELLERS = {("Anna", "Paris"): 0.55, ("Ben", "Rome"): 0.45}
VERBS = {("is", "in"): 0.4, ("has", "left"): 0.3, ("has", "seen"): 0.3}


@dataclass(frozen=True)
class Joint:
    """Probabilities of word sequences, one axis per slot.

    words: the vocabulary of each slot. table: ``[V_1, ..., V_S]``, sums to one.
    """

    words: tuple[tuple[str, ...], ...]
    table: np.ndarray

    @classmethod
    def from_sentences(cls, sentences: dict[tuple[str, ...], float]) -> "Joint":
        """The law that gives each sentence, a tuple of words, its probability."""
        slots = zip(*sentences, strict=True)
        words = tuple(tuple(dict.fromkeys(slot)) for slot in slots)
        table = np.zeros([len(slot) for slot in words])
        for sentence, probability in sentences.items():
            pairs = zip(words, sentence, strict=True)
            table[tuple(slot.index(word) for slot, word in pairs)] = probability
        return cls(words, table / table.sum())

    def text(self, place) -> str:
        """The sentence at a place of the table."""
        return " ".join(slot[i] for slot, i in zip(self.words, place, strict=True))


def travel_joint() -> Joint:
    """Six sentences of four words: "Anna is in Paris", "Ben has left Rome", ..."""
    return Joint.from_sentences(
        {
            (name, verb, word, city): p * q
            for (name, city), p in TRAVELLERS.items()
            for (verb, word), q in VERBS.items()
        }
    )


def tour_joint() -> Joint:
    """Fifteen sentences of four words in which every choice hangs on earlier ones: the
    verb on the name, the third word on the verb, the city on the name."""
    verbs = {"Anna": {"is": 0.3, "has": 0.7}, "Ben": {"is": 0.6, "has": 0.4}}
    words = {
        "is": {"in": 0.6, "near": 0.4},
        "has": {"left": 0.5, "seen": 0.3, "loved": 0.2},
    }
    cities = {"Anna": {"Paris": 0.75, "Rome": 0.25}, "Ben": {"Rome": 1.0}}
    return Joint.from_sentences(
        {
            (name, verb, word, city): p * p_verb * p_word * p_city
            for name, p in {"Anna": 0.6, "Ben": 0.4}.items()
            for verb, p_verb in verbs[name].items()
            for word, p_word in words[verb].items()
            for city, p_city in cities[name].items()
        }
    )


def marginals(joint: Joint) -> list[np.ndarray]:
    """Each slot's own law: all that a one-pass drafter can know, even a perfect one."""
    slots = range(joint.table.ndim)
    return [
        joint.table.sum(axis=tuple(other for other in slots if other != slot))
        for slot in slots
    ]


def product_of_marginals(joint: Joint) -> np.ndarray:
    """The law of a sentence whose slots are drawn independently."""
    product = np.ones(())
    for marginal in marginals(joint):
        product = np.multiply.outer(product, marginal)
    return product


def incoherent_mass(joint: Joint) -> float:
    """Chance that independent draws make a sentence that the joint calls impossible."""
    return float(product_of_marginals(joint)[joint.table == 0].sum())


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    """Half the summed difference: 0 for equal laws, 1 for laws without overlap."""
    return float(np.abs(p - q).sum() / 2)


def conditional(joint: Joint, prefix: tuple[int, ...]) -> np.ndarray:
    """Exact law of the next slot given the slots before it.

    An impossible prefix conditions on nothing, so the slot's marginal is returned.
    """
    given = joint.table[tuple(prefix)]
    mass = given.reshape(given.shape[0], -1).sum(axis=1)
    return mass / mass.sum() if mass.sum() > 0 else marginals(joint)[len(prefix)]


def product_of_conditionals(joint: Joint) -> np.ndarray:
    """The law of a sentence drawn left to right; the chain rule says: the joint."""
    law = np.zeros_like(joint.table)
    for place in np.ndindex(law.shape):
        steps = [conditional(joint, place[:slot])[i] for slot, i in enumerate(place)]
        law[place] = np.prod(steps)
    return law


def law_of_slot(joint: Joint, seen: torch.Tensor, slot: int) -> torch.Tensor:
    """Exact law of a slot given the first words, for many texts at once.

    With all words before the slot this is its conditional, with fewer a marginal.

    Args:
        seen: ``[N, n]`` places of the first n words in their vocabularies, n <= slot.

    Returns:
        ``[N, V]`` probabilities in float64, V the largest vocabulary; padded with
        zeros. An impossible beginning conditions on nothing: the slot's marginal.
    """
    given, slots = seen.shape[1], joint.table.ndim
    others = tuple(axis for axis in range(given, slots) if axis != slot)
    table = torch.from_numpy(joint.table.sum(axis=others))
    alone = torch.from_numpy(marginals(joint)[slot]).expand(len(seen), -1)
    rows = table[tuple(seen.T)].expand(len(seen), -1)
    mass = rows.sum(dim=-1, keepdim=True)
    law = torch.where(mass > 0, rows / mass.clamp_min(1e-300), alone)
    return F.pad(law, (0, max(joint.table.shape) - law.shape[1]))


def perfect_refiner(
    joint: Joint,
) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
    """What a perfect drafter and a perfect causal head would feed the solver.

    Returns:
        Base logits ``[1, S, V]``, the log marginals, and a function from previous
        tokens ``[N, S + 1]`` (entries 0 and 1 stand for the text before the block
        and are not read) to the log conditionals ``[N, S, V]``.
    """
    slots, nothing = range(joint.table.ndim), torch.empty(1, 0, dtype=torch.long)
    base = torch.stack([law_of_slot(joint, nothing, slot) for slot in slots], dim=1)

    def refine(previous: torch.Tensor) -> torch.Tensor:
        rows = [law_of_slot(joint, previous[:, 2 : slot + 2], slot) for slot in slots]
        return torch.stack(rows, dim=1).log()

    return base.log(), refine
