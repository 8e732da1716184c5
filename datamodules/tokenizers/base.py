"""What every tokenizer is: text to ids and back, exactly; one JSON that holds all of it."""

from __future__ import annotations

import hashlib
import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from datamodules.files import write_atomic

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]")

# How published tokenizers call the same thing; the first that a tokenizer has counts.
NAMES = {
    "pad": ("[PAD]", "<pad>", "<|padding|>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]",),
    "mask": ("[MASK]", "<mask>"),
    "eos": ("[EOS]", "<|endoftext|>", "</s>"),
}
PIECE = 1 << 16

# The only classes that a file can ask for.
KINDS = {"bpe": "BPETokenizer", "chars": "CharTokenizer", "bytes": "ByteTokenizer"}


class Tokenizer(ABC):
    """Text to ids in [0, vocab_size) and back. The special tokens have the first ids; text never encodes to one."""

    kind: ClassVar[str]  # a key of KINDS
    special_tokens: list[str]

    @abstractmethod
    def train(self, texts: Iterable[str]) -> None:
        """Learn the vocabulary from documents; nothing to do where nothing is learned, or it was already."""

    @property
    @abstractmethod
    def is_trained(self) -> bool: ...

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of `text`; a special token's name inside it is text like any other. RuntimeError before training."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def pieces(self, text: str) -> Iterator[str]:
        """Consecutive parts of about PIECE characters whose ids, put together, are those of `text`: bounds memory."""
        yield from (text[i : i + PIECE] for i in range(0, len(text), PIECE))

    @abstractmethod
    def _vocabulary(self) -> list[bytes]:
        """(V,) the UTF-8 bytes each id stands for; for a special token, its name."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """All that makes the ids, as JSON."""

    @abstractmethod
    def _set_state(self, state: dict[str, Any]) -> None:
        """The reverse of `_state`."""

    # ---- what follows from the above, the same for every kind

    @cached_property
    def _table(self) -> list[bytes]:
        if not self.is_trained:
            raise RuntimeError(f"this {type(self).__name__} is not trained yet: call train(texts), or give it a path")
        return self._vocabulary()

    @cached_property
    def _special_ids(self) -> dict[str, int]:
        names = {name.encode(): name for name in self.special_tokens}
        return {names[entry]: i for i, entry in enumerate(self._table) if entry in names and self._is_special(i)}

    def _is_special(self, token_id: int) -> bool:
        return token_id < len(self.special_tokens)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, special tokens included. RuntimeError before training."""
        return len(self._table)

    def _special_id(self, role: str) -> int | None:
        return next((self._special_ids[name] for name in NAMES[role] if name in self._special_ids), None)

    pad_id = property(lambda self: self._special_id("pad"))
    unk_id = property(lambda self: self._special_id("unk"))
    cls_id = property(lambda self: self._special_id("cls"))
    sep_id = property(lambda self: self._special_id("sep"))
    mask_id = property(lambda self: self._special_id("mask"))
    eos_id = property(lambda self: self._special_id("eos"))

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8, such as half a character, become U+FFFD.

        Raises:
            ValueError: an id is not in [0, vocab_size).
        """
        table, parts = self._table, []
        for i in map(int, ids):
            if not 0 <= i < len(table):
                raise ValueError(f"token id {i} is outside the vocabulary of {len(table)} (0 to {len(table) - 1})")
            if not (skip_special_tokens and self._is_special(i)):
                parts.append(table[i])
        return b"".join(parts).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """(V,) int64: how many bytes of text each id stands for, 0 for special tokens; for bits per byte."""
        return np.array([0 if self._is_special(i) else len(b) for i, b in enumerate(self._table)], dtype=np.int64)

    def word_edges(self) -> np.ndarray:
        """(V, 2) bool: whether the text of each id begins, and ends, with a letter, a digit or a part of a character.

        A word goes on from one token to the next where the one ends so and the other begins so.
        """
        inside = np.array([chr(b).isalnum() if b < 0x80 else True for b in range(256)])
        edges = [(inside[entry[0]], inside[entry[-1]]) if entry else (False, False) for entry in self._table]
        return np.array(edges) & (self.token_bytes() > 0)[:, None]

    def to_json(self) -> str:
        """One line that `load_tokenizer` reads; also before training, then without a vocabulary."""
        return json.dumps({"type": self.kind, **self._state()}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        tokenizer = load_tokenizer(text)
        if not isinstance(tokenizer, cls):
            raise ValueError(f"this is a {type(tokenizer).__name__}, where a {cls.__name__} was expected")
        return tokenizer

    def fingerprint(self) -> str:
        """A digest that changes with everything that changes ids, arguments of an untrained tokenizer included."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write `to_json()` to `path`, whole or not at all. RuntimeError before training."""
        _ = self._table
        write_atomic(Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        try:
            return cls.from_json(read_text(Path(path)))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def __reduce__(self) -> tuple[Callable[[str], Tokenizer], tuple[str]]:
        return load_tokenizer, (self.to_json(),)  # copies and pickles hold plain text, no native object


def load_tokenizer(text: str) -> Tokenizer:
    """The tokenizer that `to_json` wrote.

    Raises:
        ValueError: this is no JSON of a tokenizer of ours.
    """
    try:
        state = json.loads(text)
        kind = state.pop("type")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise ValueError('this is no saved tokenizer: JSON with a "type" was expected') from None
    if kind not in KINDS:
        raise ValueError(f"the tokenizer type {kind!r} is none of {', '.join(KINDS)}")
    cls = getattr(importlib.import_module(f"datamodules.tokenizers.{kind}"), KINDS[kind])
    tokenizer = cls.__new__(cls)
    tokenizer._set_state(state)
    return tokenizer


def check_special_tokens(names: Sequence[str]) -> list[str]:
    """A copy of `names`; ValueError for one that is unknown or given twice."""
    for i, name in enumerate(names):
        if name not in SPECIAL_TOKENS:
            raise ValueError(f"the special token {name!r} is none of {' '.join(SPECIAL_TOKENS)}")
        if name in names[:i]:
            raise ValueError(f"the special token {name} is given twice")
    return list(names)


def read_text(path: Path) -> str:
    """Raises FileNotFoundError or ValueError that names the file."""
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileNotFoundError(f"the tokenizer file {path} does not exist: python -m pipeline tokenize makes one") from None
    except OSError as error:
        raise ValueError(f"the tokenizer file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the tokenizer file {path} is not UTF-8: JSON was expected") from None
