"""The batches of step k are the same on any number of ranks, micro-batches and workers, and after any stop."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from datamodules.base import BaseDataModule
from datamodules.order import EvalOrder, TrainLoader, TrainOrder, epoch_order

BATCH = 8
TOPOLOGIES = [(1, 8), (1, 2), (1, 1), (2, 4), (2, 1), (4, 2), (4, 1), (8, 1)]  # (world size, micro-batch)


class Echo:
    """A dataset whose batch is what it was asked for."""

    def __init__(self, num_samples):
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __getitem__(self, key):
        epoch, indices, *_ = key
        return {"epoch": epoch, "indices": np.asarray(indices)}


def loader(num_samples, world_size, micro, rank, *, total=6, workers=0, seed=3, batch_size=BATCH):
    return TrainLoader(
        Echo(num_samples), total_steps=total, num_workers=workers, seed=seed, batch_size=batch_size,
        micro_batch_size=micro, rank=rank, world_size=world_size, steps_per_epoch=num_samples // batch_size,
    )  # fmt: skip


def served(loader):
    """[(epoch, indices)] of a rank's micro-batches, to the end."""
    return [(b["epoch"], b["indices"].tolist()) for b in loader]


def by_step(ranks, per_step):
    """The global batch of each step, put together from all ranks: [(epoch, indices)]."""
    assert len({len(batches) for batches in ranks}) == 1 and len(ranks[0]) % per_step == 0
    steps = []
    for first in range(0, len(ranks[0]), per_step):
        parts = [batches[m] for m in range(first, first + per_step) for batches in ranks]
        assert len({epoch for epoch, _ in parts}) == 1
        steps.append((parts[0][0], [i for _, indices in parts for i in indices]))
    return steps


def run(world_size, micro, num_samples=21, **kwargs):
    ranks = [served(loader(num_samples, world_size, micro, rank, **kwargs)) for rank in range(world_size)]
    return by_step(ranks, BATCH // (micro * world_size))


def test_the_global_batch_is_a_slice_of_the_epochs_permutation():
    expected = [(k // 2, epoch_order(3, k // 2, 21)[k % 2 * BATCH :][:BATCH].tolist()) for k in range(6)]
    assert run(1, 8) == expected


@pytest.mark.parametrize(("world_size", "micro"), TOPOLOGIES)
def test_every_topology_makes_the_same_global_batches(world_size, micro):
    assert run(world_size, micro) == run(1, BATCH)


@pytest.mark.parametrize(("world_size", "micro"), [(1, 4), (2, 2)])
def test_workers_change_nothing(world_size, micro):
    assert run(world_size, micro, workers=2) == run(1, BATCH)


def test_num_workers_2_gives_each_rank_the_same_batches():
    assert served(loader(21, 2, 2, 1, workers=2)) == served(loader(21, 2, 2, 1))


def test_the_length_is_the_number_of_batches():
    for world_size, micro in TOPOLOGIES:
        it = loader(21, world_size, micro, 0)
        assert len(it) == len(served(it)) == 6 * BATCH // (micro * world_size)
        order = TrainOrder(Echo(21), start=2, stop=5, **it.order)
        assert len(order) == len(list(order))


# ---- epochs ----------------------------------------------------------------------------------------------------------


def epochs(seed, num_samples=8, batch_size=4, total=4):
    ranks = [served(loader(num_samples, 2, 2, rank, seed=seed, total=total, batch_size=batch_size)) for rank in (0, 1)]
    orders = {}
    for epoch, indices in by_step(ranks, batch_size // 4):
        orders.setdefault(epoch, []).extend(indices)
    return orders


def test_d08_epochs_differ_and_each_is_all_samples_once():
    orders = epochs(seed=0)
    assert list(orders) == [0, 1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(8))
    assert orders[0] != orders[1]


def test_d08_the_seed_decides():
    assert epochs(seed=0) == epochs(seed=0)
    assert epochs(seed=0) != epochs(seed=1)
    assert epochs(seed=0)[1] != epochs(seed=1)[0]  # a seed is no offset of the epoch


def test_d08_the_dropped_remainder_is_another_one_each_epoch():
    orders = epochs(seed=0, num_samples=11, total=2 * 20)
    dropped = [frozenset(range(11)) - set(order) for order in orders.values()]
    assert all(len(d) == 3 for d in dropped) and len(set(dropped)) > 10
    assert set.union(*map(set, dropped)) == set(range(11))


def test_d06_7_items_on_2_ranks_train_for_the_same_number_of_steps():
    ranks = [served(loader(7, 2, 1, rank, batch_size=2, total=9)) for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1]) == 9
    for epoch in range(3):
        indices = Counter(i for batches in ranks for e, batch in batches if e == epoch for i in batch)
        assert len(indices) == 6 and set(indices.values()) == {1}


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 12])
def test_d06_evaluation_covers_each_sample_exactly_once(num_samples, batch_size, world_size):
    sizes = {"batch_size": batch_size, "world_size": world_size}
    orders = [EvalOrder(Echo(num_samples), num_samples, rank=r, **sizes) for r in range(world_size)]
    for order in orders:
        assert len(order) == len(list(order))
    batches = [indices.tolist() for order in orders for _, indices, _ in order]
    assert sorted(i for batch in batches for i in batch) == list(range(num_samples))
    assert {tuple(batch) for batch in batches} == {
        tuple(range(num_samples)[i : i + batch_size]) for i in range(0, num_samples, batch_size)
    }  # which batches there are does not depend on the ranks


def test_d06_a_rank_without_samples_has_no_batch():
    order = EvalOrder(Echo(7), 7, batch_size=3, rank=3, world_size=4)
    assert len(order) == 0 and list(order) == []


# ---- position --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 2, 3, 6])  # steps 2 and 4 begin an epoch
def test_a_stopped_loader_continues_with_the_same_batches(stop, workers):
    whole = served(loader(21, 2, 2, 1))
    first = loader(21, 2, 2, 1, workers=workers)
    it = iter(first)
    seen = [next(it) for _ in range(stop * first.per_step)]
    second = loader(21, 2, 2, 1, workers=workers)
    second.load_state_dict(first.state_dict())
    assert [(b["epoch"], b["indices"].tolist()) for b in seen] + served(second) == whole
    assert first.state_dict() == {"steps": stop} and second.state_dict() == {"steps": 6}


@pytest.mark.parametrize(("world_size", "micro"), TOPOLOGIES)
def test_a_stopped_loader_continues_with_another_world_size(world_size, micro):
    first = loader(21, 2, 2, 0)
    it = iter(first)
    for _ in range(3 * first.per_step):
        next(it)
    rest = []
    for rank in range(world_size):
        other = loader(21, world_size, micro, rank)
        other.load_state_dict(first.state_dict())
        rest.append(served(other))
    assert by_step(rest, BATCH // (micro * world_size)) == run(1, BATCH)[3:]


def test_a_step_that_was_under_way_is_done_anew():
    first = loader(21, 1, 2, 0)
    it = iter(first)
    for _ in range(2 * first.per_step + 3):
        next(it)
    assert first.state_dict() == {"steps": 2}


def test_a_longer_run_begins_with_the_shorter_one():
    assert run(2, 2, total=10)[:6] == run(2, 2)


# ---- what a datamodule makes of the sizes ----------------------------------------------------------------------------


class Data(BaseDataModule):
    num_samples = 21

    def prepare(self): ...

    def dataset(self, split):
        return Echo(self.num_samples)

    def on(self, rank, world_size):
        self.trainer = SimpleNamespace(max_steps=6, global_rank=rank, world_size=world_size)
        return self


@pytest.mark.parametrize(("world_size", "micro"), [*TOPOLOGIES, (1, None), (2, None), (8, None)])
def test_a_datamodule_shares_the_batch_out(world_size, micro):
    data = Data(BATCH, micro, seed=3)
    ranks = [served(data.on(rank, world_size).train_dataloader()) for rank in range(world_size)]
    accumulation = data.accumulation(world_size)
    assert accumulation == (1 if micro is None else BATCH // (micro * world_size))
    assert by_step(ranks, accumulation) == run(1, BATCH)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_d06_a_datamodule_evaluates_each_sample_once(world_size):
    data = Data(BATCH, eval_batch_size=6)
    batches = [b for rank in range(world_size) for b in data.on(rank, world_size).val_dataloader()]
    assert sorted(i for b in batches for i in b["indices"].tolist()) == list(range(21))
    assert sorted(len(b["indices"]) for b in batches) == [3, 6, 6, 6]


@pytest.mark.parametrize(
    ("world_size", "micro", "message"),
    [(3, None, "8 is not a multiple of 3 devices"), (4, 4, "4 devices x micro_batch_size 4")],
)
def test_a_batch_that_cannot_be_shared_out_is_refused(world_size, micro, message):
    with pytest.raises(ValueError, match=message):
        Data(BATCH, micro).accumulation(world_size)


@pytest.mark.parametrize(("limit", "steps"), [(None, 5), (1.0, 5), (0.5, 2), (3, 3), (3.0, 3), (9, 5), (0.01, 1)])
def test_an_epoch_can_be_cut_short(limit, steps):
    data = Data(4)
    data.limits = {"train": limit}
    assert data.steps_per_epoch == steps


@pytest.mark.parametrize(("limit", "num_samples"), [(None, 21), (1.0, 21), (2, 12), (0.5, 12), (9, 21), (0.01, 6)])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_d06_an_evaluation_cut_short_is_the_same_on_any_number_of_ranks(world_size, limit, num_samples):
    data = Data(BATCH, eval_batch_size=6)
    data.limits = {"validation": limit, "test": 1}
    seen = []
    for rank in range(world_size):
        here = data.on(rank, world_size)
        batches = list(here.val_dataloader())
        assert batches  # an idle rank repeats the first batch, which counts for nothing
        seen += [] if here.idle else [i for b in batches for i in b["indices"].tolist()]
    assert sorted(seen) == list(range(num_samples))


def test_fewer_samples_than_a_batch_are_refused():
    with pytest.raises(ValueError, match="21 samples, fewer than one global batch.*22 must be at most 21"):
        _ = Data(22).steps_per_epoch
