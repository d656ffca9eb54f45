"""Word problems of two or three steps, worked in words and figures.

The way an equation is written, the way steps are marked and the voice are drawn once
and then hold for the whole response; names, pronouns and clause order are drawn anew
in every sentence.
"""

import random
import re
from dataclasses import dataclass

from xpress_lab.pocket.words import (
    PEOPLE,
    PLURALS,
    Example,
    Person,
    quantity,
    refer,
    sentence,
    vary,
)


@dataclass(frozen=True)
class Story:
    """A setting: what is counted, what may happen to it, how to ask and to answer."""

    units: tuple[str, ...]
    start: str
    groups: str
    gains: tuple[str, ...]
    losses: tuple[str, ...]
    question: str
    state: str


STORIES = (
    Story(
        ("apple", "pear", "peach"),
        "picked {q} in the garden",
        "picked {k} bags of {m} {units}",
        ("bought {n} more at the market", "got {n} from {friend}"),
        ("gave {n} to {friend}", "ate {n} with friends", "used {n} for a cake"),
        "How many {units} [does {name} have|are left] now?",
        "[{has} {q} now|{is} left with {q}|now {has} {q} in the basket]",
    ),
    Story(
        ("coin", "stamp", "shell", "marble"),
        "had a collection of {q}",
        "had {k} boxes with {m} {units} each",
        ("found {n} more at home", "bought {n} more", "got {n} from {friend}"),
        ("lost {n} on a trip", "sold {n} to {friend}", "gave {n} to {friend}"),
        "How many {units} [are in the collection|does {name} own] now?",
        "[{has} a collection of {q}|now {has} {q}|{has} {q} in the end]",
    ),
    Story(
        ("cookie", "muffin", "pie"),
        "baked {q} in the morning",
        "baked {k} trays of {m} {units}",
        ("baked {n} more after lunch", "got {n} more from {friend}"),
        ("sold {n} at the market", "burned {n}", "shared {n} with {friend}"),
        "How many {units} [are left|does {name} have] in the end?",
        "[{has} {q} in the end|{is} left with {q}|still {has} {q}]",
    ),
    Story(
        ("mile",),
        "drove {q} on the first day",
        "drove {m} miles a day for {k} days",
        ("walked {n} more with {friend}", "took a train for {n} more"),
        ("went back {n} to see {friend}", "turned around and drove back {n}"),
        "How many miles from home is {name} now?",
        "[{is} {q} from home|{is} now {q} away from home|{has} {q} to go back]",
    ),
    Story(
        ("page",),
        "had a plan to read {q}",
        "had {k} books with {m} pages each to read",
        ("added {n} more to the plan", "got {n} more from {friend}"),
        ("read {n} on Monday", "read {n} at night", "gave {n} to {friend}"),
        "How many pages [are left|does {name} have] to read?",
        "[{has} {q} to read|still {has} to read {q}|{is} left with {q}]",
    ),
    Story(
        ("pencil", "sticker", "card"),
        "brought {q} to class",
        "brought {k} packs of {m} {units} to class",
        ("got {n} more from the teacher", "traded a pen for {n} more"),
        ("shared {n} with {friend}", "lost {n} in class", "gave {n} away"),
        "How many {units} does {name} have after class?",
        "[{has} {q} after class|{is} left with {q}|now {has} {q}]",
    ),
)

# Three ways to write each operation; one way holds for a whole response.
EQUATIONS = {
    "+": ("{a} + {b} = {c}", "{a} plus {b} is {c}", "adding {b} to {a} gives {c}"),
    "-": ("{a} - {b} = {c}", "{a} minus {b} is {c}", "taking {b} from {a} leaves {c}"),
    "*": ("{a} * {b} = {c}", "{a} times {b} is {c}", "{a} groups of {b} make {c}"),
}
APPLY = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}

Step = tuple[str, int, str, int, int]  # what happened, then a, sign, b, result

# How steps are marked: first, middle, last, and what stands between two steps.
MARKS = (
    ("Step 1: ", "Step 2: ", "Step 3: ", "\n"),
    ("First, ", "Then, ", "Finally, ", " "),
    ("To begin with, ", "After that, ", "In the last step, ", " "),
    ("- ", "- ", "- ", "\n"),
    ("", "", "", " "),
)

STEP = (
    "[{who} {event}, [so|and] {eq}"
    "|since {who} {event}, {voice} [find|see] that {eq}"
    "|{eq}, [because|as] {who} {event}"
    "|once {who} {event}, {eq}]."
)
SO_FAR = "[ That [makes|is] {q}.| Now there {be} {q}.| {Voice} [now have|get to] {q}.]"
OPENING = (
    "[{Voice} count the {units} step by step."
    "|To find the {units}, {voice} follow the story.]"
)
RESULT = (
    "[So {who} {state}|This means that {who} {state}|All in all, {who} {state}]. "
    "[The answer is {c}|So the answer is {c} {units}|Answer: {c}]."
)


def make(rng: random.Random) -> Example:
    """Draws a story, its numbers, and one way of telling the solution."""
    story = rng.choice(STORIES)
    person, friend = rng.sample(PEOPLE, 2)
    unit = rng.choice(story.units)
    names = {"name": person.name, "friend": friend.name, "units": PLURALS[unit]}

    steps: list[Step] = []
    if rng.random() < 0.4:
        k, m = rng.randint(2, 6), rng.randint(3, 15)
        current = k * m
        begin = story.groups.format(k=k, m=m, **names)
        steps.append((begin, k, "*", m, current))
    else:
        current = rng.randint(15, 99)
        begin = story.start.format(q=quantity(current, unit), **names)
    events: list[str] = []
    length = rng.choice((2, 2, 2, 3))
    while len(steps) < length:
        unused = {
            sign: [event for event in pool if event not in events]
            for sign, pool in (("+", story.gains), ("-", story.losses))
        }
        signs = "+" if current < 10 else [sign for sign in unused if unused[sign]]
        sign = rng.choice(signs)
        n = rng.randint(3, 70 if sign == "+" else min(current - 1, 60))
        event = rng.choice(unused[sign])
        events.append(event)
        after = APPLY[sign](current, n)
        told = event.format(n=n, **names)
        steps.append((told, current, sign, n, after))
        current = after

    told = [told for told, _, sign, _, _ in steps if sign != "*"]
    prompt = vary(
        rng,
        "{name} {begin}. [Then {pronoun}|After that, {pronoun}|Later {name}] {first}"
        + (" and [|afterwards ]{last}. " if len(told) == 2 else ". ")
        + ("Then {pronoun} {mid} and {last}. " if len(told) == 3 else ""),
        begin=begin,
        pronoun=person.pronoun,
        first=told[0],
        mid=told[-2] if len(told) > 1 else "",
        last=told[-1],
        name=person.name,
    ) + vary(rng, story.question, **names)

    response = _solve(rng, story, person, unit, steps)
    key = "|".join([person.name, unit, *(f"{a}{s}{b}" for _, a, s, b, _ in steps)])
    return Example("math", prompt, response, key, {"answer": current})


def _solve(
    rng: random.Random, story: Story, person: Person, unit: str, steps: list[Step]
) -> str:
    """Tells the solution: opening, marked steps, result."""
    voice = rng.choice(("we", "you", "I"))
    way = rng.randrange(3)
    *marks, joint = rng.choice(MARKS)
    slots = {"voice": voice, "Voice": sentence(voice), "units": PLURALS[unit]}
    lines = []
    short = len(steps) == 2
    if short and rng.random() < 0.4:
        lines.append(vary(rng, OPENING, **slots))
    for index, (event, a, sign, b, c) in enumerate(steps):
        last = index == len(steps) - 1
        eq = EQUATIONS[sign][way].format(a=a, b=b, c=c)
        who = refer(rng, person, named=True if index == 0 else None)
        mark = marks[2] if last and joint == " " else marks[index]
        line = vary(rng, STEP, **slots, event=event, eq=eq, who=who["who"])
        line = mark + (line if mark.endswith(", ") else sentence(line))
        if short and not last and rng.random() < 0.3:
            be = "is" if c == 1 else "are"
            line += vary(rng, SO_FAR, **slots, q=quantity(c, unit), be=be)
        lines.append(line)
    who = refer(rng, person)
    state = vary(rng, story.state, **who, q=quantity(c, unit))
    noun = unit if c == 1 else PLURALS[unit]
    lines.append(vary(rng, RESULT, who=who["who"], state=state, c=c, units=noun))
    return joint.join(lines)


def _pattern(template: str) -> re.Pattern[str]:
    """The regular expression that finds one way of writing an equation."""
    text = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    groups = {name: rf"(?P<{name}>\d+)" for name in "abc"}
    return re.compile(text.format(**groups), re.IGNORECASE)


_FINDERS = [(sign, _pattern(t)) for sign, ts in EQUATIONS.items() for t in ts]


def equations(response: str) -> list[tuple[int, str, int, int]]:
    """Every equation that a response states, as (a, sign, b, claimed result)."""
    return [
        (int(m["a"]), sign, int(m["b"]), int(m["c"]))
        for sign, finder in _FINDERS
        for m in finder.finditer(response)
    ]


def grade(example: Example, response: str) -> bool:
    """True if the stated answer is right and no stated equation is wrong."""
    stated = re.findall(r"answer(?: is|:) (\d+)", response, re.IGNORECASE)
    found = equations(response)
    return (
        bool(found)
        and stated[-1:] == [str(example.facts["answer"])]
        and all(APPLY[sign](a, b) == c for a, sign, b, c in found)
    )
