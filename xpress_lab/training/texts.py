"""Token sequences with a prompt and a response, and batches of them."""

import math
from dataclasses import dataclass

import torch


@dataclass
class TextSet:
    """Prompt and response ids of many texts, right-padded.

    tokens: ``[M, L]`` ids. prompt_lengths, lengths: ``[M]``; the response (its end
    token included) lies between them.
    """

    tokens: torch.Tensor
    prompt_lengths: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def of(cls, pairs: list[tuple[list[int], list[int]]], pad_id: int) -> "TextSet":
        """Pad ``(prompt ids, response ids)`` pairs."""
        sequences = [torch.tensor(prompt + response) for prompt, response in pairs]
        return cls(
            torch.nn.utils.rnn.pad_sequence(sequences, True, pad_id),
            torch.tensor([len(prompt) for prompt, _ in pairs]),
            torch.tensor([len(sequence) for sequence in sequences]),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, rows: torch.Tensor, multiple: int = 1) -> "TextSet":
        """Some texts, with padding cut to the longest of them.

        multiple: of which the width is made one, if these texts have so much padding:
            a CPU prepares bfloat16 products anew for each shape, so few are better.
        """
        lengths = self.lengths[rows]
        width = math.ceil(int(lengths.max()) / multiple) * multiple
        return TextSet(self.tokens[rows, :width], self.prompt_lengths[rows], lengths)

    def to(self, device: torch.device) -> "TextSet":
        """The same texts on a device."""
        parts = self.tokens, self.prompt_lengths, self.lengths
        return TextSet(*(part.to(device) for part in parts))

    def draw(self, count: int, generator: torch.Generator) -> torch.Tensor:
        """Indices of random texts of similar length, so that little is padding."""
        order = self.lengths.argsort(stable=True)
        width = min(len(self), 8 * count)
        first = torch.randint(len(self) - width + 1, (1,), generator=generator)
        near = first + torch.randperm(width, generator=generator)[:count]
        return order[near]

    def in_response(self) -> torch.Tensor:
        """``[M, L]`` booleans: which tokens belong to a response."""
        place = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (place >= self.prompt_lengths[:, None]) & (place < self.lengths[:, None])

    def response_tokens(self) -> int:
        return int((self.lengths - self.prompt_lengths).sum())
