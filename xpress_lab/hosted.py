"""Our loop inside transformers' ``generate``.

For people whose code calls ``model.generate``: pass the callable made here as
``custom_generate`` and keep everything else. transformers reads the prompt, the
generation config and the stop ids; this loop drafts and verifies.
"""

from collections.abc import Callable

import torch
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from xpress_lab.decoding import decode
from xpress_lab.errors import LabError
from xpress_lab.methods import Method
from xpress_lab.sampling import Sampling
from xpress_lab.target import Target

# What our sampling does itself; anything else would have to see the drafts too.
KNOWN_PROCESSORS = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper)
KNOWN_CRITERIA = (MaxLengthCriteria, EosTokenCriteria)
UNSUPPORTED = ("output_scores", "output_logits", "output_attentions")
UNSUPPORTED += ("output_hidden_states",)


def custom_generate(target: Target, method: Method) -> Callable:
    """A callable for ``target.model.generate(..., custom_generate=...)``.

    Greedy unless ``do_sample`` is set. Then temperature, top_k and top_p of the
    generation config hold, and the seed comes from torch's generator, so that
    ``torch.manual_seed`` decides the text. ``on_tokens=f`` in the call of ``generate``
    streams: f gets the new ids of every round. transformers hands neither ``streamer``
    nor ``assistant_model`` on to such a callable, so both are without effect.

    Returns ids ``[1, prompt + new]`` as ``generate`` does, and raises
    :class:`LabError` for what this loop cannot honour (batches, beams, penalties).
    """

    def run(
        model,
        input_ids: torch.Tensor,
        logits_processor,
        stopping_criteria,
        generation_config,
        on_tokens: Callable[[list[int]], None] | None = None,
        **model_kwargs,
    ):
        if model is not target.model:
            raise LabError(
                f"{method.name} was made for another model than the one that "
                "generates: drafts depend on the target's own hidden states."
            )
        check_call(input_ids, generation_config, model_kwargs)
        check_known("logits processor", logits_processor, KNOWN_PROCESSORS)
        check_known("stopping criterion", stopping_criteria, KNOWN_CRITERIA)
        sampling = sampling_of(generation_config)
        ends = generation_config.eos_token_id
        stop_ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
        text = decode(
            target,
            method,
            input_ids[0].tolist(),
            sampling=sampling,
            max_new_tokens=generation_config.max_length - input_ids.shape[1],
            stop_ids=stop_ids,
            seed=0 if sampling.greedy else int(torch.randint(2**31, ())),
            on_tokens=on_tokens,
        )
        new = torch.tensor([text.tokens], device=input_ids.device)
        ids = torch.cat([input_ids, new], dim=1)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=ids)
        return ids

    return run


def sampling_of(generation_config) -> Sampling:
    """Our settings for what the generation config asks."""
    if not generation_config.do_sample:
        return Sampling()
    c = generation_config
    return Sampling(
        1.0 if c.temperature is None else c.temperature,
        c.top_k or 0,
        1.0 if c.top_p is None else c.top_p,
    )


def check_call(input_ids: torch.Tensor, generation_config, model_kwargs: dict) -> None:
    """Refuse what this loop would ignore."""
    rows = input_ids.shape[0]
    if rows != 1:
        raise LabError(f"custom_generate decodes one text at a time, not {rows}.")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise LabError("custom_generate takes no padding: pass the prompt alone.")
    cache = model_kwargs.get("cache")
    if cache is not None and cache.get_seq_length() > 0:
        raise LabError("custom_generate starts from the prompt, not from a cache.")
    if generation_config.num_beams not in (None, 1):
        raise LabError(
            f"num_beams is {generation_config.num_beams}: beams are not drafted; use 1."
        )
    for key in UNSUPPORTED:
        if getattr(generation_config, key, None):
            raise LabError(f"{key} is not offered by custom_generate.")


def check_known(what: str, given, known: tuple[type, ...]) -> None:
    """Raise for processors and criteria that this loop does not apply.

    A repetition penalty, for one, has a memory: it would have to see the drafts
    inside the block while they are verified.
    """
    for each in given or ():
        if not isinstance(each, known):
            raise LabError(
                f"{type(each).__name__} is not supported as a {what} while "
                "drafting: leave it out, or generate without custom_generate."
            )
