"""Characters as tokens: the vocabulary is the set of characters in the training text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, final

import numpy as np

from datamodules.tokenizers.base import Tokenizer, check_special_tokens


@final
class CharTokenizer(Tokenizer):
    """The special tokens, then the distinct characters (Unicode code points) by code point; Tiny Shakespeare has 65.

    With [UNK] among the special tokens a character outside the vocabulary becomes [UNK]; without it that is an error.
    `path` names a saved tokenizer, which then decides everything: `special_tokens` is not looked at.

    Source: nanoGPT, data/shakespeare_char/prepare.py.
    """

    kind = "chars"

    def __init__(self, special_tokens: list[str] = [], path: str | None = None) -> None:  # noqa: B006 - copied
        self.special_tokens = check_special_tokens(special_tokens)
        self.characters = ""
        if path is not None:
            saved = CharTokenizer.load(path)
            self.special_tokens, self.characters = saved.special_tokens, saved.characters

    def train(self, texts: Iterable[str]) -> None:
        if not self.is_trained:
            seen: set[str] = set()
            for text in texts:
                seen.update(text)
            if not seen:
                raise ValueError("there is no text to learn characters from")
            self.characters = "".join(sorted(seen))

    @property
    def is_trained(self) -> bool:
        return bool(self.characters)

    @cached_property
    def _id_of(self) -> np.ndarray:
        """(largest code point + 2,) id of each code point, -1 for none; the last entry answers for all larger ones."""
        codes = np.array([ord(c) for c in self.characters])
        table = np.full(codes.max() + 2, -1 if self.unk_id is None else self.unk_id)
        table[codes] = np.arange(len(codes)) + len(self.special_tokens)
        return table

    def encode(self, text: str) -> list[int]:
        """
        Raises:
            ValueError: a character is not in the vocabulary and there is no [UNK].
        """
        _ = self._table  # refuses an untrained tokenizer
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        ids = self._id_of[np.minimum(codes, len(self._id_of) - 1)]
        if ids.size and ids.min() < 0:
            at = int(ids.argmin())
            raise ValueError(
                f"the character {text[at]!r} at position {at} is not among the {len(self.characters)} of the vocabulary: "
                f"add [UNK] to special_tokens, or train on text that has it"
            )
        return ids.tolist()

    def _vocabulary(self) -> list[bytes]:
        return [entry.encode() for entry in (*self.special_tokens, *self.characters)]

    def _state(self) -> dict[str, Any]:
        return {"special_tokens": self.special_tokens, "characters": self.characters}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.special_tokens = check_special_tokens(state["special_tokens"])
        self.characters = str(state["characters"])
