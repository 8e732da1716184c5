"""Which checkpoints are kept, and how a run goes on from one."""

import difflib
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch.distributed.tensor import DTensor

from lit_models.base import LitBase
from pipeline.callbacks.steps import is_due, is_whole_step
from pipeline.errors import RunFailed


class Checkpoints(Checkpoint):
    """Keeps checkpoints/last.ckpt, every n optimizer steps and at the end, and checkpoints/best.ckpt by a validation metric.

    Both are written between optimizer steps only. A checkpoint at a step whose validation is still due says so
    (`val_pending`), and the continued run validates first.

    Args:
        folder: where they are kept.
        monitor: the metric of best.ckpt, such as val/loss.
        mode: min or max, whichever is better.
        every_n_steps: optimizer steps between two saves of last.ckpt.
    """

    def __init__(self, folder: Path, monitor: str, mode: str, every_n_steps: int) -> None:
        self.folder, self.monitor, self.mode, self.every_n_steps = folder, monitor, mode, every_n_steps
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.val_pending = False

    def state_dict(self) -> dict[str, Any]:
        return {"best_score": self.best_score, "best_step": self.best_step, "val_pending": self.val_pending}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best_score, self.best_step = state_dict["best_score"], state_dict["best_step"]
        self.val_pending = state_dict["val_pending"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Sets Lightning's loop counters to what the step means for this run's number of processes and micro-batches."""
        _rewind(checkpoint["loops"]["fit_loop"], checkpoint["global_step"] * trainer.accumulate_grad_batches)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if is_whole_step(trainer, batch_idx) and step % self.every_n_steps == 0 and step < trainer.max_steps:
            self.save_last(trainer, val_pending=is_due(trainer, batch_idx))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        assert isinstance(pl_module, LitBase)
        # The module's own are in double precision.
        metrics: dict[str, Any] = {**trainer.callback_metrics, **pl_module.epoch_metrics}
        if self.monitor not in metrics:
            near = difflib.get_close_matches(self.monitor, metrics, n=1) or sorted(metrics)
            raise RunFailed(f"checkpoint.monitor {self.monitor} is not a metric of this run; did you mean {', '.join(near)}?")
        score = float(metrics[self.monitor])
        if self.best_score is None or (score < self.best_score if self.mode == "min" else score > self.best_score):
            self.best_score, self.best_step, self.val_pending = score, trainer.global_step, False
            self._save(trainer, "best")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.save_last(trainer, val_pending=False)

    def save_last(self, trainer: Trainer, *, val_pending: bool) -> None:
        self.val_pending = val_pending
        self._save(trainer, "last")

    def _save(self, trainer: Trainer, name: str) -> None:
        module = trainer.lightning_module
        own = (p.to_local() if isinstance(p, DTensor) else p for p in module.parameters())
        if not all(bool(torch.isfinite(p).all()) for p in own):
            raise RunFailed(f"the weights are not finite at step {trainer.global_step}; the last good checkpoint is untouched")
        trainer.save_checkpoint(self.folder / f"{name}.ckpt")


def _rewind(fit_loop: dict[str, Any], micro_batches: int) -> None:
    done = dict.fromkeys(("ready", "started", "processed", "completed"), micro_batches)
    progress = fit_loop["epoch_loop.batch_progress"]
    progress |= {"total": done, "current": dict(done), "is_last_batch": False}
    under_way = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    fit_loop["epoch_progress"] |= {"total": under_way, "current": dict(under_way)}
    for name, value in fit_loop.items():
        if name.startswith("epoch_loop.val_loop.") and isinstance(value, dict):
            _zero(value)


def _zero(progress: dict[str, Any]) -> None:
    for name, value in progress.items():
        if isinstance(value, dict):
            _zero(value)
        else:
            progress[name] = type(value)()
