"""An orderly end on SIGTERM, SIGUSR1 and Ctrl-C: finish the step, save, say so, leave with the right exit code."""

import signal
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from pipeline.callbacks.checkpoints import Checkpoints
from pipeline.callbacks.steps import is_due, is_whole_step
from pipeline.errors import Stopped


class StopOnSignal(Callback):
    """The handler only notes the signal; between batches all ranks agree, save last.ckpt and leave together.

    A validation under way is given up: the checkpoint says that it is pending, and the continued run starts with it.
    A second Ctrl-C stops at once, without saving.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received: int | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # After Lightning's own registration, whose handler would end the run with exit code 0.
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signum

    def _agreed(self, trainer: Trainer) -> bool:
        if trainer.world_size == 1:
            return self.received is not None
        return trainer.strategy.reduce_boolean_decision(self.received is not None, all=False)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_whole_step(trainer, batch_idx) and self._agreed(trainer):
            self._stop(trainer, val_pending=is_due(trainer, batch_idx))

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        # Ranks may have unequal numbers of batches here, so they cannot agree in the middle of a validation.
        if trainer.state.fn == "fit" and trainer.world_size == 1 and self.received is not None:
            self._stop(trainer, val_pending=True)

    def _stop(self, trainer: Trainer, *, val_pending: bool) -> None:
        name = signal.Signals(self.received).name if self.received else "a signal on another rank"
        step = trainer.global_step
        saved = "the last checkpoint stands"  # in the final validation: there is no step left to go on from, only to repeat
        if step < trainer.max_steps:
            self.checkpoints.save_last(trainer, val_pending=val_pending)
            saved = f"saved {self.checkpoints.folder / 'last.ckpt'}"
        code = 130 if self.received == signal.SIGINT else 143
        raise Stopped(f"stopped by {name} after step {step}; {saved}: the same command goes on from there", code)
