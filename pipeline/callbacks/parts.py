"""The parts of a run that Lightning's Trainer holds without declaring their types."""

from pathlib import Path
from typing import Any, TypeVar, cast

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import WandbLogger
from matplotlib.figure import Figure

from datamodules.order import TrainLoader
from pipeline import figures

C = TypeVar("C", bound=Callback)


def datamodule(trainer: Trainer) -> Any:
    """The run's datamodule; the caller knows its class."""
    return trainer.datamodule  # type: ignore[attr-defined]


def train_loader(trainer: Trainer) -> TrainLoader:
    return cast(TrainLoader, trainer.train_dataloader)


def callbacks(trainer: Trainer) -> list[Callback]:
    return trainer.callbacks  # type: ignore[attr-defined]


def callback(trainer: Trainer, kind: type[C]) -> C:
    """The run's first callback of a class."""
    return next(c for c in callbacks(trainer) if isinstance(c, kind))


def publish(trainer: Trainer, figure: Figure, name: str, key: str | None = None) -> None:
    """Writes run_dir/figures/`name`.png and puts it into W&B's history as `key` (by default `name`)."""
    path = Path(trainer.default_root_dir) / "figures" / f"{name}.png"
    figures.save(figure, path)
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.log_image(key or name, [str(path)], step=trainer.global_step)
