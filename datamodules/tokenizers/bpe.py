"""Byte-level byte-pair encoding: every text has ids, and comes back exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from datamodules.tokenizers.base import KINDS, PIECE, Tokenizer, check_special_tokens, load_tokenizer, read_text

if TYPE_CHECKING:
    import tokenizers

# A pre-token never continues over the border before a space that follows a non-space, in GPT-2's pattern and its heirs:
# texts are cut there, since one encoding of a whole book costs 100 bytes of bookkeeping a byte, on one core.
BORDER = re.compile(r"(?<=\S)(?= )")


@final
class BPETokenizer(Tokenizer):
    """The special tokens, the 256 bytes, then merges of GPT-2's pre-tokens until `vocab_size`, or until no pair occurs twice.

    The most frequent pair is merged next; of equally frequent ones, that with the lowest ids: bytes in the order of GPT-2's
    stand-in characters (so `!` to `~` as in ASCII, space after them), then merges in the order they were learned. Neither the
    order of the documents nor hashing has a say. A small text gives fewer ids than `vocab_size`.

    With `lowercase` a text is encoded, and comes back, in small letters.

    `path` names a saved tokenizer, or a `tokenizer.json` of byte-level BPE in Hugging Face's format such as GPT-2's. The file
    then decides everything: the other arguments are not looked at.

    Source: Sennrich et al. (arXiv:1508.07909), algorithm 1; GPT-2 (Radford et al. 2019), section 2.2, for bytes and pre-tokens.
    """

    kind = "bpe"

    def __init__(
        self,
        vocab_size: int = 2048,
        special_tokens: list[str] = ["[PAD]", "[EOS]"],  # noqa: B006 - copied, never changed
        path: str | None = None,
        lowercase: bool = False,
    ) -> None:
        self._wanted_size, self._lowercase = vocab_size, lowercase
        self._model: dict[str, Any] | None = None  # Hugging Face's JSON, once trained
        if path is not None:
            self._set_file(Path(path))
            return
        self.special_tokens = check_special_tokens(special_tokens)
        if vocab_size < (least := 256 + len(special_tokens)):
            raise ValueError(
                f"vocab_size {vocab_size} is below 256 bytes + {len(special_tokens)} special tokens: {least} is the least"
            )

    def train(self, texts: Iterable[str]) -> None:
        if self.is_trained:
            return
        from tokenizers import Tokenizer as Backend
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        backend = Backend(models.BPE())
        if self._lowercase:
            backend.normalizer = normalizers.Lowercase()
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self._wanted_size,
            min_frequency=2,  # a merge seen once is a memory of the text, not a unit of the language
            special_tokens=self.special_tokens,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator((piece for text in texts for piece in self.pieces(text)), trainer)
        self._model = json.loads(backend.to_str())

    @property
    def is_trained(self) -> bool:
        return self._model is not None

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [e.ids for e in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def pieces(self, text: str) -> Iterator[str]:
        start = 0
        while border := BORDER.search(text, start + PIECE):
            yield text[start : border.start()]
            start = border.start()
        if start < len(text):
            yield text[start:]

    @cached_property
    def _backend(self) -> tokenizers.Tokenizer:
        _ = self._table  # refuses an untrained tokenizer
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_str(json.dumps(self._model))
        backend.encode_special_tokens = True  # "[EOS]" inside a text is five characters
        return backend

    def _is_special(self, token_id: int) -> bool:
        return token_id in self._special_set

    @cached_property
    def _special_set(self) -> frozenset[int]:
        return frozenset(t["id"] for t in self._added if t["special"])

    @property
    def _added(self) -> list[dict[str, Any]]:
        return self._model["added_tokens"] if self._model else []

    def _vocabulary(self) -> list[bytes]:
        assert self._model is not None
        vocab = self._model["model"]["vocab"]
        added = {t["id"]: t["content"].encode() for t in self._added}
        table = [b""] * (1 + max([*vocab.values(), *added]))
        for entry, i in vocab.items():
            table[i] = added[i] if i in added else bytes(BYTE_OF[c] for c in entry)
        for i, content in added.items():
            table[i] = content
        return table

    def _state(self) -> dict[str, Any]:
        wanted = {} if self.is_trained else {"vocab_size": self._wanted_size, "lowercase": self._lowercase}
        return {"special_tokens": self.special_tokens, **wanted, "tokenizer": self._model}

    def _set_state(self, state: dict[str, Any]) -> None:
        self._model = None if state["tokenizer"] is None else checked(state["tokenizer"])
        self._wanted_size, self._lowercase = int(state.get("vocab_size", 0)), bool(state.get("lowercase", False))
        self.special_tokens = list(state["special_tokens"])

    def _set_file(self, path: Path) -> None:
        """Raises FileNotFoundError or ValueError that names the file."""
        text = read_text(path)
        try:
            state = json.loads(text)
            if isinstance(state, dict) and "model" in state and "type" not in state:  # Hugging Face's own format
                special = [t["content"] for t in state.get("added_tokens", []) if t["special"]]
                state = {"special_tokens": special, "tokenizer": state}
            elif not isinstance(tokenizer := load_tokenizer(text), BPETokenizer):
                raise ValueError(f"this is a {KINDS[tokenizer.kind]}: name datamodules.tokenizers.{tokenizer.kind} instead")
            self._set_state(state)
            _ = self._backend
        except Exception as error:  # the backend raises plain Exception for a file that it cannot read
            raise ValueError(f"{path} is no tokenizer of byte-level BPE: {error}") from None


def checked(model: dict[str, Any]) -> dict[str, Any]:
    """Hugging Face's JSON without what would add to, cut or pad the ids; ValueError if it is not byte-level BPE."""
    if model["model"].get("type", "BPE") != "BPE":
        raise ValueError(f"its model is {model['model']['type']}")
    splitter = model.get("pre_tokenizer") or {}
    if not any(p["type"] == "ByteLevel" for p in splitter.get("pretokenizers", [splitter]) if p):
        raise ValueError("its pre_tokenizer is not ByteLevel")
    return {**model, "truncation": None, "padding": None, "post_processor": None}


def byte_of() -> dict[str, int]:
    """GPT-2's stand-in character of each byte: itself where it prints, else the next free one from U+0100 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


BYTE_OF = byte_of()
