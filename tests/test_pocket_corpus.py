"""The pocket world: its split is clean, its answers right, its tokens lossless."""

import ast
import json
import random
import re
from collections import Counter
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from xpress_lab.pocket import (
    FAMILIES,
    build_tokenizer,
    examples,
    grade,
    is_held_out,
    training_mix,
)
from xpress_lab.pocket.math_family import equations
from xpress_lab.pocket.tokenizer import SPECIALS
from xpress_lab.pocket.words import CITIES, PEOPLE, PLURALS, VERBS, vary

SAMPLE = 600
few = settings(max_examples=15, deadline=None)
seeds = st.integers(1, 10**6)
families = st.sampled_from(FAMILIES)
each_family = pytest.mark.parametrize("family", FAMILIES)


@cache
def sample(family, held_out=False):
    """A sample with a seed that the tokenizer's own vocabulary scan does not use."""
    count = 200 if held_out else SAMPLE
    return examples(family, count, seed=12345, held_out=held_out)


@cache
def tokenizer():
    return build_tokenizer()


def ids_of(text):
    return tokenizer()(text, add_special_tokens=False)["input_ids"]


@few
@given(family=families, seed=seeds, held_out=st.booleans())
def test_the_seed_decides_everything(family, seed, held_out):
    once = examples(family, 5, seed, held_out)
    assert once == examples(family, 5, seed, held_out)
    assert once != examples(family, 5, seed + 1, held_out)
    assert once == examples(family, 8, seed, held_out)[:5]


@few
@given(seed=seeds, count=st.integers(3, 20))
def test_the_training_mix_is_balanced_and_leaks_nothing(seed, count):
    mix = training_mix(count, seed)
    assert mix == training_mix(count, seed) and len(mix) == count
    sizes = [sum(e.family == family for e in mix) for family in FAMILIES]
    assert max(sizes) - min(sizes) <= 1
    assert not any(is_held_out(e.key) for e in mix)


def test_the_split_is_fixed_and_holds_out_one_key_in_sixteen():
    # Literal values: a change here would leak held-out answers to old checkpoints.
    assert [k for k in map(str, range(40)) if is_held_out(k)] == ["5", "23"]
    assert 0.05 < sum(is_held_out(str(k)) for k in range(8000)) / 8000 < 0.075


@each_family
def test_held_out_prompts_and_answers_never_occur_in_training(family):
    seen, unseen = sample(family), sample(family, held_out=True)
    assert len({e.prompt for e in unseen}) >= 100
    assert len({e.prompt for e in seen}) == SAMPLE
    assert {e.prompt for e in seen}.isdisjoint(e.prompt for e in unseen)
    assert {e.response for e in seen}.isdisjoint(e.response for e in unseen)
    assert {e.key for e in seen}.isdisjoint(e.key for e in unseen)


@each_family
def test_a_response_determines_its_key(family):
    """Without this, one answer could stand on both sides of the split."""
    keys = {}
    for e in [*sample(family), *sample(family, held_out=True)]:
        assert keys.setdefault(e.response, e.key) == e.key
    for e in sample(family):
        if family == "math":
            stated = {f"{a}{sign}{b}" for a, sign, b, _ in equations(e.response)}
            name, unit, *steps = e.key.split("|")
            assert stated == set(steps) and name in e.response and unit in e.response
        elif family == "chat":
            parts = e.key.split("|")
            assert all(part in e.response for part in parts)
            assert parts == sorted(set(parts)), "two orders would be two keys"
        else:
            assert set(re.findall(r"\d+", e.key)) <= set(re.findall(r"\d+", e.response))


def test_unknown_families_and_impossible_counts_are_refused():
    with pytest.raises(ValueError, match="unknown family"):
        examples("poem", 1, 0, False)


@each_family
def test_graders_accept_the_reference(family):
    for e in [*sample(family), *sample(family, held_out=True)]:
        assert grade(e, e.response), e
        json.dumps(e.facts)


@each_family
def test_graders_reject_empty_and_foreign_answers(family):
    some = sample(family)[:100]
    assert not any(grade(e, "") for e in some)
    foreign = [(e, o) for e in some for o in some[:20] if e.key != o.key]
    accepted = [pair for pair in foreign if grade(pair[0], pair[1].response)]
    # Two math problems may share a result, and two jobs differ only off the inputs.
    assert len(foreign) > 1000 and len(accepted) < 0.03 * len(foreign)


def test_math_is_arithmetically_right_by_independent_evaluation():
    for e in sample("math"):
        found = equations(e.response)
        assert 2 <= len(found) <= 3
        for a, sign, b, c in found:
            assert eval(f"{a} {sign} {b}") == c
        assert found and e.facts["answer"] in [c for *_, c in found]


@few
@given(index=st.integers(0, SAMPLE - 1), data=st.data())
def test_math_rejects_any_wrong_result(index, data):
    e = sample("math")[index]
    answer, right = e.facts["answer"], e.response
    head, mark, tail = right.rpartition(str(answer))
    wrong = data.draw(st.integers(0, 300).filter(lambda n: n != answer))
    assert mark and not grade(e, f"{head}{wrong}{tail}")
    a, sign, b, c = data.draw(st.sampled_from(equations(right)))
    broken = re.sub(rf"\b{c}\b", str(c + 1), right, count=1)
    claims = equations(broken)
    assert broken != right
    assert not grade(e, broken) or all(eval(f"{p}{s}{q}") == r for p, s, q, r in claims)


def test_code_is_valid_python_with_one_function():
    for e in sample("code"):
        tree = ast.parse(e.response)
        assert sum(isinstance(node, ast.FunctionDef) for node in tree.body) == 1
        assert all(line == line.rstrip() for line in e.response.split("\n"))


def test_code_gives_the_hand_checked_values():
    """The reference semantics themselves, on answers worked out by hand."""
    expected = {
        "count|are even|": 2,
        "sum|are odd|doubled": 2 * (1 + 3),
        "collect|are even|squared": [4, 16],
        "any|are greater than 6|": False,
        "all|are less than 9|": True,
    }
    pool = {e.key: e for held in (False, True) for e in _many_code(held)}
    assert expected.keys() <= pool.keys()
    for key, value in expected.items():
        space = {}
        exec(pool[key].response, space)
        name = re.search(r"def (\w+)", pool[key].response)[1]
        assert space[name]([1, 2, 3, 4]) == value


def _many_code(held_out):
    return examples("code", 300 if held_out else 3000, 99, held_out)


def test_code_rejects_wrong_results_wrong_names_and_harmful_programs():
    for e in sample("code")[:200]:
        head, _, tail = e.response.rpartition("return ")
        assert not grade(e, f"{head}return None\n"), tail
        if e.facts["name"]:
            assert not grade(e, e.response.replace(e.facts["name"], "other"))
        for harm in (
            "import os",
            "while True: pass",
            "print(9 ** 9 ** 9)",
            "print([].__class__)",
            "open('x')",
            "grow = [1]\nfor g in grow:\n    grow.append(g)",
        ):
            assert not grade(e, f"{e.response}\n{harm}")
        assert grade(e, f"{e.response}\nprint(1)")


def test_chat_rejects_a_missing_fact_and_a_stranger():
    names = [person.name for person in PEOPLE]
    for e in sample("chat"):
        for fact in e.facts["needed"]:
            assert not grade(e, e.response.replace(fact, "something"))
        stranger = next(name for name in names if name not in e.prompt)
        city = next(city for city in CITIES if city not in e.prompt)
        assert not grade(e, f"{e.response} {stranger} agrees.")
        assert not grade(e, f"{e.response} It is far from {city}.")


def test_pronouns_and_verbs_agree():
    singular, plural = "|".join(VERBS), "|".join(VERBS.values())
    one = "|".join(unit for unit, units in PLURALS.items() if unit != units)
    many = "|".join(units for unit, units in PLURALS.items() if unit != units)
    wrong = re.compile(
        rf"\b(?:they (?:{singular})|s?he (?:{plural})|1 (?:{many})"
        rf"|(?:[02-9]|\d\d+) (?:{one})|(?:I|you|we) (?:gets|is)"
        r"|a [aeiou]\w+|an [^aeiouh\W]\w+)\b",
        re.IGNORECASE,
    )
    for slip in ("They has it", "he keep it", "1 cats", "11 cat", "a artist"):
        assert wrong.search(slip)
    for family in ("math", "chat"):
        for e in sample(family):
            for text in (e.prompt, e.response):
                assert not wrong.search(text), text


@each_family
def test_answers_open_in_many_ways(family):
    """No family may collapse onto a few fixed openings."""
    starts = [tuple(ids_of(e.response)[:6]) for e in sample(family)]
    assert len(set(starts)) > 0.3 * SAMPLE


@each_family
def test_lengths_suit_a_small_context(family):
    prompts = [len(ids_of(e.prompt)) for e in sample(family)]
    responses = [len(ids_of(e.response)) for e in sample(family)]
    assert min(prompts) >= 12 and max(prompts) <= 50
    inside = sum(35 <= n <= 90 for n in responses)
    assert inside >= 0.95 * SAMPLE
    assert 45 <= sum(responses) / SAMPLE <= 70 and max(responses) <= 110


def test_the_vocabulary_is_small_stable_and_complete():
    assert 500 <= len(tokenizer()) <= 900
    assert tokenizer().get_vocab() == build_tokenizer().get_vocab()
    assert tokenizer().convert_tokens_to_ids(list(SPECIALS)) == list(range(6))
    for family in FAMILIES:
        for e in [*sample(family), *sample(family, held_out=True)]:
            for text in (e.prompt, e.response):
                ids = ids_of(text)
                assert tokenizer().unk_token_id not in ids
                assert tokenizer().decode(ids, skip_special_tokens=True) == text
    assert ids_of("zebra") == [tokenizer().unk_token_id]


def test_numbers_go_digit_by_digit_and_names_by_parts():
    split = tokenizer().tokenize("    total = count_even(xs) + 123")
    assert split == [
        *("    ", "total", " =", " count", "_", "even", "(", "xs", ")", " +"),
        *(" 1", "2", "3"),
    ]


def test_alternatives_are_drawn_uniformly_also_inside_one_another():
    rng = random.Random(3)
    drawn = Counter(vary(rng, "{n} [is|has [had|got] it]", n=1) for _ in range(4000))
    assert drawn.keys() == {"1 is", "1 has had it", "1 has got it"}
    assert abs(drawn["1 is"] - 2000) < 160
    assert abs(drawn["1 has had it"] - 1000) < 160


@few
@given(st.lists(st.integers(6, 400), max_size=40))
def test_any_row_of_tokens_decodes_to_its_pieces(ids):
    pieces = tokenizer().convert_ids_to_tokens(ids)
    assert tokenizer().decode(ids) == "".join(pieces)


def test_the_tokenizer_survives_saving_and_formats_chats(tmp_path):
    tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer().get_vocab()
    e = sample("code")[0]
    for tok in (tokenizer(), loaded):
        assert (tok.pad_token_id, tok.unk_token_id, tok.mask_token_id) == (0, 1, 2)
        assert tok.eos_token == "<|end|>"
        chat = [{"role": "user", "content": e.prompt}]
        text = tok.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert text == f"<|user|>{e.prompt}<|end|><|assistant|>"
        ids = tok.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
        assert ids == [3, *ids_of(e.prompt), 5, 4]
        full = [*ids, *ids_of(e.response), tok.eos_token_id]
        assert tok.decode(full, skip_special_tokens=True) == e.prompt + e.response
        reply = [*chat, {"role": "assistant", "content": e.response}]
        assert tok.apply_chat_template(reply)["input_ids"] == full
