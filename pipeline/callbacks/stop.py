"""An orderly end on SIGTERM, SIGUSR1 and Ctrl-C: finish the step, save, say so, leave with the right exit code."""

import os
import signal
import subprocess
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from pipeline.callbacks.checkpoints import Checkpoints
from pipeline.callbacks.parts import datamodule
from pipeline.callbacks.steps import is_due, is_whole_step
from pipeline.errors import Stopped


class StopOnSignal(Callback):
    """The handler only notes the signal; between batches all ranks agree, save last.ckpt and leave together.

    A validation under way is given up: the checkpoint says that it is pending, and the continued run starts with it.
    SIGUSR1 under SLURM, the warning before a time limit, also has the job requeued. (SIGTERM does not: SLURM sends it to a job
    that it requeues itself, or that was cancelled.) A second Ctrl-C stops at once, without saving.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.received = 0
        self._group: Any = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # After Lightning's own registration, whose handler would end the run with exit code 0.
        for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(signum, self._note)
        if trainer.world_size > 1 and torch.distributed.get_backend() != "gloo":
            self._group = torch.distributed.new_group(backend="gloo")  # to agree without waiting for the GPU

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self.received == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signum

    def _agreed(self, trainer: Trainer) -> int:
        """The signal that any rank has received, or 0."""
        if trainer.world_size == 1:
            return self.received
        noted = torch.tensor(self.received)
        torch.distributed.all_reduce(noted, torch.distributed.ReduceOp.MAX, self._group)
        return int(noted)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if is_whole_step(trainer, batch_idx) and (signum := self._agreed(trainer)):
            self._stop(trainer, signum, val_pending=is_due(trainer, batch_idx))

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        # Ranks may have unequal numbers of batches here: they agree after those that all of them have.
        if trainer.state.fn != "fit" or batch_idx >= datamodule(trainer).shared_batches:
            return
        if signum := self._agreed(trainer):
            self._stop(trainer, signum, val_pending=True)

    def _stop(self, trainer: Trainer, signum: int, *, val_pending: bool) -> None:
        step = trainer.global_step
        saved = "the last checkpoint stands"  # in the final validation: there is no step left to go on from, only to repeat
        if step < trainer.max_steps:
            self.checkpoints.save_last(trainer, val_pending=val_pending)
            saved = f"saved {self.checkpoints.folder / 'last.ckpt'}"
        raise stopped(signum, f"after step {step}; {saved}", first=trainer.is_global_zero)


def stop_while_starting() -> None:
    """Before training begins the same signals end the process at once: there is nothing to save."""

    def handler(signum: int, frame: FrameType | None) -> None:
        raise stopped(signum, "before training", first=os.environ.get("SLURM_PROCID", "0") == "0")

    for signum in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, handler)


def stopped(signum: int, where: str, *, first: bool) -> Stopped:
    """What ends the process after a signal; the `first` process has SLURM requeue the job after SIGUSR1."""
    name, then = signal.Signals(signum).name, "the same command goes on from there"
    if signum == signal.SIGUSR1 and first and "SLURM_JOB_ID" in os.environ:
        then = _requeue()
    return Stopped(f"stopped by {name} {where}: {then}", 130 if signum == signal.SIGINT else 143)


def _requeue() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ["SLURM_JOB_ID"]
    try:
        asked = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"job {job} could not be requeued ({error}); the same command goes on from there"
    if asked.returncode:
        return f"job {job} could not be requeued ({asked.stderr.strip()}); the same command goes on from there"
    return f"job {job} is requeued and goes on from there"
