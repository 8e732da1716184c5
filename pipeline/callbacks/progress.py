"""One bar for the run, in optimizer steps: a live line on a terminal, a plain line now and then elsewhere."""

import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.callbacks.tracker import Tracker

SHOWN = {"train/loss": "loss", "val/loss": "val"}


class RunProgress(ProgressBar):
    """Redrawn at most twice a second: redrawing at every step would cost more than a small model's step.

    Args:
        tracker: whose latest metrics are shown.
    """

    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.console = Console()
        self.progress: Progress | None = None
        self._drawn = 0.0
        self._enabled = True

    def disable(self) -> None:  # ranks other than 0
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def _text(self) -> str:
        last = self.tracker.last
        parts = [f"{short} {last[name]:.4f}" for name, short in SHOWN.items() if name in last]
        parts += [f"{value:,.0f} {name[5:-11]}/s" for name, value in last.items() if name.endswith("_per_second")]
        return "  ".join(parts)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if not self._enabled:
            return
        if self.console.is_terminal:
            self.progress = Progress(
                TextColumn("step"), MofNCompleteColumn(), BarColumn(30), TimeRemainingColumn(),
                TextColumn("{task.description}"), console=self.console, auto_refresh=False, speed_estimate_period=120,
            )  # fmt: skip
            self.progress.add_task("", total=trainer.max_steps, completed=trainer.global_step)
            self.progress.start()

    def _draw(self, trainer: Trainer, note: str = "", every: float = 0.0) -> None:
        now = time.monotonic()
        if not self._enabled or now - self._drawn < every:
            return
        self._drawn = now
        if self.progress is not None:
            task = self.progress.task_ids[0]
            self.progress.update(task, completed=trainer.global_step, description=f"{self._text()}{note}", refresh=True)
        else:
            print(f"step {trainer.global_step}/{trainer.max_steps}  {self._text()}{note}", flush=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._draw(trainer, every=0.5 if self.progress is not None else 15.0)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.progress is not None:
            self._draw(trainer, note="  validating")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._draw(trainer)

    def _close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer)
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._close()
