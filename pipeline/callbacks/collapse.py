"""An alarm for a contrastive loss that stays where features that say nothing have it."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from lit_models.clip import LitCLIP
from lit_models.losses.contrastive import chance
from pipeline.callbacks.parts import datamodule
from pipeline.callbacks.steps import is_logged, is_whole_step

BELOW = 0.95  # of chance: by then something has been learned


class CollapseAlarm(Callback):
    """Warns once, on the terminal and in W&B, when the training loss has not left ln(batch) in time.

    Args:
        patience: optimizer steps that it has.
    """

    def __init__(self, patience: int = 300) -> None:
        if patience < 1:
            raise ValueError(f"patience is {patience}; it must be at least 1")
        self.patience, self.learned, self.warned = patience, False, False

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned, "warned": self.warned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.learned, self.warned = state_dict["learned"], state_dict["warned"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, LitCLIP):
            raise ValueError(f"CollapseAlarm is for a LitCLIP, and the model is a {type(pl_module).__name__}")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LitCLIP)
        if self.learned or self.warned or not (is_whole_step(trainer, batch_idx) and is_logged(trainer)):
            return
        loss, num_pairs = pl_module.step_metrics()["train/loss"], datamodule(trainer).batch_size
        expected = chance(num_pairs, pl_module.loss == "sigmoid")
        self.learned = loss < BELOW * expected
        if not self.learned and trainer.global_step >= self.patience:
            self.warned = True
            self._warn(trainer, loss, expected, num_pairs)

    def _warn(self, trainer: Trainer, loss: float, expected: float, num_pairs: int) -> None:
        if not trainer.is_global_zero:
            return
        text = (
            f"after {trainer.global_step} steps the loss is {loss:.2f}, and features that say nothing have {expected:.2f} with"
            f" {num_pairs} pairs: nothing is learned; lower the rate, and look whether captions fit their images"
        )
        print(f"alarm: {text}")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.alert(title="the loss stays at chance", text=text)
