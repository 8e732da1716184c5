"""An alarm for a contrastive loss that stays where features that say nothing have it."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from lit_models.clip import LitCLIP
from lit_models.losses.contrastive import chance
from pipeline.callbacks.clip_rows import refuse_other
from pipeline.callbacks.parts import datamodule
from pipeline.callbacks.steps import is_logged, is_whole_step

BELOW = 0.95  # of chance: by then something has been learned


class CollapseAlarm(Callback):
    """Warns once, on the terminal and in W&B, where a CLIP's training loss has not left that of chance in time.

    It looks at the steps that are logged.

    Args:
        patience: optimizer steps that the loss has.
    """

    def __init__(self, patience: int = 300) -> None:
        if patience < 1:
            raise ValueError(f"patience is {patience}; it must be at least 1")
        self.patience = patience
        self.learned = self.warned = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        refuse_other(self, pl_module, datamodule(trainer))

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned, "warned": self.warned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.learned, self.warned = state_dict["learned"], state_dict["warned"]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LitCLIP)
        if self.learned or self.warned or not (is_whole_step(trainer, batch_idx) and is_logged(trainer)):
            return
        num_pairs, sigmoid = datamodule(trainer).batch_size, pl_module.loss == "sigmoid"
        expected = chance(num_pairs, sigmoid)
        self.learned = pl_module.step_metrics()["train/loss"] < BELOW * expected
        self.warned = not self.learned and trainer.global_step >= self.patience
        if self.warned and trainer.is_global_zero:
            chances = f"{expected:.2f}" if sigmoid else f"ln({num_pairs}) = {expected:.2f}"
            self._warn(trainer, f"the loss has stayed at {chances}, that of chance, for {trainer.global_step} steps")

    def _warn(self, trainer: Trainer, what: str) -> None:
        text = f"{what}: nothing is learned; lower the learning rate, and see whether the captions fit their images"
        print(f"warning: {text}", flush=True)
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.alert(title="the loss stays at chance", text=text)
