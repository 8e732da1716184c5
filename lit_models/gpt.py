"""GPT's objective: predict the next token."""

import math
from typing import Any

import torch
from torch import Tensor

from datamodules.batch import TokenBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.language import token_cross_entropy
from lit_models.nn.gpt import GPT


class LitGPT(LitBase):
    """Cross-entropy of the next token, in nats, over every position whose label is not IGNORE_INDEX.

    Pre-training and supervised fine-tuning are the same objective: the data decides which labels count.
    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners.
    """

    unit = "tokens"
    counted = "token"
    next_command = 'generate --run_dir {run_dir} --prompt "..."'
    net: GPT

    def __init__(self, net: GPT, *args: Any, **options: Any) -> None:
        super().__init__(net, *args, **options)

    def step(self, batch: TokenBatch) -> Loss:
        nats, count = token_cross_entropy(self.net(batch["input_ids"]), batch["labels"])
        if "num_bytes" not in batch:
            return Loss(nats, count)
        return Loss(nats, count, {"bits_per_byte": (nats / math.log(2), batch["num_bytes"].sum())})

    def units(self, batch: TokenBatch) -> int:
        return batch["input_ids"].numel()

    def flops_per_unit(self) -> float:
        return self.net.flops_per_token

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        return {"perplexity": math.exp(min(metrics["loss"], 700.0))} if "loss" in metrics else {}

    def predict_step(self, batch: TokenBatch, batch_idx: int) -> dict[str, Tensor]:
        """Loss and size of each sample: index, nats, tokens and bytes, each (B,)."""
        logits: Tensor = self.net(batch["input_ids"])
        nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten(), reduction="none")
        return {
            "index": batch["index"],
            "nats": nats.view_as(batch["labels"]).sum(1),
            "tokens": (batch["labels"] >= 0).sum(1),
            "bytes": batch["num_bytes"],
        }
