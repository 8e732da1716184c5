"""Whether a classifier is as often right as it is sure, as a picture."""

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_models.base import LitBase
from pipeline import image_figures
from pipeline.callbacks.parts import publish
from pipeline.run_folder import RunFolder


class CalibrationCurve(Callback):
    """Accuracy by confidence at every validation and test: run_dir/figures/calibration_{val,test}.png, and W&B's history."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._draw(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "test")

    def _draw(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        assert isinstance(pl_module, LitBase)
        bins = pl_module.epoch_counts.get("calibration")
        if bins is None:
            raise ValueError(f"CalibrationCurve is for image classifiers; {type(pl_module).__name__} counts no calibration")
        run = RunFolder(trainer.default_root_dir)
        if not trainer.is_global_zero or not run.config.exists() or not bins.any():  # a test split without labels
            return
        publish(trainer, image_figures.reliability(bins), f"calibration_{stage}", f"{stage}/calibration")
