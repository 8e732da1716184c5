"""Where a language model looks, as a picture."""

from typing import cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from datamodules.encoded import SpecialIds, one_line
from datamodules.tokenizers.base import Tokenizer
from lit_models.nn.bert import BERTEncoder
from lit_models.nn.gpt import GPT
from pipeline import figures
from pipeline.callbacks.parts import datamodule, publish


class AttentionMaps(Callback):
    """Attention weights for a fixed prompt, a panel per layer and head: run_dir/figures/attention.png, and W&B's history.

    A BERT is shown [CLS] prompt [SEP], a GPT the prompt alone.

    Args:
        prompt: the text; its first `max_tokens` tokens are shown.
        max_tokens: tokens on each axis at most.
    """

    def __init__(self, prompt: str = "The city was founded in the year 1850, and it is", max_tokens: int = 24) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens

    @torch.no_grad()
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        tokenizer: Tokenizer = datamodule(trainer).tokenizer
        if isinstance(pl_module.net, BERTEncoder):
            weights, ids = self._of_encoder(pl_module.net, tokenizer, pl_module.device)
            brightest = float(weights.max())  # looking both ways, few weights come near 1
        else:
            weights, ids = self._of_gpt(cast(GPT, pl_module.net), tokenizer, pl_module.device)
            brightest = 1.0
        figure = figures.attention_grid(weights, [tokenizer.decode([i], skip_special_tokens=False) for i in ids], brightest)
        publish(trainer, figure, "attention")

    def _of_gpt(self, net: GPT, tokenizer: Tokenizer, device: torch.device) -> tuple[Tensor, list[int]]:
        ids = tokenizer.encode(self.prompt)[: min(self.max_tokens, net.max_seq_len)]
        return net.attention_maps(torch.tensor([ids], device=device))[:, 0], ids

    def _of_encoder(self, net: BERTEncoder, tokenizer: Tokenizer, device: torch.device) -> tuple[Tensor, list[int]]:
        special = SpecialIds.of(tokenizer)
        text = tokenizer.encode(one_line(self.prompt))[: max(0, min(self.max_tokens, net.max_seq_len) - 2)]
        ids = [special.cls, *text, special.sep]
        input_ids = torch.tensor([ids], device=device)
        mask = torch.ones_like(input_ids, dtype=torch.bool)
        return net.attention_maps(input_ids, torch.zeros_like(input_ids), mask)[:, 0], ids
