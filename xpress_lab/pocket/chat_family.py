"""Facts about people, then a request: answer, introduce, invite, compare.

A response copies the facts it is asked for; how it opens, in which order and in which
words it goes on is free, and pronouns, verbs and plurals must follow.
"""

import random
import re
from collections.abc import Iterable

from xpress_lab.pocket.words import (
    CITIES,
    HOBBIES,
    JOBS,
    PEOPLE,
    PETS,
    Example,
    Person,
    article,
    quantity,
    refer,
    sentence,
    vary,
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Friday", "Saturday", "Sunday")
EVENTS = ("a birthday party", "a small concert", "dinner", "a picnic", "a game night")
PLACES = ("the park", "the old library", "the blue house", "the school garden")

# One kind of fact: how the prompt tells it, how the question asks, how to say it.
TOLD = {
    "city": "[lives in {v}|has a home in {v}]",
    "job": "[works as {v}|is {v}]",
    "hobby": "[likes {v}|enjoys {v}]",
    "pets": "[has {v}|keeps {v} at home]",
}
ASKED = {
    "city": "[Where does {name} live|In which city does {name} live]?",
    "job": "What [does {name} do for a living|is the job of {name}]?",
    "hobby": "What does {name} [like to do|do for fun]?",
    "pets": "[Which pets does {name} have|Does {name} have pets]?",
}
SAID = {
    "city": (
        "[{who} {lives} in {v}|{whose} home is in {v}|{v} is where {who} {lives}"
        "|{who} {has} a home in {v}]."
    ),
    "job": (
        "[{who} {works} as {v}|by trade, {who} {is} {v}"
        "|{whose} job is to work as {v}|for a living, {who} {works} as {v}]."
    ),
    "hobby": (
        "[{who} {likes} {v}|after work, {who} {enjoys} {v}"
        "|what {who} {likes} best is {v}|{who} {spends} [many evenings|free days] {v}]."
    ),
    "pets": (
        "[{who} {has} {v}|at home, {who} {keeps} {v}|{v} {live} with {name}"
        "|there {are} {v} in {whose} home], and {who2} {loves2} {it} [very much|a lot]."
    ),
}
LABELS = {"city": "Home", "job": "Job", "hobby": "Hobby", "pets": "Pets"}
CLOSING = (
    "[I hope this helps you to know {them}|That is all I can say about {name} for now"
    "|If you meet {name}, please say hello to {them}"
    "|You will like {them} once you meet {them}|That is {name} in a few words]."
)


def make(rng: random.Random) -> Example:
    """Draws one of the four kinds of conversation."""
    return rng.choice((_answer, _introduce, _invite, _compare))(rng)


def _person_facts(rng: random.Random, kinds: list[str]) -> dict[str, str]:
    """One value for each kind of fact."""
    values = {
        "city": rng.choice(CITIES),
        "job": article(rng.choice(JOBS)),
        "hobby": rng.choice(HOBBIES),
        "pets": quantity(rng.randint(1, 4), rng.choice(PETS)),
    }
    return {kind: values[kind] for kind in kinds}


def _tell(rng: random.Random, person: Person, facts: dict[str, str]) -> str:
    """The facts as the prompt gives them, in one or two sentences."""
    parts = [vary(rng, TOLD[kind], v=value) for kind, value in facts.items()]
    told = f"{person.name} {parts[0]} and {parts[1]}."
    return told + "".join(f" {person.name} {part}." for part in parts[2:])


def _say(
    rng: random.Random, person: Person, kind: str, value: str, named: bool | None
) -> str:
    """One fact as a sentence of the response."""
    pronoun = refer(rng, person, named=False)
    it, live, are = (
        ("it", "lives", "is") if value.startswith("1 ") else ("them", "live", "are")
    )
    slots = refer(rng, person, named) | {"v": value, "it": it, "live": live, "are": are}
    slots |= {"who2": pronoun["who"], "loves2": pronoun["loves"]}
    return sentence(vary(rng, SAID[kind], **slots))


def _example(
    prompt: str, response: str, people: list[Person], values: Iterable[str]
) -> Example:
    """The example, with names and values as its key and as what must appear.

    They are sorted: the order in a prompt does not show in a response, and one
    response must never have two keys.
    """
    needed = sorted({*(person.name for person in people), *values})
    return Example("chat", prompt, response, "|".join(needed), {"needed": needed})


def _answer(rng: random.Random) -> Example:
    """A question about one fact; the answer goes on with the others."""
    person = rng.choice(PEOPLE)
    facts = _person_facts(rng, rng.sample(tuple(TOLD), 4))
    kind = rng.choice(tuple(facts))
    prompt = f"{_tell(rng, person, facts)} {vary(rng, ASKED[kind], name=person.name)}"
    lead = vary(
        rng, "[|[Good|Nice] question. |Let me see. |You told me that already. ]"
    )
    lines = [lead + _say(rng, person, kind, facts[kind], named=True)]
    others = rng.sample([k for k in facts if k != kind], 3)
    for other in others:
        lines.append(_say(rng, person, other, facts[other], named=None))
    lines.append(vary(rng, CLOSING, name=person.name, them=person.them))
    return _example(prompt, " ".join(lines), [person], facts.values())


def _introduce(rng: random.Random) -> Example:
    """An introduction, in prose or as a list."""
    person = rng.choice(PEOPLE)
    facts = _person_facts(rng, rng.sample(tuple(TOLD), 4))
    request = "[Please introduce {name}|Introduce {name} to my friends|Who is {name}]"
    end = "?" if (request := vary(rng, request, name=person.name))[0] == "W" else "."
    prompt = f"{_tell(rng, person, facts)} {request}{end}"
    order = rng.sample(tuple(facts), 4)
    opening = vary(
        rng,
        "[This is {name}|Please meet {name}|Let me introduce {name}"
        "|Here is a little about {name}][.|, a friend of mine.|, and I like {them}.]",
        name=person.name,
        them=person.them,
    )
    closing = vary(rng, CLOSING, name=person.name, them=person.them)
    if rng.random() < 0.3:
        bullet = rng.choice(("- ", "* ", ""))
        rows = [f"{bullet}{LABELS[kind]}: {facts[kind]}" for kind in order]
        last = _say(rng, person, "city", facts["city"], named=False)
        text = "\n".join([opening, *rows, f"{last} {closing}"])
    else:
        said = [_say(rng, person, kind, facts[kind], named=None) for kind in order]
        text = " ".join([opening, *said, closing])
    return _example(prompt, text, [person], facts.values())


def _invite(rng: random.Random) -> Example:
    """A short note from one person to another, formal or casual throughout."""
    host, guest = rng.sample(PEOPLE, 2)
    event, day = rng.choice(EVENTS), rng.choice(DAYS)
    place, hour = rng.choice(PLACES), f"{rng.randint(2, 9)} o'clock"
    slots = {"host": host.name, "guest": guest.name, "event": event, "day": day}
    slots |= {"place": place, "hour": hour, "her": host.her}
    prompt = vary(
        rng,
        "{host} plans {event} in {place} on {day} at {hour}. "
        "[Write a short note to invite {guest}|Help {host} to invite {guest}"
        "|Write to {guest} in {her} name].",
        **slots,
    )
    if rng.random() < 0.5:
        text = (
            "Dear {guest},\n[I would like to invite you to|It would be an honor to see "
            "you at|You are kindly invited to] {event}. [It will take place in {place} "
            "on {day}, and we begin at {hour}|On {day} at {hour}, we will meet in "
            "{place}|The place is {place}, and the time is {day} at {hour}]. [Please "
            "let me know if you can attend|I would be glad to hear from you soon"
            "|It would mean a lot to me].\n[Sincerely|With kind regards|Yours truly],"
            "\n{host}"
        )
    else:
        text = (
            "[Hi|Hey|Hello] {guest}!\n[Guess what, I am having|Want to come to|Are you "
            "free for] {event}? [Come to {place} on {day} at {hour}|It is on {day} "
            "at {hour}, and we meet in {place}|We meet in {place} at {hour} on {day}]. "
            "[Bring a friend if you like|Do not bring anything, just come|It will be "
            "so much fun with you]! [Tell me if you can make it|If you are free, "
            "just show up]!\n"
            "[See you there|Bye for now|Can not wait],\n{host}"
        )
    values = (event, day, place, hour)
    return _example(prompt, vary(rng, text, **slots), [host, guest], values)


def _compare(rng: random.Random) -> Example:
    """Two people, two kinds of fact, in one of three parallel constructions."""
    people = rng.sample(PEOPLE, 2)
    kinds = rng.sample(("city", "job", "hobby"), 2)
    facts = [_person_facts(rng, kinds) for _ in people]
    told = " ".join(_tell(rng, p, f) for p, f in zip(people, facts, strict=True))
    first, second = (person.name for person in people)
    ask = "[Compare {a} and {b}.|How do {a} and {b} differ?|Tell me about {a} and {b}.]"
    prompt = f"{told} {vary(rng, ask, a=first, b=second)}"

    turn = rng.sample((0, 1), 2)  # who comes first is free
    order = rng.sample(kinds, 2)
    plain = {"city": "lives in {v}", "job": "works as {v}", "hobby": "likes {v}"}

    def clause(who: int, kind: str) -> str:
        return f"{people[who].name} {plain[kind].format(v=facts[who][kind])}"

    one, two = turn
    kind, other = order
    opening = vary(
        rng,
        "[Let us compare {a} and {b}|{a} and {b} are two different people"
        "|Here is what I know about {a} and {b}].",
        a=people[one].name,
        b=people[two].name,
    )
    left = _say(rng, people[one], other, facts[one][other], named=False)
    right = _say(rng, people[two], other, facts[two][other], named=False)
    frames = (
        f"On the one hand, {clause(one, kind)}. {left} "
        f"On the other hand, {clause(two, kind)}. {right}",
        f"{clause(one, kind)}, while {clause(two, kind)}. "
        f"{clause(one, other)}, while {clause(two, other)}.",
        f"First, {clause(one, kind)}, but {clause(two, kind)}. "
        f"Second, {clause(one, other)}, but {clause(two, other)}.",
    )
    same = [kind for kind in kinds if facts[0][kind] == facts[1][kind]]
    closing = vary(
        rng,
        "So they [have one thing in common|share one thing at least]."
        if same
        else "[So they have little in common|So the two are not alike"
        "|Still, {a} and {b} may become good friends]"
        "[.|, if you ask me.|, as far as I can tell.]",
        a=people[one].name,
        b=people[two].name,
    )
    text = f"{opening} {rng.choice(frames)} {closing}"
    values = [f[kind] for f in facts for kind in kinds]
    return _example(prompt, text, people, values)


def _mentions(text: str, phrase: str) -> bool:
    """True if the phrase stands in the text as whole words, whatever the case."""
    return bool(re.search(rf"\b{re.escape(phrase)}\b", text, re.IGNORECASE))


def grade(example: Example, response: str) -> bool:
    """True if every needed fact appears and nobody from elsewhere does."""
    allowed = example.prompt
    known = [*(person.name for person in PEOPLE), *CITIES]
    return all(_mentions(response, v) for v in example.facts["needed"]) and not any(
        _mentions(response, v) and not _mentions(allowed, v) for v in known
    )
