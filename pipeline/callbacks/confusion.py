"""Which classes are taken for which, as a picture."""

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_models.base import LitBase
from pipeline import figures
from pipeline.callbacks.parts import datamodule, publish
from pipeline.run_folder import RunFolder


class ConfusionMatrix(Callback):
    """A classifier's confusion matrix at every validation and test: run_dir/figures/confusion_{val,test}.png, W&B's history."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._draw(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "test")

    def _draw(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, LitBase)
        if "confusion" not in pl_module.epoch_counts:
            raise ValueError(f"ConfusionMatrix is for classifiers; {type(pl_module).__name__} counts no confusion of classes")
        confusion = pl_module.epoch_counts["confusion"]
        run = RunFolder(trainer.default_root_dir)
        if not trainer.is_global_zero or not run.config.exists() or not confusion.any():  # a test split without labels
            return
        publish(trainer, figures.confusion_grid(confusion, datamodule(trainer).classes), f"confusion_{stage}", "confusion")
