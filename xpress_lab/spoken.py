"""Text from ids that come piece by piece: what is said can be printed at once.

A piece cannot be decoded alone. A character may lie in the bytes of several tokens,
and some tokenizers drop the space before the first word that they are given.
"""

from collections.abc import Callable

UNFINISHED = "\ufffd"  # what decoders write for bytes that are no character yet


class Spoken:
    """Hands on text as it becomes whole; the pieces join to the whole text.

    A piece is decoded behind the one before it. What that adds is the new text, unless
    its last character still lacks bytes: then it waits for the next piece.

    Args:
        decode: of the target's tokenizer.
        on_text: called with each stretch of new text.
    """

    def __init__(self, decode: Callable[..., str], on_text: Callable[[str], None]):
        self.decode, self.on_text = decode, on_text
        self.behind: list[int] = []
        self.waiting: list[int] = []

    def __call__(self, tokens: list[int], last: bool = False) -> None:
        self.waiting += tokens
        before, whole = (
            self.decode(ids, skip_special_tokens=True)
            for ids in (self.behind, self.behind + self.waiting)
        )
        fresh = whole[len(before) :]
        if fresh and (last or not fresh.endswith(UNFINISHED)):
            self.behind, self.waiting = self.waiting, []
            self.on_text(fresh)

    def close(self) -> None:
        """Hand on what still waits: the text ends here."""
        self([], last=True)
