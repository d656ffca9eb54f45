"""transformers hosts the loop: same ids, same stops, same limits as its own generate.

What the loop cannot honour is refused rather than ignored.
"""

import pytest
import torch
import toys
from transformers import StoppingCriteriaList

from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.hosted import custom_generate
from xpress_lab.methods import PlainDecoding
from xpress_lab.sampling import Sampling

IDS = torch.tensor([toys.PROMPT])
NAMES = ["dflash", "markov", "markov-gated", "markov-rnn", "xpress"]


def host(target, name="xpress", ids=IDS, seed=0, **how) -> torch.Tensor:
    method = PlainDecoding() if name == "ar" else toys.make_method(name, target, 6)
    how = {"max_new_tokens": 40, "pad_token_id": 0} | how
    torch.manual_seed(seed)  # after the method: new modules draw from it too
    return target.model.generate(
        input_ids=ids, custom_generate=custom_generate(target, method), **how
    )


@pytest.mark.parametrize("name", ["ar", *NAMES])
def test_greedy_ids_are_generate_s(target, greedy_text, name):
    ids = host(target, name, do_sample=False)
    assert ids.tolist() == [toys.PROMPT + greedy_text[:40]]


@pytest.mark.parametrize("new", [1, 2, 7, 23])
def test_limits_are_exact(target, greedy_text, new):
    assert host(target, max_new_tokens=new).tolist() == [
        toys.PROMPT + greedy_text[:new]
    ]
    by_length = host(target, max_new_tokens=None, max_length=len(toys.PROMPT) + new)
    assert by_length.tolist() == [toys.PROMPT + greedy_text[:new]]


@pytest.mark.parametrize("eos", [12, [30, 12], [38, 12]], ids=str)
def test_stop_ids_of_the_call(target, greedy_text, eos):
    """The stop id is part of the text, as in generate."""
    plain = target.model.generate(
        input_ids=IDS, max_new_tokens=40, eos_token_id=eos, pad_token_id=0
    )
    assert host(target, eos_token_id=eos).tolist() == plain.tolist()
    assert plain.shape[1] < len(toys.PROMPT) + 40


def test_stop_ids_of_the_model(target, monkeypatch):
    monkeypatch.setattr(target.model.generation_config, "eos_token_id", [12])
    plain = target.model.generate(input_ids=IDS, max_new_tokens=40, pad_token_id=0)
    assert host(target).tolist() == plain.tolist()
    assert plain[0, -1] == 12


def test_sampling_settings_reach_the_loop(target):
    """The same seed in our own loop gives the same text; another gives another."""
    how = {"do_sample": True, "temperature": 0.8, "top_k": 9, "top_p": 0.9}
    ids = host(target, seed=3, **how)
    torch.manual_seed(3)
    seed = int(torch.randint(2**31, ()))
    method = toys.make_method("xpress", target, 6)
    sampling = Sampling(0.8, 9, 0.9)
    ours = decode(
        target, method, toys.PROMPT, sampling=sampling, max_new_tokens=40, seed=seed
    )
    assert ids[0, len(toys.PROMPT) :].tolist() == ours.tokens
    assert host(target, seed=4, **how).tolist() != ids.tolist()


def test_sampling_from_the_best_token_alone_is_greedy(target):
    one = host(target, do_sample=True, top_k=1)
    assert one.tolist() == host(target).tolist()


def test_a_dictionary_is_returned_on_request_and_rounds_stream(target, greedy_text):
    streamed = []
    out = host(target, return_dict_in_generate=True, on_tokens=streamed.append)
    assert out.sequences.tolist() == [toys.PROMPT + greedy_text[:40]]
    assert sum(streamed, []) == greedy_text[:40] and len(streamed) > 1


def stop_now(input_ids, scores, **_):
    return torch.ones(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ids": IDS.repeat(2, 1)}, "one text at a time, not 2"),
        ({"num_return_sequences": 3, "do_sample": True}, "one text at a time, not 3"),
        ({"num_beams": 4}, "not 4|num_beams is 4"),
        ({"repetition_penalty": 1.3}, "RepetitionPenaltyLogitsProcessor"),
        ({"min_new_tokens": 9, "eos_token_id": 12}, "MinLengthLogitsProcessor"),
        ({"bad_words_ids": [[3]]}, "NoBadWordsLogitsProcessor"),
        ({"do_sample": True, "min_p": 0.2}, "MinPLogitsWarper"),
        ({"stopping_criteria": StoppingCriteriaList([stop_now])}, "stopping criterion"),
        ({"max_time": 5.0}, "MaxTimeCriteria"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}, "no padding"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores"),
    ],
)
def test_what_the_loop_cannot_honour_is_refused(target, how, message):
    with pytest.raises(LabError, match=message):
        host(target, **how)


def test_another_model_is_refused(target, untied_target):
    method = toys.make_method("xpress", target, 6)
    with pytest.raises(LabError, match="made for another model"):
        untied_target.model.generate(
            input_ids=IDS, custom_generate=custom_generate(target, method)
        )
