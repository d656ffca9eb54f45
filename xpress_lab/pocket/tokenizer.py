"""A word-level tokenizer whose tokens can be read and whose decoding loses nothing.

Every piece carries its own leading space, as in byte-level tokenizers, so that
decoding is plain joining. Numbers go digit by digit: arithmetic then has carries,
and a wrong digit shows.
"""

import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from xpress_lab.pocket import words
from xpress_lab.pocket.corpus import FAMILIES, examples

SPECIALS = ("<pad>", "<unk>", "<mask>", "<|user|>", "<|assistant|>", "<|end|>")

# Four spaces of indent; a word, a digit, an operator or any other sign, each with
# its space; and white space that stands alone.
PIECE = r'    | ?[A-Za-z]+| ?[0-9]| ?(?:==|!=|\+=|""")| ?[^A-Za-z0-9\s]|\s'

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_SAMPLE_PER_FAMILY = 4000


def _pieces() -> list[str]:
    """Every piece that the families can emit, sorted.

    A sample covers the grammar, since no alternative is rarer than one in some
    hundred; digits and names are added in full.
    """
    texts = [f"{digit} {digit}" for digit in range(10)]
    lists = ([p.name for p in words.PEOPLE], words.CITIES, words.JOBS, words.PLURALS)
    texts += [f" {word}" for group in lists for word in group]
    for family in FAMILIES:
        for held_out, count in ((False, _SAMPLE_PER_FAMILY), (True, 100)):
            for example in examples(family, count, seed=0, held_out=held_out):
                texts += [example.prompt, example.response]
    return sorted({piece for text in texts for piece in re.findall(PIECE, text)})


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Builds the tokenizer; the same vocabulary in the same order every time."""
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *_pieces()])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        mask_token="<mask>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
