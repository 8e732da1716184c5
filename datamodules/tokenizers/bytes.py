"""UTF-8 bytes as tokens: no training, no unknown character, the longest sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from datamodules.tokenizers.base import Tokenizer, check_special_tokens


@final
class ByteTokenizer(Tokenizer):
    """The special tokens, then the 256 bytes: byte b has id len(special_tokens) + b.

    Source: ByT5 (arXiv:2105.13626), section 3.1.
    """

    kind = "bytes"

    def __init__(self, special_tokens: list[str] = ["[PAD]", "[EOS]"]) -> None:  # noqa: B006 - copied, never changed
        self.special_tokens = check_special_tokens(special_tokens)

    def train(self, texts: Iterable[str]) -> None:
        """Nothing is learned."""

    @property
    def is_trained(self) -> bool:
        return True

    def encode(self, text: str) -> list[int]:
        offset = len(self.special_tokens)
        return [byte + offset for byte in text.encode()]

    def _vocabulary(self) -> list[bytes]:
        return [name.encode() for name in self.special_tokens] + [bytes([b]) for b in range(256)]

    def _state(self) -> dict[str, Any]:
        return {"special_tokens": self.special_tokens}

    def _set_state(self, state: dict[str, Any]) -> None:
        self.special_tokens = check_special_tokens(state["special_tokens"])
