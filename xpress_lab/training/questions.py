"""Questions for a pretrained target to answer, so that drafters learn its words.

Four sources. *Own*: the model continues the empty user turn of its chat template,
and so writes the questions it expects (the idea of Magpie). *Templates*: our sentences
in the wording of the math, code and chat benchmarks. *Rest*: prompts of a benchmark
folder that the protocol does not evaluate; they are read and never kept. *The user's*:
a file or a data set of the Hub. A question that is also evaluated is dropped, whatever
its source.
"""

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from xpress_lab.benchmarks.hub_prompts import BOXED, PASSES
from xpress_lab.benchmarks.prompts import benchmark_names, read_prompts
from xpress_lab.errors import LabError, first_line
from xpress_lab.files import write_text
from xpress_lab.presets import data_folder
from xpress_lab.sampling import Sampling
from xpress_lab.target import Target
from xpress_lab.training.answers import answer

EVALUATED = 128  # prompts a benchmark that the protocol takes (methods 6.2)
OWN_BATCH, OWN_LONGEST = 96, 96  # questions a batch, tokens a question
OWN_SAMPLING = Sampling(temperature=1.0, top_k=50)


def fingerprint(question: str) -> str:
    """Sixteen hex digits of a question's words, blind to case, space and marks."""
    words = " ".join(re.findall(r"\w+", question.lower()))
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()


def known_evaluated() -> set[str]:
    """Fingerprints of the seven benchmarks' evaluated prompts, as shipped."""
    return set((data_folder() / "evaluated.txt").read_text("utf-8").split())


def evaluated(folder: Path) -> set[str]:
    """Fingerprints of every prompt of a folder that the protocol evaluates."""
    return {
        fingerprint(prompt)
        for name in benchmark_names(folder)
        for prompt in read_prompts(folder, name, EVALUATED)
    }


def rest_of_benchmarks(folder: Path) -> dict[str, list[str]]:
    """What a benchmark folder holds beyond the evaluated prompts, by benchmark."""
    names = benchmark_names(folder)
    return {name: read_prompts(folder, name)[EVALUATED:] for name in names}


def asked_in(source: str, most: int) -> list[str]:
    """The first ``most`` questions of a JSONL file, or of a data set on the Hub.

    A row holds ``turns`` (texts), ``messages`` (role, content) or ``conversations``
    (from, value, as mlabonne/open-perfectblend has them); its first question counts.
    """
    path = Path(source)
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            rows = [_parsed(line, path) for line in itertools.islice(lines, most)]
    else:
        rows = itertools.islice(_hub_rows(source), most)
    return [_first_question(row, source) for row in rows]


def _parsed(line: str, path: Path) -> dict:
    try:
        return json.loads(line)
    except ValueError as error:
        raise LabError(f"{path} is no JSONL file: {error}.") from error


def _hub_rows(name: str) -> Iterable[dict]:
    try:
        from datasets import load_dataset

        return load_dataset(name, split="train", streaming=True)
    except Exception as error:  # the Hub and datasets raise many kinds
        raise LabError(
            f"{name} is neither a file nor a data set that can be had from the Hub "
            f"({first_line(error)}). Reading one takes pip install -e .[hub]."
        ) from error


def _first_question(row: dict, source: str) -> str:
    said = [{"role": "user", "content": turn} for turn in row.get("turns") or ()]
    said += row.get("messages") or row.get("conversations") or ()
    for turn in said:
        if turn.get("role", turn.get("from")) in ("user", "human"):
            return turn.get("content", turn.get("value"))
    raise LabError(
        f"{source} has a row without a question: it should hold turns, messages or "
        f"conversations, and holds {', '.join(row)}."
    )


def unseen(questions: Iterable[str], marks: set[str]) -> list[str]:
    """Questions outside ``marks``, each once."""
    kept = {}
    for question in questions:
        mark = fingerprint(question)
        if mark not in marks:
            kept.setdefault(mark, question)
    return list(kept.values())


def own_questions(target: Target, count: int, path: Path, seed: int = 0) -> list[str]:
    """``count`` questions that the target writes itself, kept in ``path``.

    Goes on where an earlier run stopped. Questions that never end are dropped.
    """
    done = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    with tqdm(total=count, desc="own questions", initial=len(done)) as bar:
        for batch in itertools.count(len(done)):
            if len(done) >= count:
                break
            new = _ask(target, seed * 1_000_003 + batch)
            done += new
            bar.update(len(new))
            write_text(path, json.dumps(done, ensure_ascii=False))
    return done[:count]


def _ask(target: Target, seed: int) -> list[str]:
    prefixes = [_before_the_question(target)] * OWN_BATCH
    written = answer(target, prefixes, (), OWN_SAMPLING, OWN_LONGEST, seed)
    texts = []
    for _, row in written.pairs:
        if row[-1] in target.stop_ids:
            text = target.tokenizer.decode(row, skip_special_tokens=True).strip()
            texts += [text] if len(text.split()) > 2 else []
    return texts


def _before_the_question(target: Target) -> list[int]:
    """Ids of the chat template up to where the user's words begin."""
    mark = "QUESTION"
    chat = [{"role": "user", "content": mark}]
    text = target.tokenizer.apply_chat_template(chat, tokenize=False)
    return target.tokenizer(
        text[: text.index(mark)], add_special_tokens=False
    ).input_ids


# --- templates ----------------------------------------------------------------

NAMES = "Ali Beth Carlos Dina Emeka Fatima George Hana Ivan Jun Kofi Lena".split()
THINGS = (
    "apples books candles dollars eggs flowers grapes pencils stamps tickets".split()
)
MATH = (
    "{name} buys {a} boxes of {thing} with {b} in each box and gives away {c}. How "
    "many {thing} are left?",
    "A shop sells {a} {thing} on Monday, twice as many on Tuesday and {b} fewer on "
    "Wednesday than on Tuesday. How many {thing} does it sell in the three days?",
    "{name} earns ${a} an hour and works {b} hours a day for {c} days. How many "
    "dollars does {name} earn?",
    "If x + {a} = {b} and y = {c}x, what is the value of y?",
    "What is the remainder when {a}{b} is divided by {c}?",
    "A rectangle is {a} cm long and {b} cm wide. A square has the same perimeter. Find "
    "the area of the square.",
    "How many positive divisors does {a}{c} have?",
    "{name} reads {a} pages each day. {other} reads {b} pages more each day. After {c} "
    "days, how many pages have they read together?",
    "Find the sum of all integers n with {c} < n < {b} that are multiples of {a}.",
    "Let f(x) = {a}x^2 - {b}x + {c}. Compute f(2) - f(1).",
)
TASKS = (
    "find the largest number in a list", "reverse the words of a string",
    "count the vowels in a string", "check whether a number is prime",
    "merge two sorted lists", "remove duplicates from a list",
    "compute the n-th Fibonacci number", "check whether a string is a palindrome",
    "sum the digits of an integer", "find the second smallest element",
    "flatten a nested list", "sort a list of tuples by the second element",
    "find the longest common prefix of strings", "rotate a list by k places",
    "convert a decimal number to binary", "find all pairs that sum to a target",
    "compute the greatest common divisor", "count the words of a sentence",
    "find the missing number in 1..n", "multiply two matrices",
    "check balanced brackets", "find the mode of a list",
    "split a list into chunks", "transpose a matrix",
    "generate all subsets of a set", "find the median of numbers",
    "capitalise every word", "compute the area of a triangle",
    "swap keys and values of a dictionary", "find the first repeated character",
)  # fmt: skip
CODE = (
    "Write a python function to {task}.",
    "Write a function to {task}. Explain how it works.",
    "Write a Python program that reads its input from stdin and prints the answer: "
    "{task}.",
    PASSES + '\n```python\ndef solve(values):\n    """ {Task}.\n    """\n```',
    "Fix and test a Python function that should {task}.",
)
TOPICS = (
    "climate change", "a trip to Japan", "healthy breakfasts", "black holes",
    "learning to cook", "remote work", "the French Revolution", "electric cars",
    "photosynthesis", "saving money", "public speaking", "chess openings",
    "the water cycle", "job interviews", "social media", "space travel",
    "gardening in small flats", "vaccines", "jazz", "the stock market", "bees",
    "time management", "the Roman Empire", "coral reefs", "running a marathon",
    "artificial intelligence", "insomnia", "board games", "volcanoes", "poetry",
)  # fmt: skip
CHAT = (
    "Explain {topic} to a ten-year-old.",
    "Write a short blog post about {topic}.",
    "What are the pros and cons of {topic}?",
    "Compose an email to a friend about {topic}.",
    "Give me five tips about {topic}.",
    "Write a short story in which {topic} matters.",
    "Summarise what an expert would say about {topic} in three sentences.",
    "Imagine you are a teacher. Plan a lesson about {topic}.",
    "Which three books would you recommend on {topic}, and why?",
    "Compare {topic} and {other_topic}.",
)


def template_questions(count: int, seed: int = 0) -> list[str]:
    """``count`` different questions, a third each of math, code and chat."""
    lottery = random.Random(seed)
    makers = itertools.cycle((_math, _code, _chat))
    found: dict[str, None] = {}
    while len(found) < count:
        found[next(makers)(lottery)] = None
    return list(found)


def _math(lottery: random.Random) -> str:
    name, other = lottery.sample(NAMES, 2)
    numbers = {"a": lottery.randint(2, 60), "b": lottery.randint(2, 90)}
    numbers["c"] = lottery.randint(2, 12)
    thing = lottery.choice(THINGS)
    text = lottery.choice(MATH)
    return text.format(name=name, other=other, thing=thing, **numbers) + BOXED


def _code(lottery: random.Random) -> str:
    task = lottery.choice(TASKS)
    if lottery.random() < 0.5:
        task += f" and then {lottery.choice(TASKS)}"
    return lottery.choice(CODE).format(task=task, Task=task[0].upper() + task[1:])


def _chat(lottery: random.Random) -> str:
    topic, other = lottery.sample(TOPICS, 2)
    return lottery.choice(CHAT).format(topic=topic, other_topic=other)
