"""What the datamodules of BERT share: a tokenizer with its special tokens, from a pre-trained run where there is one."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from datamodules.base import BaseDataModule, checkpoint_assets
from datamodules.tokenizers.base import SPECIAL_TOKENS, Tokenizer, load_tokenizer


@dataclass(frozen=True)
class SpecialIds:
    """The ids that sequences are made with."""

    pad: int
    cls: int
    sep: int
    mask: int

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "SpecialIds":
        """
        Raises:
            ValueError: the tokenizer lacks one.
        """
        ids = {name: getattr(tokenizer, f"{name}_id") for name in ("pad", "cls", "sep", "mask")}
        refuse_missing([f"[{name.upper()}]" for name, i in ids.items() if i is None])
        return cls(**ids)


def refuse_missing(names: list[str]) -> None:
    """Raises ValueError where special tokens are missing."""
    if names:
        wanted = ", ".join(name for name in SPECIAL_TOKENS if name != "[EOS]")
        raise ValueError(f"the tokenizer lacks {' '.join(names)}: give it the special_tokens [{wanted}]")


def one_line(text: str) -> str:
    """As sentences are encoded: single spaces, and one in front, so that a word is the same token wherever it stands."""
    return " " + " ".join(text.split())


class EncodedDataModule(BaseDataModule):
    """Sequences of token ids with [CLS] and [SEP].

    Args:
        tokenizer: with [PAD] [CLS] [SEP] [MASK]; trained on the train split if it is not yet. Not looked at with init_from.
        max_seq_len: tokens of a sequence at most; the runner links it to the network's.
        init_from: checkpoint whose tokenizer is used and, where the source has no train split, whose classes; the runner sets
            it to the one that the model starts from, and to the run's own when a trained model is evaluated.
        cache_dir: where tokenizer and ids are kept. Default: `$XDG_CACHE_HOME/lit-pipeline`.

    Raises:
        ValueError: max_seq_len is below 8, or the tokenizer lacks a special token.
    """

    def __init__(
        self, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128, init_from: str | None = None,
        micro_batch_size: int | None = None, eval_batch_size: int | None = None, num_workers: int = 0, seed: int = 0,
        cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size, micro_batch_size, eval_batch_size, num_workers, seed)
        if max_seq_len < 8:
            raise ValueError(f"max_seq_len is {max_seq_len}; it must be at least 8")
        self.max_seq_len, self.init_from, self.cache_dir = max_seq_len, init_from, cache_dir
        self._given_tokenizer = tokenizer

    @cached_property
    def _pretrained(self) -> dict[str, Any]:
        return checkpoint_assets(self.init_from, "tokenizer") if self.init_from else {}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """The one to start from: trained where it comes from a checkpoint. An unfit one is refused before any work."""
        text = self._pretrained.get("tokenizer")
        tokenizer = load_tokenizer(text) if text else self._given_tokenizer
        if tokenizer.is_trained:
            SpecialIds.of(tokenizer)
        else:
            refuse_missing([name for name in ("[PAD]", "[CLS]", "[SEP]", "[MASK]") if name not in tokenizer.special_tokens])
        return tokenizer

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """Trained, as the ids were made with it."""

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def assets(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.to_json()}


def starts_of(lengths: Iterable[int]) -> np.ndarray:
    """(n + 1,) where each of n parts that stand one after the other begins; last, where they end."""
    return np.concatenate([[0], np.cumsum(np.fromiter(lengths, dtype=np.int64))]).astype(np.int64)
