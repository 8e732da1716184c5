"""Prompts that a policy answers."""

from typing import ClassVar, final

import numpy as np
import torch

from datamodules.batch import PromptBatch
from datamodules.draws import uniform
from datamodules.exchanges import Column, ExchangeDataModule, padded
from datamodules.order import Key
from datamodules.sources.base import Source
from datamodules.tokenizers.base import Tokenizer

_RESPONSE = 60
"""What a draw is for (other modules have those below)."""


class Prompts:
    """Prompts that leave room for a response; the others are left out."""

    def __init__(
        self, prompts: Column, tokenizer: Tokenizer, max_prompt_len: int, seed: int, micro_batch_size: int | None
    ) -> None:  # fmt: skip
        self.prompts, self.pad_id, self.seed, self.micro_batch_size = prompts, tokenizer.pad_id, seed, micro_batch_size
        self.rows = np.flatnonzero(prompts.lengths <= max_prompt_len)
        self.num_left_out = len(prompts.lengths) - len(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Key) -> PromptBatch:
        epoch, indices, _ = key
        ids, lengths = padded([self.prompts.row(row) for row in self.rows[indices]], self.pad_id)
        seeds = (uniform(self.seed, epoch, indices, _RESPONSE) * 2**53).astype(np.int64)
        return {
            "input_ids": torch.from_numpy(ids),
            "lengths": torch.from_numpy(lengths),
            "seeds": torch.from_numpy(seeds),
            "micro_batch_size": self.micro_batch_size or 2**31,
            "index": torch.from_numpy(indices),
        }


@final
class PromptDataModule(ExchangeDataModule[Prompts]):
    """The prompts of a source, for PPO. Batches are `PromptBatch`.

    Args:
        source: any source with a column `prompt`.
        max_new_tokens: room for a response; the runner links it to the model's.
        micro_batch_size: responses that one device takes at once in the forward and backward that train.
        tokenizer, batch_size, max_seq_len, init_from, eval_batch_size, num_workers, seed, cache_dir: see ExchangeDataModule; a
            sample of a batch is a prompt.

    Raises:
        ValueError: no prompt leaves room for max_new_tokens.
    """

    columns: ClassVar[tuple[str, ...]] = ("prompt",)

    def __init__(
        self, source: Source, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128, max_new_tokens: int = 32,
        init_from: str | None = None, micro_batch_size: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0, seed: int = 0, cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            source, tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed,
            cache_dir,
        )  # fmt: skip
        if max_new_tokens >= max_seq_len:
            raise ValueError(f"max_new_tokens {max_new_tokens} leaves no room for a prompt in max_seq_len {max_seq_len}")
        self.max_new_tokens = max_new_tokens

    def split(self, split: str, tokenizer: Tokenizer, columns: dict[str, Column]) -> Prompts:
        room = self.max_seq_len - self.max_new_tokens
        made = Prompts(columns["prompt"], tokenizer, room, self.seed, self.micro_batch_size)
        self.say_left_out(split, f"prompts are longer than {room} tokens (max_seq_len less max_new_tokens)", made.num_left_out)
        return made

    def accumulation(self, world_size: int) -> int:
        """One: a rank's whole share is a rollout, which the model itself cuts into micro-batches."""
        super().accumulation(world_size)
        return 1
