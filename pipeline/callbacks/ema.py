"""An exponential moving average of the weights: what is validated, kept as best, and used by every other command."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from pipeline.callbacks.steps import is_whole_step

RAW = "raw_state_dict"
"""The weights that training goes on from; `state_dict` of such a checkpoint is the average."""


class EMA(Callback):
    """After each optimizer step k: average = d average + (1 - d) weights, with d = min(decay, (1 + k) / (10 + k)).

    It covers trained weights and floating-point buffers of the network (batch norm's statistics).
    Source: Polyak & Juditsky 1992; the growing decay: Tarvainen & Valpola 2017, section 3, as in TensorFlow's num_updates.

    Args:
        decay: d, below 1.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._average: dict[str, Tensor] = {}  # while swapped: the weights
        self._swapped = False
        self._raw: dict[str, Tensor] | None = None  # of the checkpoint that is gone on from

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._raw = checkpoint.get(RAW)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._average = {name: value.detach().clone() for name, value in _averaged(pl_module).items()}
        if self._raw is not None:  # what was loaded is the average
            trainer.strategy.load_model_state_dict({"state_dict": self._raw}, strict=True)
            self._raw = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not is_whole_step(trainer, batch_idx):
            return
        step = trainer.global_step
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self._average.values()), list(_averaged(pl_module).values()), 1.0 - decay)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._swap(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._swap(pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        own = checkpoint["state_dict"]
        other = {name: self._average.get(name, value) for name, value in own.items()}
        checkpoint["state_dict"], checkpoint[RAW] = (own, other) if self._swapped else (other, own)

    @torch.no_grad()
    def _swap(self, pl_module: LightningModule) -> None:
        for name, value in _averaged(pl_module).items():
            kept = value.detach().clone()
            value.copy_(self._average[name])
            self._average[name].copy_(kept)
        self._swapped = not self._swapped


def _averaged(module: LightningModule) -> dict[str, Tensor]:
    """Trained weights, and the network's floating-point buffers, by their names in the module's state."""
    weights = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    return weights | {name: b for name, b in module.named_buffers() if b.is_floating_point() and name.startswith("net.")}
