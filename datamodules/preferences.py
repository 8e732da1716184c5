"""Pairs of responses to one prompt, of which people prefer the first."""

from typing import ClassVar, final

import numpy as np
import torch

from datamodules.batch import PreferenceBatch
from datamodules.exchanges import Column, ExchangeDataModule, padded
from datamodules.order import Key
from datamodules.tokenizers.base import Tokenizer


class Preferences:
    """Prompt, response, [EOS], cut off at max_seq_len; without prompts that leave no room, and pairs that are equal then."""

    def __init__(self, columns: dict[str, Column], tokenizer: Tokenizer, max_seq_len: int) -> None:
        self.columns, self.max_seq_len = columns, max_seq_len
        self.pad_id, self.eos_id = tokenizer.pad_id, tokenizer.eos_id
        self.prompt_lengths = columns["prompt"].lengths
        room = self.prompt_lengths < max_seq_len
        both = ((self._sequence(i, "chosen"), self._sequence(i, "rejected")) for i in range(len(room)))
        different = np.array([not np.array_equal(a, b) for a, b in both], dtype=bool)
        self.num_without_room, self.num_equal = int((~room).sum()), int((room & ~different).sum())
        self.rows = np.flatnonzero(room & different)
        longer = np.maximum(columns["chosen"].lengths, columns["rejected"].lengths)
        self._lengths = np.minimum(self.prompt_lengths + longer + 1, max_seq_len)[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self, epoch: int) -> np.ndarray:
        """(N,) tokens of the longer one of each pair."""
        return self._lengths

    def __getitem__(self, key: Key) -> PreferenceBatch:
        _, indices, *_ = key
        rows = self.rows[indices]
        ids, lengths = padded([self._sequence(i, name) for name in ("chosen", "rejected") for i in rows], self.pad_id)
        return {
            "input_ids": torch.from_numpy(ids),
            "lengths": torch.from_numpy(lengths),
            "prompt_lengths": torch.from_numpy(np.tile(self.prompt_lengths[rows], 2)),
            "num_pairs": len(rows),
            "index": torch.from_numpy(indices),
        }

    def _sequence(self, row: int, name: str) -> np.ndarray:
        return np.concatenate((self.columns["prompt"].row(row), self.columns[name].row(row), [self.eos_id]))[: self.max_seq_len]


@final
class PreferenceDataModule(ExchangeDataModule[Preferences]):
    """Preferences for a reward model or for DPO. Batches are `PreferenceBatch`.

    Args:
        source: a PreferenceSource.
        tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir: see
            ExchangeDataModule; a sample of a batch is a pair.
    """

    columns: ClassVar[tuple[str, ...]] = ("prompt", "chosen", "rejected")

    def split(self, split: str, tokenizer: Tokenizer, columns: dict[str, Column]) -> Preferences:
        made = Preferences(columns, tokenizer, self.max_seq_len)
        limit = f"max_seq_len {self.max_seq_len}"
        self.say_left_out(split, f"prompts leave no room in {limit} and are left out", made.num_without_room)
        self.say_left_out(split, f"pairs are equal when cut off at {limit} and are left out", made.num_equal)
        return made
