"""Running text for language models: windows of token ids, memory-mapped."""

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules import token_cache
from datamodules.base import BaseDataModule, chosen_split
from datamodules.batch import IGNORE_INDEX, TokenBatch
from datamodules.order import Key
from datamodules.sources.base import TextSource
from datamodules.tokenizers.base import Tokenizer


@lru_cache(maxsize=8)
def epoch_offset(seed: int, epoch: int, max_seq_len: int) -> int:
    """Tokens before the first window of an epoch, 0 to max_seq_len - 1."""
    return int(np.random.default_rng((seed, epoch, 1)).integers(max_seq_len))


class TokenWindows:
    """Windows of `max_seq_len` tokens and, shifted by one, what they predict.

    In training the windows do not overlap and start at an offset drawn from (seed, epoch), so that over the epochs each
    token is predicted from contexts of every length. In evaluation they cover the split: every token but the first is
    predicted once.
    """

    def __init__(self, path: Path, max_seq_len: int, *, seed: int = 0, token_bytes: np.ndarray | None = None) -> None:
        self.path, self.max_seq_len, self.seed = path, max_seq_len, seed
        self.token_bytes = token_bytes  # (V,), in evaluation only
        self.num_tokens = len(self.tokens)

    @cached_property
    def tokens(self) -> np.ndarray:
        return token_cache.open_tokens(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "tokens"}  # a worker maps the file itself

    def __len__(self) -> int:
        if self.token_bytes is None:
            return max(0, self.num_tokens - self.max_seq_len) // self.max_seq_len
        return -(-(self.num_tokens - 1) // self.max_seq_len)

    def __getitem__(self, key: Key) -> TokenBatch:
        epoch, indices, *_ = key
        span = np.arange(self.max_seq_len + 1)
        if self.token_bytes is None:
            offset = epoch_offset(self.seed, epoch, self.max_seq_len)
            window = torch.from_numpy(self.tokens[offset + indices[:, None] * self.max_seq_len + span].astype(np.int64))
            return {"input_ids": window[:, :-1], "labels": window[:, 1:]}
        position = indices[:, None] * self.max_seq_len + span  # (B, T + 1)
        ids = self.tokens[np.minimum(position, self.num_tokens - 1)].astype(np.int64)
        labels = np.where(position[:, 1:] < self.num_tokens, ids[:, 1:], IGNORE_INDEX)
        num_bytes = np.where(labels >= 0, self.token_bytes[ids[:, 1:]], 0).sum(1)
        return {
            "input_ids": torch.from_numpy(ids[:, :-1].copy()),
            "labels": torch.from_numpy(labels),
            "num_bytes": torch.from_numpy(num_bytes),
            "index": torch.from_numpy(indices),
        }


class TextDataModule(BaseDataModule):
    """Next-token prediction on a text source. Batches are `TokenBatch`.

    Args:
        source: where the documents come from.
        tokenizer: trained on the train split if it is not yet; the ids are cached.
        max_seq_len: tokens of context T; the runner links it to the network's.
        cache_dir: where tokenizer and ids are kept. Default: `$XDG_CACHE_HOME/lit-pipeline`.

    Raises:
        ValueError: a text is empty or shorter than the context, or a size is wrong.
    """

    def __init__(
        self, source: TextSource, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128,
        micro_batch_size: int | None = None, eval_batch_size: int | None = None, num_workers: int = 0, seed: int = 0,
        cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size, micro_batch_size, eval_batch_size, num_workers, seed)
        if max_seq_len < 1:
            raise ValueError(f"data.init_args.max_seq_len is {max_seq_len}; it must be at least 1")
        self.source, self.max_seq_len, self.cache_dir = source, max_seq_len, cache_dir
        self._untrained = tokenizer

    @cached_property
    def _prepared(self) -> token_cache.PreparedText:
        prepared = token_cache.prepare(self.source, self._untrained, self.cache_dir)
        needed = {"train": 2 * self.max_seq_len, "validation": 2}
        for split, least in needed.items():
            if split in prepared.paths and (found := len(token_cache.open_tokens(prepared.paths[split]))) < least:
                raise ValueError(
                    f"{self.source.describe()}: the {split} split has {found} tokens,"
                    f" too few for max_seq_len {self.max_seq_len}: it needs at least {least}"
                )
        return prepared

    def prepare(self) -> None:
        self._prepared  # noqa: B018

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prepared.tokenizer

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def dataset(self, split: str) -> TokenWindows:
        path = chosen_split(self.source, self._prepared.paths, split)
        token_bytes = None if split == "train" else self.tokenizer.token_bytes()
        return TokenWindows(path, self.max_seq_len, seed=self.seed, token_bytes=token_bytes)

    def assets(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.to_json()}
