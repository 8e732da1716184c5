"""A toy: prompts and responses of a few letters, so short that every response can be listed, and a reward for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from datamodules.sources.base import ResponseSource, digest, to_dataset_dict

if TYPE_CHECKING:
    import datasets

LETTERS = "abcd"
READING = 1  # raise it when the rows change


@final
class Letters(ResponseSource):
    """A prompt is one of the letters a to d, a response up to max_length of them; columns `prompt`, `response`, `row`.

    Each letter of a response is the one before it with probability 0.4, else any; after each the response ends with
    probability 0.2. The same rows every time.

    Args:
        num_train: rows for training; a tenth as many are for validation.
        max_length: letters of a response.
    """

    def __init__(self, num_train: int = 4000, max_length: int = 4) -> None:
        if num_train < 10 or max_length < 1:
            raise ValueError(f"num_train {num_train} must be at least 10, and max_length {max_length} at least 1")
        self.num_train, self.max_length = num_train, max_length

    def load(self) -> datasets.DatasetDict:
        draw = np.random.RandomState(0)  # this generator never changes
        splits = {}
        for split, count in (("train", self.num_train), ("validation", self.num_train // 10)):
            rows = [self._row(draw, f"{split}, row {number}") for number in range(1, count + 1)]
            splits[split] = rows
        return to_dataset_dict(splits, ["prompt", "response", "row"])

    def _row(self, draw: np.random.RandomState, where: str) -> dict[str, str]:
        prompt = last = LETTERS[draw.randint(len(LETTERS))]
        response = ""
        while not response or (len(response) < self.max_length and draw.rand() >= 0.2):
            last = last if draw.rand() < 0.4 else LETTERS[draw.randint(len(LETTERS))]
            response += last
        return {"prompt": prompt, "response": response, "row": where}

    def fingerprint(self) -> str:
        return digest("letters", READING, self.num_train, self.max_length)

    def describe(self) -> str:
        return "the letters"


def alphabetical(texts: Sequence[str]) -> list[float]:
    """The reward: how often a letter is followed by the next one of the alphabet, a after d."""
    following = dict(zip(LETTERS, LETTERS[1:] + LETTERS[0], strict=True))
    return [float(sum(following.get(a) == b for a, b in zip(text, text[1:], strict=False))) for text in texts]
