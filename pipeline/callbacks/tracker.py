"""Writes the rows of metrics.csv and W&B, and knows what the run has cost."""

import math
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lit_models.base import LitBase
from pipeline.callbacks.parts import datamodule, train_loader
from pipeline.callbacks.steps import is_logged, is_whole_step
from pipeline.errors import RunFailed
from pipeline.flops import peak_flops, precision_dtype


class Tracker(Callback):
    """One row per logged optimizer step and one per validation; row k holds what is known after k updates.

    perf/{tokens,samples}_per_second and perf/mfu are over all devices and since the row before, validation and checkpoints
    left out; perf/mfu is against a matrix product measured when the run starts; perf/data_wait is the share of that
    time in which rank 0 waited for its loader.
    """

    def __init__(self) -> None:
        self.units = 0  # tokens or samples so far, all devices
        self.seconds = 0.0  # of training, all starts together
        self.last: dict[str, float] = {}
        self._peak: float | None = None
        self._row_units = 0
        self._row_seconds = self._row_waited = self._at = self._waited = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"units": self.units, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.units, self.seconds = state_dict["units"], state_dict["seconds"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitBase)
        if pl_module.flops_per_unit() is not None:
            self._peak = peak_flops(pl_module.device, precision_dtype(trainer.precision)) * trainer.world_size
        self._at = time.perf_counter()

    def _stop_clock(self, trainer: Trainer) -> None:
        now, waited = time.perf_counter(), train_loader(trainer).seconds_waited
        self._row_seconds += now - self._at
        self._row_waited += waited - self._waited
        self.seconds += now - self._at
        self._at, self._waited = now, waited

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LitBase)
        units = pl_module.units(batch) * trainer.world_size
        self.units += units
        self._row_units += units
        step = trainer.global_step
        if not (is_whole_step(trainer, batch_idx) and is_logged(trainer)):
            return
        metrics = pl_module.step_metrics()
        if not math.isfinite(metrics["train/loss"]):
            raise RunFailed(f"the loss is {metrics['train/loss']} at step {step}; the last good checkpoint is untouched")
        self._stop_clock(trainer)
        per_second = self._row_units / self._row_seconds
        metrics |= {
            "train/epoch": step / datamodule(trainer).steps_per_epoch,
            f"perf/{pl_module.unit}_per_second": per_second,
            "perf/data_wait": self._row_waited / self._row_seconds,
        }
        if self._peak is not None:
            metrics["perf/mfu"] = per_second * (pl_module.flops_per_unit() or 0.0) / self._peak
        self._write(trainer, metrics)
        self._row_seconds = self._row_waited = 0.0
        self._row_units = 0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking and self._row_units:
            self._stop_clock(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        assert isinstance(pl_module, LitBase)
        self._write(trainer, pl_module.epoch_metrics)
        self._at = time.perf_counter()

    def _write(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.last |= metrics
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.log_metrics(metrics, trainer.global_step)
