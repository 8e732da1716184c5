"""Which samples make up a batch: functions of (seed, epoch, step) alone, never of workers, ranks or what ran before."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, Sampler

Key = tuple[int, np.ndarray, np.ndarray]
"""(epoch, sample indices (B,), indices of the whole optimizer step that they are part of): what a dataset is asked for."""

POOL = 100
"""Global batches whose samples are sorted by length together."""


class BatchDataset(Protocol):
    """Makes whole batches. Random draws about a sample depend on (seed, epoch, sample index) alone.

    It is sent to loader workers, so it pickles small: it names its files and opens them where it is used. A dataset of uneven
    samples has `lengths(epoch) -> (num_samples,)`, the tokens of each, and gets batches of samples of about one length.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, key: Key) -> Mapping[str, Any]: ...


def epoch_order(seed: int, epoch: int, num_samples: int) -> np.ndarray:
    """The permutation (num_samples,) of an epoch."""
    return np.random.default_rng((seed, epoch)).permutation(num_samples)


def by_length(order: np.ndarray, lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """The samples of an epoch's whole batches, so arranged that a batch has samples of about one length.

    Samples are sorted within pools of POOL batches, each still a random choice, and the batches then shuffled.
    """
    order = order[: len(order) // batch_size * batch_size]
    pools = [order[i : i + POOL * batch_size] for i in range(0, len(order), POOL * batch_size)]
    batches = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools]).reshape(-1, batch_size)
    return np.random.default_rng((seed, epoch, 2)).permutation(batches).ravel()


class TrainOrder(Sampler[Key]):
    """The micro-batches of one rank, from optimizer step `start` to `stop`.

    Step k is the k-th global batch of the endless sequence of shuffled epochs; each epoch drops its remainder, a
    different one each time. Micro-batch m of rank r takes slice m * world_size + r of the global batch.
    """

    def __init__(
        self, dataset: BatchDataset, *, seed: int, batch_size: int, micro_batch_size: int, rank: int, world_size: int,
        steps_per_epoch: int, start: int, stop: int,
    ) -> None:  # fmt: skip
        self.dataset, self.seed = dataset, seed
        self.batch_size, self.micro_batch_size = batch_size, micro_batch_size
        self.rank, self.world_size = rank, world_size
        self.steps_per_epoch, self.start, self.stop = steps_per_epoch, start, stop

    def __iter__(self) -> Iterator[Key]:
        epoch = -1
        order = np.empty(0, dtype=np.int64)
        for step in range(self.start, self.stop):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                order = self._order(epoch)
            first = step % self.steps_per_epoch * self.batch_size
            for i in range(first + self.rank * self.micro_batch_size, first + self.batch_size,
                           self.micro_batch_size * self.world_size):  # fmt: skip
                yield epoch, order[i : i + self.micro_batch_size], order[first : first + self.batch_size]

    def _order(self, epoch: int) -> np.ndarray:
        order = epoch_order(self.seed, epoch, len(self.dataset))
        lengths = getattr(self.dataset, "lengths", None)
        return order if lengths is None else by_length(order, lengths(epoch), self.batch_size, self.seed, epoch)

    def __len__(self) -> int:
        return (self.stop - self.start) * self.batch_size // (self.micro_batch_size * self.world_size)


class EvalOrder(Sampler[Key]):
    """Every sample once: the fixed list of batches, dealt to the ranks in turn, so that no batch depends on their number.

    The batches are those of the first `num_samples` samples, in the order of their lengths where the dataset has them.
    """

    def __init__(self, dataset: BatchDataset, num_samples: int, *, batch_size: int, rank: int, world_size: int) -> None:
        self.dataset, self.num_samples = dataset, num_samples
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size

    def __iter__(self) -> Iterator[Key]:
        order = np.arange(self.num_samples)
        if (lengths := getattr(self.dataset, "lengths", None)) is not None:
            order = np.argsort(lengths(0)[: self.num_samples], kind="stable")
        for first in range(self.rank * self.batch_size, self.num_samples, self.batch_size * self.world_size):
            indices = order[first : first + self.batch_size]
            yield 0, indices, indices

    def __len__(self) -> int:
        num_batches = -(-self.num_samples // self.batch_size)
        return max(0, -(-(num_batches - self.rank) // self.world_size))


class TrainLoader:
    """A training loader that owns its position.

    Its one number, the optimizer steps served, is all that a resumed run needs, on any number of processes. Its length is the
    run's, so that the trainer sees the run as one epoch and never has to restart within one.
    """

    def __init__(self, dataset: BatchDataset, *, total_steps: int, num_workers: int, **order: int) -> None:
        self.dataset, self.total_steps, self.num_workers, self.order = dataset, total_steps, num_workers, order
        self.per_step = order["batch_size"] // (order["micro_batch_size"] * order["world_size"])
        self.served = 0  # micro-batches of this rank
        self.seconds_waited = 0.0

    def __len__(self) -> int:
        return self.total_steps * self.per_step

    def __iter__(self) -> Iterator[Any]:
        start = self.served // self.per_step
        order = TrainOrder(self.dataset, start=start, stop=self.total_steps, **self.order)
        batches: Iterator[Any] = map(self.dataset.__getitem__, order)  # without a DataLoader's own cost
        if self.num_workers:
            batches = iter(DataLoader(self.dataset, sampler=order, batch_size=None, num_workers=self.num_workers))  # type: ignore[arg-type]
        for _ in range(len(order)):
            asked = time.perf_counter()
            batch = next(batches)
            self.seconds_waited += time.perf_counter() - asked
            self.served += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.served // self.per_step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.served = state["steps"] * self.per_step
