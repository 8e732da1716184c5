"""Where a language model looks, as a picture."""

from pathlib import Path

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from pipeline import figures


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
        tokenizer = trainer.datamodule.tokenizer  # type: ignore[attr-defined]
        ids = tokenizer.encode(self.prompt)[: min(self.max_tokens, pl_module.net.max_seq_len)]
        weights = pl_module.net.attention_maps(torch.tensor([ids], device=pl_module.device))[:, 0]
        figure = figures.attention_grid(weights, [tokenizer.decode([i]) for i in ids])
        path = Path(trainer.default_root_dir) / "figures" / "attention.png"
        figures.save(figure, path)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_image("attention", [str(path)], step=trainer.global_step)
