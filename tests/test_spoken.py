"""Streamed pieces join to the text, however rounds cut it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from xpress_lab.spoken import UNFINISHED, Spoken

TEXT = "Naïve 漢字 🙂👩‍🚀 ends here. Then more 🙂"
END = "<end>"


def by_bytes() -> PreTrainedTokenizerFast:
    """A token a byte, as the rare characters of GPT-2-like tokenizers are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate(alphabet)}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END)


def by_words() -> PreTrainedTokenizerFast:
    """Tokens that begin with their space, as Llama's; decoding drops the first."""
    words = ["▁" + word for word in TEXT.split()]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    plain = Tokenizer(models.WordLevel(vocabulary | {"?": len(vocabulary)}, "?"))
    plain.pre_tokenizer = pre_tokenizers.Metaspace()
    plain.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END)


TOKENIZERS = {"bytes": by_bytes(), "words": by_words()}


def said(tokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    pieces: list[str] = []
    spoken = Spoken(tokenizer.decode, pieces.append)
    ends = sorted({min(cut, len(ids)) for cut in cuts} | {len(ids)})
    for start, end in zip([0, *ends], ends, strict=False):
        spoken(ids[start:end])
    spoken.close()
    return pieces


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 70), max_size=40))
def test_pieces_join_to_the_text(name, cuts):
    tokenizer = TOKENIZERS[name]
    ids = [*tokenizer(TEXT).input_ids, tokenizer.eos_token_id]
    pieces = said(tokenizer, ids, cuts)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True) == TEXT
    assert not any(UNFINISHED in piece for piece in pieces)


def test_text_that_ends_in_half_a_character_is_said_to_its_end():
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer("so 🙂").input_ids[:-1]
    assert "".join(said(tokenizer, ids, [1, 2, 3, 4])) == "so " + UNFINISHED


def test_nothing_is_said_of_special_tokens_alone():
    tokenizer = TOKENIZERS["words"]
    assert said(tokenizer, [tokenizer.eos_token_id] * 3, [1, 2]) == []


def test_pieces_decoded_alone_would_be_wrong():
    """The control: what the window behind a piece is for."""
    for tokenizer in TOKENIZERS.values():
        ids = tokenizer(TEXT).input_ids
        assert "".join(tokenizer.decode([i]) for i in ids) != TEXT
