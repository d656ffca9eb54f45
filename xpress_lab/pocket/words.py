"""What the three families share: the example record, word lists, a tiny grammar.

The grammar is one function, `vary`: alternatives stand in square brackets, one is
drawn uniformly, and the slots in braces are filled afterwards. Alternatives differ
in length on purpose. A drafter that predicts every position on its own then mixes
them ("is left has with"), which is the failure that a refiner is there to repair.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """One prompt with one of its many right responses.

    Attributes:
        family: "math", "code" or "chat".
        prompt, response: plain text, without special tokens.
        key: the entities and numbers of the answer, in one canonical string.
        facts: what the family's grader needs to judge any other response.
    """

    family: str
    prompt: str
    response: str
    key: str
    facts: Mapping[str, object] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Person:
    """A name and the pronouns that must agree with it."""

    name: str
    pronoun: str

    @property
    def her(self) -> str:
        """The possessive pronoun."""
        return {"she": "her", "he": "his", "they": "their"}[self.pronoun]

    @property
    def them(self) -> str:
        """The object pronoun."""
        return {"she": "her", "he": "him", "they": "them"}[self.pronoun]


PEOPLE = tuple(
    Person(name, pronoun)
    for pronoun, names in (
        ("she", "Anna Clara Emma Grace Julia Laura Maria Nina Olivia Sara"),
        ("he", "Ben David Felix Henry Ivan Leo Martin Oscar Paul Tom"),
        ("they", "Alex Kim Robin Sam"),
    )
    for name in names.split()
)

CITIES = tuple(
    "Berlin Boston Cairo Dublin Lima London Madrid Oslo Paris Prague Rome Tokyo".split()
)

JOBS = tuple(
    "artist baker carpenter dentist doctor driver engineer farmer gardener nurse "
    "painter pilot teacher writer".split()
)

HOBBIES = (
    "playing chess",
    "playing the piano",
    "reading old books",
    "riding a bike",
    "baking bread",
    "taking long walks",
    "growing roses",
    "painting boats",
    "swimming in the lake",
    "cooking for friends",
)

PLURALS = {
    "cat": "cats",
    "dog": "dogs",
    "fish": "fish",
    "horse": "horses",
    "parrot": "parrots",
    "rabbit": "rabbits",
    "apple": "apples",
    "pear": "pears",
    "peach": "peaches",
    "coin": "coins",
    "stamp": "stamps",
    "shell": "shells",
    "marble": "marbles",
    "cookie": "cookies",
    "muffin": "muffins",
    "pie": "pies",
    "mile": "miles",
    "page": "pages",
    "pencil": "pencils",
    "sticker": "stickers",
    "card": "cards",
}

PETS = ("cat", "dog", "fish", "horse", "parrot", "rabbit")

# Verbs in the form that follows a name, and in the form that follows "they".
VERBS = {
    "has": "have",
    "is": "are",
    "lives": "live",
    "works": "work",
    "likes": "like",
    "keeps": "keep",
    "loves": "love",
    "does": "do",
    "enjoys": "enjoy",
    "spends": "spend",
}

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def vary(rng: random.Random, text: str, **slots: object) -> str:
    """Draws one alternative of every bracket, innermost first, then fills slots.

    >>> vary(random.Random(0), "{n} [is|has been] here", n="Tom")
    'Tom has been here'
    """
    while match := _CHOICE.search(text):
        drawn = rng.choice(match[1].split("|"))
        text = text[: match.start()] + drawn + text[match.end() :]
    return text.format(**slots)


def refer(
    rng: random.Random, person: Person, named: bool | None = None
) -> dict[str, str]:
    """Slots for one sentence about a person: name or pronoun, verbs that agree.

    Args:
        named: True forces the name, False the pronoun, None draws.
    """
    if named is None:
        named = rng.random() < 0.5
    they = person.pronoun == "they" and not named
    verbs = {one: many if they else one for one, many in VERBS.items()}
    return verbs | {
        "name": person.name,
        "who": person.name if named else person.pronoun,
        "whose": f"{person.name}'s" if named else person.her,
        "her": person.her,
        "them": person.them,
    }


def quantity(count: int, unit: str) -> str:
    """A number with its noun: "1 apple", "2 apples"."""
    return f"{count} {unit if count == 1 else PLURALS[unit]}"


def article(noun: str) -> str:
    """A noun with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def sentence(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[0].upper() + text[1:]
