"""Where a language model looks, as a picture."""

from pathlib import Path
from typing import cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from datamodules.text import TextDataModule
from lit_models.nn.gpt import GPT
from pipeline import figures
from pipeline.callbacks.parts import datamodule


class AttentionMaps(Callback):
    """Attention weights for a fixed prompt, a panel per layer and head: run_dir/figures/attention.png, and W&B's history.

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
        data: TextDataModule = datamodule(trainer)
        tokenizer, net = data.tokenizer, cast(GPT, pl_module.net)
        ids = tokenizer.encode(self.prompt)[: min(self.max_tokens, net.max_seq_len)]
        weights = net.attention_maps(torch.tensor([ids], device=pl_module.device))[:, 0]
        figure = figures.attention_grid(weights, [tokenizer.decode([i]) for i in ids])
        path = Path(trainer.default_root_dir) / "figures" / "attention.png"
        figures.save(figure, path)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_image("attention", [str(path)], step=trainer.global_step)
