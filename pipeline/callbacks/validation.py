"""When a run validates: at its interval, at its end, and first of all where a continued run has one left to do."""

from lightning.pytorch import Callback, LightningModule, Trainer

from pipeline.callbacks.checkpoints import Checkpoints


class Validation(Callback):
    """Validates after the last optimizer step, whatever the interval, and at the start where a validation is pending."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints  # knows, from the checkpoint, whether one is pending
        self.validated_step = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.checkpoints.val_pending:
            self._run(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.validated_step = trainer.global_step

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.validated_step != trainer.global_step:
            self._run(trainer)

    def _run(self, trainer: Trainer) -> None:
        if not trainer.enable_validation:
            return
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True
