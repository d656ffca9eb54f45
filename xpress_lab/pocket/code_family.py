"""Small Python functions: one job over a list, written in many equivalent ways.

A job is a goal (count, sum, collect, any, all) with a test and, for some goals, a
change. Names of function, parameter, loop variable and accumulator are free, and so
are the style of the loop and the side of a comparison; each choice returns later.
"""

import ast
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass

from xpress_lab.pocket.words import Example, vary


@dataclass(frozen=True)
class Piece:
    """A test or a change: its words, its code, and a word for function names."""

    words: str
    code: tuple[str, ...]
    label: str


ANSWERS = ("result", "total", "found", "answer")
NUMBER_NAMES = (("numbers", "number"), ("values", "value"), ("items", "n"), ("xs", "x"))
WORD_NAMES = (("words", "word"), ("names", "name"), ("items", "w"), ("texts", "text"))
NUMBER_LISTS = ("[1, 2, 3]", "[4, 5, 6, 7]", "[2, 8]", "[3, 6, 9]")
WORD_LISTS = ("['tea', 'bread']", "['a', 'lamp', 'cat']", "['rain']")
LETTERS = "abcdelmnprst"

# Inputs on which a response must agree with the reference.
NUMBER_INPUTS = ([], list(range(-5, 31)), [7, 7, 2], [3], [12, 4, 8, 60])
WORD_INPUTS = (
    [],
    ["tea", "bread", "a", "lamp", "cat", "stone", "paper", "meadow", "melon"],
    [letter + "xyz" for letter in LETTERS],
    ["xyz" + letter for letter in LETTERS],
    ["x" * size for size in range(1, 10)],
)


def _number_test(rng: random.Random) -> Piece:
    k = rng.randint(3, 9)
    return rng.choice(
        (
            Piece("are even", ("{x} % 2 == 0", "not {x} % 2"), "even"),
            Piece("are odd", ("{x} % 2 == 1", "{x} % 2 != 0"), "odd"),
            Piece(f"are greater than {k * 2}", (f"{{x}} > {k * 2}",), "large"),
            Piece(f"are less than {k + 6}", (f"{{x}} < {k + 6}",), "small"),
            Piece(
                f"are divisible by {k}",
                (f"{{x}} % {k} == 0", f"not {{x}} % {k}"),
                "divisible",
            ),
            Piece(
                f"lie between {k} and {k + 11}",
                (f"{k} < {{x}} < {k + 11}", f"{{x}} > {k} and {{x}} < {k + 11}"),
                "middle",
            ),
        )
    )


def _word_test(rng: random.Random) -> Piece:
    k, c = rng.randint(2, 7), rng.choice(LETTERS)
    return rng.choice(
        (
            Piece(f"start with '{c}'", (f"{{x}}.startswith('{c}')",), "first"),
            Piece(f"end with '{c}'", (f"{{x}}.endswith('{c}')",), "last"),
            Piece(f"contain the letter '{c}'", (f"'{c}' in {{x}}",), "letter"),
            Piece(f"have more than {k} letters", (f"len({{x}}) > {k}",), "long"),
            Piece(f"have exactly {k} letters", (f"len({{x}}) == {k}",), "exact"),
        )
    )


def _number_change(rng: random.Random) -> Piece:
    k = rng.randint(3, 9)
    return rng.choice(
        (
            Piece("", ("{x}",), ""),
            Piece("doubled", ("{x} * 2", "2 * {x}", "{x} + {x}"), "doubled"),
            Piece("squared", ("{x} * {x}",), "squared"),
            Piece(f"increased by {k}", (f"{{x}} + {k}", f"{k} + {{x}}"), "increased"),
            Piece(f"multiplied by {k}", (f"{{x}} * {k}", f"{k} * {{x}}"), "scaled"),
        )
    )


# goal: asked as, documented as, verbs for the function's name
GOALS = {
    "count": (
        "[counts|returns the number of] the {things} in a list that {test}",
        "[Count|Return the number of] the {things} that {test}.",
        ("count", "number_of", "how_many"),
    ),
    "sum": (
        "[adds up|returns the sum of] the {things} in a list that {test}{change}",
        "[Add up|Return the sum of] the {things} that {test}{change}.",
        ("sum", "add", "total_of"),
    ),
    "collect": (
        "[returns a list of|collects] the {things} in a list that {test}{change}",
        "[Return a list of|Collect] the {things} that {test}{change}.",
        ("find", "get", "only", "collect"),
    ),
    "any": (
        "[checks|tells] whether any {things} in a list {test}",
        "[Check|Tell] whether any {things} {test}.",
        ("any", "some", "has_any"),
    ),
    "all": (
        "[checks|tells] whether all {things} in a list {test}",
        "[Check|Tell] whether all {things} {test}.",
        ("all", "only_has", "has_all"),
    ),
}

# Bodies by goal. {p} is the test, {v} the changed value, {a} the accumulator.
_LOOP = "{a} = {zero}\nfor {x} in {xs}:\n"
_KEEP = "    if {p}:\n        {add}\nreturn {a}"
_SKIP = "    if not ({p}):\n        continue\n    {add}\nreturn {a}"
_FLAG = "    keep = {p}\n    if keep:\n        {add}\nreturn {a}"
_LOOPS = (_LOOP + _KEEP, _LOOP + _SKIP, _LOOP + _FLAG)
BODIES = {
    "count": (
        *_LOOPS,
        "return sum(1 for {x} in {xs} if {p})",
        "return len([{x} for {x} in {xs} if {p}])",
        "{a} = [{x} for {x} in {xs} if {p}]\nreturn len({a})",
    ),
    "sum": (
        *_LOOPS,
        "return sum({v} for {x} in {xs} if {p})",
        "{a} = [{v} for {x} in {xs} if {p}]\nreturn sum({a})",
        "{a} = sum([{v} for {x} in {xs} if {p}])\nreturn {a}",
    ),
    "collect": (
        *_LOOPS,
        "return [{v} for {x} in {xs} if {p}]",
        "{a} = [{v} for {x} in {xs} if {p}]\nreturn {a}",
        "return list({v} for {x} in {xs} if {p})",
    ),
    "any": (
        "for {x} in {xs}:\n    if {p}:\n        return True\nreturn False",
        "{a} = False\nfor {x} in {xs}:\n    if {p}:\n        {a} = True\nreturn {a}",
        "return any({p} for {x} in {xs})",
        "{a} = [{x} for {x} in {xs} if {p}]\nreturn len({a}) > 0",
    ),
    "all": (
        "for {x} in {xs}:\n    if not ({p}):\n        return False\nreturn True",
        "{a} = True\nfor {x} in {xs}:\n    {a} = {a} and {p}\nreturn {a}",
        "return all({p} for {x} in {xs})",
        "{a} = [{x} for {x} in {xs} if {p}]\nreturn len({a}) == len({xs})",
    ),
}


def make(rng: random.Random) -> Example:
    """Draws a job, a request for it, and one way of writing the function."""
    goal = rng.choice(tuple(GOALS))
    numeric = goal == "sum" or rng.random() < 0.6
    test = _number_test(rng) if numeric else _word_test(rng)
    changes = numeric and goal in ("sum", "collect")
    change = _number_change(rng) if changes else Piece("", ("{x}",), "")
    asked, documented, verbs = GOALS[goal]
    slots = {
        "things": "numbers" if numeric else "words",
        "test": test.words,
        "change": f", each {change.words}" if change.words else "",
    }
    labels = [label for label in (test.label, change.label) if label]
    things = "numbers" if numeric else "words"
    name = "_".join([rng.choice(verbs), rng.choice((*labels, things))])
    request = vary(
        rng,
        "[Write a [Python |]function that|Please write a function that"
        "|I need a [short |]function that] " + asked + ".",
        **slots,
    )
    if named := rng.random() < 0.4:
        request += vary(rng, " [Call it {f}|Name it {f}|Its name is {f}].", f=name)

    response = _write(rng, goal, numeric, test, change, name, documented, slots)
    key = "|".join((goal, test.words, change.words))
    facts = {
        "goal": goal,
        "test": test.code[0],
        "change": change.code[0],
        "numeric": numeric,
        "name": name if named else None,
    }
    return Example("code", request, response, key, facts)


def _write(
    rng: random.Random,
    goal: str,
    numeric: bool,
    test: Piece,
    change: Piece,
    name: str,
    documented: str,
    slots: dict[str, str],
) -> str:
    """Writes the function in freely drawn style."""
    xs, x = rng.choice(NUMBER_NAMES if numeric else WORD_NAMES)
    a = rng.choice(ANSWERS)
    value = rng.choice(change.code).format(x=x)
    plus = {"count": "1", "sum": value}.get(goal)
    steps = (f"{a} += {plus}", f"{a} = {a} + {plus}")
    add = rng.choice(steps) if plus else f"{a}.append({value})"
    body = rng.choice(BODIES[goal]).format(
        a=a,
        x=x,
        xs=xs,
        v=value,
        p=rng.choice(test.code).format(x=x),
        zero="0" if plus else "[]",
        add=add,
    )
    note = vary(rng, documented, **slots)
    short = body.count("\n") < 2
    layout = rng.choice(("comment", "docstring", "above", *(() if short else ("",))))
    lines = [f"def {name}({xs}):", *(f"    {line}" for line in body.split("\n"))]
    if layout == "above":
        lines.insert(0, f"# {note}")
    elif layout == "comment":
        lines.insert(1, f"    # {note}")
    elif layout == "docstring":
        lines.insert(1, f'    """{note}"""')
    if short or not layout:
        call = f"{name}({rng.choice(NUMBER_LISTS if numeric else WORD_LISTS)})"
        lines += rng.choice(
            (
                [f"print({call})"],
                [f"{a} = {call}", f"print({a})"],
                ["", f"print({call})"],
            )
        )
    return "\n".join(lines)


def _reference(goal: str, test: str, change: str) -> Callable[[list], object]:
    """What the function must return, built from the job and not from a response."""
    keep = eval(f"lambda x: {test.format(x='x')}")
    value = eval(f"lambda x: {change.format(x='x')}")
    return {
        "count": lambda xs: sum(1 for x in xs if keep(x)),
        "sum": lambda xs: sum(value(x) for x in xs if keep(x)),
        "collect": lambda xs: [value(x) for x in xs if keep(x)],
        "any": lambda xs: any(keep(x) for x in xs),
        "all": lambda xs: all(keep(x) for x in xs),
    }[goal]


_ALLOWED = {f.__name__: f for f in (all, any, bool, len, list, sum)} | {
    "print": lambda *values: None
}
_METHODS = {"append", "startswith", "endswith"}
_FORBIDDEN = (ast.Import, ast.ImportFrom, ast.While, ast.Try, ast.Pow, ast.ClassDef)
_MAX_NUMBER = 10_000
_MAX_LINES = 5000


def _harmless(tree: ast.AST) -> bool:
    """True if the code can neither reach outside nor compute huge numbers."""
    return not any(
        isinstance(node, _FORBIDDEN)
        or (isinstance(node, ast.Attribute) and node.attr not in _METHODS)
        or (isinstance(node, ast.Name) and node.id.startswith("__"))
        or (
            isinstance(node, ast.Constant)
            and isinstance(node.value, int)
            and node.value > _MAX_NUMBER
        )
        for node in ast.walk(tree)
    )


def _run(response: str, name: str | None, inputs: tuple[list, ...]) -> list:
    """Defines the function and calls it on every input, within a budget of lines."""
    tree = ast.parse(response)
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if not _harmless(tree) or not defined or (name and name not in defined):
        raise ValueError("not one of our functions")
    budget = _MAX_LINES

    def watch(frame, event, arg):
        nonlocal budget
        budget -= event == "line"
        if budget < 0:
            raise TimeoutError("too many lines")
        return watch

    space: dict[str, object] = {"__builtins__": _ALLOWED}
    before = sys.gettrace()
    sys.settrace(watch)
    try:
        exec(compile(tree, "<response>", "exec"), space)
        return [space[name or defined[0]](list(values)) for values in inputs]
    finally:
        sys.settrace(before)


def grade(example: Example, response: str) -> bool:
    """True if the response is a harmless function that does what was asked."""
    facts = example.facts
    inputs = NUMBER_INPUTS if facts["numeric"] else WORD_INPUTS
    reference = _reference(facts["goal"], facts["test"], facts["change"])
    try:
        got = _run(response, facts["name"], inputs)
    except Exception:  # whatever a wrong program raises, it is wrong
        return False
    return got == [reference(values) for values in inputs]
