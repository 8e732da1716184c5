"""Supervised fine-tuning: what to say after a prompt."""

from typing import ClassVar, final

import numpy as np
import torch

from datamodules.batch import IGNORE_INDEX, TokenBatch
from datamodules.exchanges import Column, ExchangeDataModule, padded
from datamodules.order import Key
from datamodules.tokenizers.base import Tokenizer


class Responses:
    """Prompt, response, [EOS]; the labels are the response and its [EOS] alone.

    A response that is too long is cut off, and has no [EOS] then. A prompt that leaves no room is left out.
    """

    def __init__(self, prompts: Column, responses: Column, tokenizer: Tokenizer, max_seq_len: int, with_bytes: bool) -> None:
        self.prompts, self.responses, self.max_seq_len = prompts, responses, max_seq_len
        self.pad_id, self.eos_id = tokenizer.pad_id, tokenizer.eos_id
        self.token_bytes = tokenizer.token_bytes() if with_bytes else None
        self.rows = np.flatnonzero(prompts.lengths < max_seq_len)
        whole = prompts.lengths + responses.lengths + 1
        self.num_left_out = len(prompts.lengths) - len(self.rows)
        self.num_cut = int((whole[self.rows] > max_seq_len).sum())
        self._lengths = np.minimum(whole, max_seq_len)[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def lengths(self, epoch: int) -> np.ndarray:
        """(N,) tokens of each sample: batches are of about one length, so that hardly anything is padding."""
        return self._lengths

    def __getitem__(self, key: Key) -> TokenBatch:
        _, indices, *_ = key
        rows = self.rows[indices]
        ids, lengths = padded([self._sequence(row) for row in rows], self.pad_id)
        place = np.arange(1, ids.shape[1])
        is_response = (place >= self.prompts.lengths[rows][:, None]) & (place < lengths[:, None])
        labels = np.where(is_response, ids[:, 1:], IGNORE_INDEX)
        batch: TokenBatch = {"input_ids": torch.from_numpy(ids[:, :-1].copy()), "labels": torch.from_numpy(labels)}
        if self.token_bytes is not None:
            num_bytes = np.where(is_response, self.token_bytes[ids[:, 1:]], 0).sum(1)
            batch |= {"num_bytes": torch.from_numpy(num_bytes), "index": torch.from_numpy(indices)}
        return batch

    def _sequence(self, row: int) -> np.ndarray:
        return np.concatenate((self.prompts.row(row), self.responses.row(row), [self.eos_id]))[: self.max_seq_len]


@final
class ResponseDataModule(ExchangeDataModule[Responses]):
    """Supervised fine-tuning on a source of prompts and responses. Batches are `TokenBatch`.

    Args:
        source: a ResponseSource.
        tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir: see
            ExchangeDataModule.
    """

    columns: ClassVar[tuple[str, ...]] = ("prompt", "response")

    def split(self, split: str, tokenizer: Tokenizer, columns: dict[str, Column]) -> Responses:
        made = Responses(columns["prompt"], columns["response"], tokenizer, self.max_seq_len, split != "train")
        self.say_left_out(split, f"prompts leave no room in max_seq_len {self.max_seq_len} and are left out", made.num_left_out)
        self.say_left_out(split, f"responses do not fit into max_seq_len {self.max_seq_len} and are cut off", made.num_cut)
        return made
