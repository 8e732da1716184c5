"""The parts of a run that Lightning's Trainer holds without declaring their types."""

from typing import Any, TypeVar, cast

from lightning.pytorch import Callback, Trainer

from datamodules.order import TrainLoader

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
