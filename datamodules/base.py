"""What every datamodule shares: global batch, stateless order, loaders, what a checkpoint carries of the data."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from datamodules.order import BatchDataset, EvalOrder, TrainLoader
from datamodules.sources.base import Source

T = TypeVar("T")


class BaseDataModule(LightningDataModule):
    """Loaders whose batches do not depend on the number of processes, of loader workers or on where the run was stopped.

    Args:
        batch_size: samples per optimizer step, over all devices.
        micro_batch_size: samples that one device takes at once; gradients are accumulated over the rest. Default: its
            whole share of the batch.
        eval_batch_size: samples in one batch of evaluation. Default: micro_batch_size or batch_size.
        num_workers: processes that load; 0 loads in the training process, which is fastest for data in memory.
        seed: order and random draws follow from it; the runner links it to `seed_everything`.

    Raises:
        ValueError: a size is below 1, or the sizes do not divide each other.
    """

    def __init__(
        self, batch_size: int, micro_batch_size: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        # This rank has nothing to evaluate: it repeats the first batch, which counts for nothing, because the trainer would
        # otherwise leave the evaluation out on this rank while the others wait for it.
        self.idle = False
        self.shared_batches = 0  # batches of the evaluation under way that every rank has
        sizes = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, "eval_batch_size": eval_batch_size}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"data.init_args.{name} is {size}; it must be at least 1")
        if num_workers < 0:
            raise ValueError(f"data.init_args.num_workers is {num_workers}; it must be at least 0")
        if seed < 0:
            raise ValueError(f"seed_everything is {seed}; it must be at least 0")
        if batch_size % (micro_batch_size or 1):
            raise ValueError(f"batch_size {batch_size} is not a multiple of micro_batch_size {micro_batch_size}")
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size
        self.eval_batch_size = eval_batch_size or micro_batch_size or batch_size
        self.num_workers, self.seed = num_workers, seed
        # The trainer's limit_*_batches, set by the runner: an int counts global batches, a float is a share.
        self.limits: dict[str, int | float | None] = {}

    @abstractmethod
    def prepare(self) -> None:
        """Makes everything the sizes and datasets need. Does nothing the second time; safe on several ranks at once."""

    @abstractmethod
    def dataset(self, split: str) -> BatchDataset:
        """The samples of split `train`, `validation` or `test`.

        Raises:
            ValueError: the source has no such split.
        """

    def assets(self) -> dict[str, Any]:
        """What inference needs of the data (tokenizer, class names), as plain types: it goes into every checkpoint."""
        return {}

    def readable(self, split: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """A table of predictions on a split as people read it; `columns` are the model's, sorted by their column `index`."""
        return dict(columns)

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch; the remainder is dropped.

        Raises:
            ValueError: fewer samples than one global batch.
        """
        num_samples = len(self.dataset("train"))
        if num_samples < self.batch_size:
            raise ValueError(
                f"the train split has {num_samples} samples, fewer than one global batch: data.init_args.batch_size"
                f" {self.batch_size} must be at most {num_samples}"
            )
        return _limited(num_samples // self.batch_size, self.limits.get("train"))

    def accumulation(self, world_size: int) -> int:
        """Micro-batches per optimizer step on each of `world_size` ranks.

        Raises:
            ValueError: the global batch cannot be shared out evenly.
        """
        micro = self.micro_batch_size or max(1, self.batch_size // world_size)
        if self.batch_size % (micro * world_size):
            raise ValueError(
                f"data.init_args.batch_size {self.batch_size} is not a multiple of"
                f" {world_size} devices x micro_batch_size {micro}"
            )
        return self.batch_size // (micro * world_size)

    def train_dataloader(self) -> TrainLoader:
        assert self.trainer is not None
        world_size = self.trainer.world_size
        return TrainLoader(
            self.dataset("train"),
            total_steps=self.trainer.max_steps,
            num_workers=self.num_workers,
            seed=self.seed,
            batch_size=self.batch_size,
            micro_batch_size=self.batch_size // world_size // self.accumulation(world_size),
            rank=self.trainer.global_rank,
            world_size=world_size,
            steps_per_epoch=self.steps_per_epoch,
        )

    def _eval_dataloader(self, split: str) -> DataLoader[Any]:
        assert self.trainer is not None
        dataset = self.dataset(split)
        num_batches = _limited(-(-len(dataset) // self.eval_batch_size), self.limits.get(split))
        num_samples = min(len(dataset), num_batches * self.eval_batch_size)
        size, rank, world_size = self.eval_batch_size, self.trainer.global_rank, self.trainer.world_size
        order = EvalOrder(dataset, num_samples, batch_size=size, rank=rank, world_size=world_size)
        self.idle, self.shared_batches = len(order) == 0, num_batches // world_size
        if self.idle:
            order = EvalOrder(dataset, min(num_samples, size), batch_size=size, rank=0, world_size=1)
        return DataLoader(dataset, sampler=order, batch_size=None, num_workers=self.num_workers)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Any]:
        return self._eval_dataloader("validation")

    def test_dataloader(self) -> DataLoader[Any]:
        return self._eval_dataloader("test")

    def predict_dataloader(self) -> DataLoader[Any]:
        return self._eval_dataloader("test")


def chosen_split(source: Source, splits: Mapping[str, T], split: str) -> T:
    """What `splits` has for a split of a source.

    Raises:
        ValueError: the source has no such split.
    """
    if split not in splits:
        raise ValueError(f"{source.describe()} has no {split} split; it has {', '.join(splits)}")
    return splits[split]


def checkpoint_assets(path: str, needed: str) -> dict[str, Any]:
    """What a checkpoint carries for inference: `tokenizer`, `classes` and the like.

    Raises:
        ValueError: it cannot be read, or does not carry what is `needed`.
    """
    first = Path(path) / "rank_00000.ckpt"  # of a sharded checkpoint
    try:
        assets = torch.load(first if first.is_file() else path, map_location="cpu", weights_only=True, mmap=True)["assets"]
    except Exception as error:  # whatever a torn file or another kind of file makes torch say
        raise ValueError(f"init_from: {path} is not a readable checkpoint: {' '.join(str(error).split())[:200]}") from None
    if needed not in assets:
        raise ValueError(f"init_from: {path} carries no {needed}: it is of another kind of model")
    return assets


def _limited(count: int, limit: int | float | None) -> int:
    if limit is None:
        return count
    # "4" may come out of a config as 4.0: more than the whole can only be a number
    return max(1, min(count, int(limit) if isinstance(limit, int) or limit > 1 else int(count * limit)))
