"""The weights in the repository do what the project says, on held-out prompts.

Losslessness over all prompts and methods, the solver against its sequential twin on
every real block, unseen answers, model cards, sizes. tau itself is measured by
`make reproduce`; here it must only be on the right side of plain and bare drafting.
"""

import json

import pytest
import torch

from xpress_lab import load_lab
from xpress_lab.batching import decode_batch
from xpress_lab.benchmarks.peers import generate
from xpress_lab.benchmarks.prompts import prompt_folder, read_prompts
from xpress_lab.benchmarks.rows import read_frame
from xpress_lab.block_method import BlockDrafting
from xpress_lab.decoding import decode
from xpress_lab.files import read_json
from xpress_lab.jacobi import solve, solve_in_order
from xpress_lab.pocket.corpus import training_mix
from xpress_lab.presets import FAMILIES, METHODS, data_folder, get_tier
from xpress_lab.training.held_out import fingerprint, strip_end

ARMS = ("dflash", "markov", "xpress")
FOLDER = get_tier("pocket").folder()


@pytest.fixture(scope="module")
def lab():
    return load_lab("pocket", device="cpu")


@pytest.fixture(scope="module")
def prompts():
    folder = prompt_folder("pocket")
    return [(f, p) for f in FAMILIES for p in read_prompts(folder, f)]


@pytest.fixture(scope="module")
def plain(lab, prompts):
    """Plain greedy answers to all held-out prompts, several side by side."""
    encoded, answers = [lab.target.encode(p) for _, p in prompts], []
    for start in range(0, len(encoded), 36):
        some = encoded[start : start + 36]
        answers += decode_batch(lab.target, lab.method("ar"), some)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARMS)
def test_greedy_text_is_the_targets_own(lab, prompts, plain, kind):
    """A third of the prompts for each arm, together all of them; every arm meets more
    in the shipped results, see below."""
    method, first = lab.method(kind), ARMS.index(kind)
    emitted = rounds = 0
    some = list(zip(prompts, plain, strict=True))[first :: len(ARMS)]
    for (_, prompt), reference in some:
        text = decode(lab.target, method, lab.target.encode(prompt))
        assert text.tokens == reference.tokens, prompt
        emitted += sum(r.emitted for r in text.rounds)
        rounds += len(text.rounds)
        assert len(text.tokens) == 1 + sum(r.emitted for r in text.rounds)
    assert 2 < emitted / rounds <= method.block_size


def test_every_method_has_weights_and_writes_the_target_s_text(lab, prompts, plain):
    assert set(lab.trained()) == set(METHODS)
    some = list(zip(prompts, plain, strict=True))[::36]
    for kind in sorted(set(METHODS) - {"ar", *ARMS}):
        for (_, prompt), reference in some:
            text = decode(lab.target, lab.method(kind), lab.target.encode(prompt))
            assert text.tokens == reference.tokens, (kind, prompt)


def test_all_shipped_methods_wrote_the_same_greedy_texts():
    rows = read_frame(data_folder() / "results" / "methods.csv")
    assert set(rows["method"]) == set(METHODS)
    greedy = rows[rows["temperature"] == 0].groupby(["benchmark", "prompt_id"])
    assert len(greedy) == 72 and (greedy["token_hash"].nunique() == 1).all()


def test_greedy_texts_of_the_shipped_results_are_all_the_target_s_own():
    made = read_json(data_folder() / "results" / "pocket" / "made.json")
    same, of, compared = made["greedy texts identical to plain decoding"].split()
    assert same == compared and of == "of" and int(compared) >= 500


def test_plain_text_is_what_transformers_generates(lab, prompts, plain):
    for (_, prompt), reference in list(zip(prompts, plain, strict=True))[::18]:
        theirs = generate(lab, lab.target.encode(prompt), max_new_tokens=128)
        assert theirs == reference.tokens


@pytest.mark.slow
def test_full_passes_equal_sequential_decoding_on_every_block(
    lab, prompts, monkeypatch
):
    """B - 1 passes and left-to-right decoding give the same tokens, block by block."""
    blocks = []

    def both(self, hidden, base, request, scale, noise, *_, **__):
        head = self.method.head
        prepared = head.prepare(hidden)
        ends = (request.anchor, request.before_anchor)

        def refine(previous):
            return base + head.bias(prepared, previous)

        slow = solve_in_order(refine, base, *ends, scale=scale, noise=noise)
        fast = solve(refine, base, *ends, passes=None, scale=scale, noise=noise)
        blocks.append(torch.equal(slow.tokens, fast.tokens))
        return fast

    monkeypatch.setattr(BlockDrafting, "_solve", both)
    method = lab.method("xpress", passes=None)
    for _, prompt in prompts[::3]:
        decode(lab.target, method, lab.target.encode(prompt))
    assert len(blocks) > 300 and all(blocks)


def test_prompts_are_enough_distinct_and_unseen(prompts):
    assert len(set(prompts)) == len(prompts)
    for family in FAMILIES:
        assert sum(f == family for f, _ in prompts) >= 60
    tier = get_tier("pocket")
    trained_on = {
        e.prompt
        for count, seed in (
            (tier.target.examples, tier.seed),
            (tier.responses.prompts, tier.seed + 1),
        )
        for e in training_mix(count, seed)
    }
    assert len(trained_on) > 10_000
    assert not trained_on & {p for _, p in prompts}


def test_answers_occur_in_no_training_response(lab, plain):
    path = FOLDER / "responses" / "fingerprints.txt"
    seen = set(path.read_text(encoding="utf-8").split())
    made = json.loads((path.parent / "training.json").read_text(encoding="utf-8"))
    assert len(seen) > 0.5 * made["texts"]
    end = lab.target.tokenizer.eos_token_id
    answers = [strip_end(text.tokens, end) for text in plain]
    assert not {fingerprint(answer) for answer in answers} & seen
    examples = training_mix(get_tier("pocket").target.examples, 0)
    corpus = {e.response for e in examples}
    decode_ids = lab.target.tokenizer.decode
    assert not {decode_ids(answer) for answer in answers} & corpus


def test_answers_are_not_degenerate(plain):
    from xpress_lab.statistics import distinct_n, longest_run

    tokens = [text.tokens for text in plain]
    assert sum(map(distinct_n, tokens)) / len(tokens) > 0.8
    assert max(map(longest_run, tokens)) <= 4


def test_every_checkpoint_has_its_card_and_all_fit_in_15_mb():
    for stage in ("target", *ARMS):
        card = (FOLDER / stage / "README.md").read_text(encoding="utf-8")
        for heading in ("**Data.**", "**Recipe.**", "**Cost.**", "**How it does.**"):
            assert heading in card
    size = sum(p.stat().st_size for p in FOLDER.rglob("*.safetensors"))
    assert size < 15 * 2**20


def test_published_figures_average_to_the_published_means():
    import pandas as pd

    table = pd.read_csv(data_folder() / "published.csv", comment="#")
    means = table.groupby(["temperature", "method"])["tau"].mean()
    assert means[(0.0, "xpress")] == pytest.approx(8.02, abs=0.01)
    assert means[(1.0, "dflash")] == pytest.approx(4.94, abs=0.01)
