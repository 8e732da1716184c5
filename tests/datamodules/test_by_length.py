"""Batches of samples of about one length: another order each epoch, little padding, the same on any number of ranks."""

import numpy as np
import pytest

from datamodules.order import POOL, EvalOrder, TrainLoader, TrainOrder, by_length, epoch_order


class Uneven:
    """Samples of 5 to 128 tokens; a batch is what was asked for."""

    def __init__(self, num_samples, even=False):
        self.sizes = np.random.default_rng(1).integers(5, 129, num_samples)
        self.asked = []
        if not even:
            self.lengths = self._lengths

    def _lengths(self, epoch):
        self.asked.append(epoch)
        return np.random.default_rng((2, epoch)).permutation(self.sizes)  # each epoch draws its samples anew

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, key):
        return key


def train(dataset, *, batch_size=8, micro=None, rank=0, world_size=1, start=0, stop=None, seed=3):
    """[(epoch, indices, step's indices)] of a rank."""
    micro = micro or batch_size // world_size
    steps = len(dataset) // batch_size
    stop = 2 * steps if stop is None else stop
    order = TrainOrder(
        dataset, seed=seed, batch_size=batch_size, micro_batch_size=micro, rank=rank, world_size=world_size,
        steps_per_epoch=steps, start=start, stop=stop,
    )  # fmt: skip
    return [(epoch, indices.tolist(), step.tolist()) for epoch, indices, step in order]


def padding(lengths, batches):
    """Share of padding in batches as wide as their longest sample."""
    slots = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches)
    return 1 - sum(lengths[i] for batch in batches for i in batch) / slots


# ---- by_length -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_samples", [8, 9, 801, 8 * POOL, 8 * POOL + 7, 8 * POOL * 3 + 20])
def test_whole_batches_each_sample_at_most_once(num_samples):
    lengths = np.random.default_rng(0).integers(5, 129, num_samples)
    order = epoch_order(3, 0, num_samples)
    arranged = by_length(order, lengths, 8, 3, 0)
    whole = num_samples // 8 * 8
    assert sorted(arranged.tolist()) == sorted(order[:whole].tolist())  # what is left out is still a random choice
    batches = np.sort(arranged.reshape(-1, 8), 1).tolist()
    for first in range(0, whole, 8 * POOL):  # a pool's samples stay among themselves, sorted
        pool = order[:whole][first : first + 8 * POOL]
        for batch in pool[np.argsort(lengths[pool], kind="stable")].reshape(-1, 8):
            assert sorted(batch.tolist()) in batches


def test_samples_of_one_length_keep_the_epochs_order_within_a_batch():
    order = epoch_order(3, 0, 80)
    arranged = by_length(order, np.full(80, 7), 8, 3, 0).reshape(-1, 8).tolist()
    assert sorted(arranged) == sorted(order.reshape(-1, 8).tolist()) and arranged != order.reshape(-1, 8).tolist()


def test_lengths_do_not_come_in_order():
    lengths = np.random.default_rng(0).integers(5, 129, 8 * POOL)
    means = lengths[by_length(epoch_order(3, 0, len(lengths)), lengths, 8, 3, 0)].reshape(-1, 8).mean(1)
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.3  # sorted batches have 0.99


def test_d08_epochs_and_seeds_differ_in_batches_and_in_their_order():
    lengths = np.random.default_rng(0).integers(5, 129, 400)
    arranged = {(s, e): by_length(epoch_order(s, e, 400), lengths, 8, s, e).tolist() for s in (0, 1) for e in (0, 1)}
    assert len({tuple(order) for order in arranged.values()}) == 4
    same = np.arange(400)  # the batches' own order differs too
    shuffled = [by_length(same, lengths, 8, s, e).reshape(-1, 8).tolist() for s in (0, 1) for e in (0, 1)]
    assert all(sorted(batches) == sorted(shuffled[0]) for batches in shuffled)
    assert len({str(batches) for batches in shuffled}) == 4
    assert arranged[0, 1] == by_length(epoch_order(0, 1, 400), lengths, 8, 0, 1).tolist()


@pytest.mark.parametrize(("num_samples", "batch_size"), [(1000, 8), (5000, 32), (40_000, 64)])
def test_padding_is_small(num_samples, batch_size):
    dataset = Uneven(num_samples)
    batches = [step for epoch, _, step in train(dataset, batch_size=batch_size) if epoch == 1]
    assert len(batches) == num_samples // batch_size
    assert padding(dataset.lengths(1), batches) < 0.05
    plain = [step for epoch, _, step in train(Uneven(num_samples, even=True), batch_size=batch_size) if epoch == 1]
    assert padding(dataset.lengths(1), plain) > 0.3


# ---- the batches of ranks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "micro"), [(1, 4), (1, 1), (2, 4), (2, 2), (4, 1), (8, 1)])
def test_every_topology_makes_the_same_global_batches(world_size, micro):
    whole = train(Uneven(2001))
    ranks = [train(Uneven(2001), world_size=world_size, micro=micro, rank=rank) for rank in range(world_size)]
    per_step = 8 // (world_size * micro)
    assert {len(batches) for batches in ranks} == {len(whole) * per_step}
    for number, (epoch, indices, step) in enumerate(whole):
        parts = [batches[m] for m in range(number * per_step, (number + 1) * per_step) for batches in ranks]
        assert [i for _, part, _ in parts for i in part] == indices == step
        assert {(e, tuple(s)) for e, _, s in parts} == {(epoch, tuple(step))}  # each is told the whole step


def test_d08_each_epoch_is_all_samples_once_by_its_own_lengths():
    dataset = Uneven(800)
    batches = train(dataset)
    assert dataset.asked == [0, 1]  # once each
    for epoch in (0, 1):
        indices = [i for e, batch, _ in batches if e == epoch for i in batch]
        assert sorted(indices) == list(range(800))
        assert padding(dataset.lengths(epoch), [b for e, b, _ in batches if e == epoch]) < 0.05
    assert batches == train(Uneven(800)) != train(Uneven(800), seed=4)


def test_a_start_in_the_middle_continues():
    whole = train(Uneven(801))
    for start in (1, 99, 100, 101, 150):
        assert train(Uneven(801), start=start, stop=200) == whole[start:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_loader_continues_with_the_same_batches(workers):
    def loader():
        return TrainLoader(
            Uneven(83), total_steps=24, num_workers=workers, seed=3, batch_size=8, micro_batch_size=2, rank=1, world_size=2,
            steps_per_epoch=10,
        )  # fmt: skip

    whole = [indices.tolist() for _, indices, _ in loader()]
    first, second = loader(), loader()
    it = iter(first)
    seen = [next(it)[1].tolist() for _ in range(13 * first.per_step)]
    second.load_state_dict(first.state_dict())
    assert seen + [indices.tolist() for _, indices, _ in second] == whole


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize(("num_samples", "batch_size"), [(1, 1), (7, 3), (12, 12), (301, 8), (200, 16)])
def test_d06_evaluation_visits_each_of_the_first_samples_once(num_samples, batch_size, world_size):
    dataset = Uneven(301)
    orders = [EvalOrder(dataset, num_samples, batch_size=batch_size, rank=r, world_size=world_size) for r in range(world_size)]
    assert all(len(order) == len(list(order)) for order in orders)
    keys = [key for order in orders for key in order]
    assert all(epoch == 0 and step is indices for epoch, indices, step in keys)
    batches = [indices.tolist() for _, indices, _ in keys]
    assert sorted(i for batch in batches for i in batch) == list(range(num_samples))
    one = EvalOrder(dataset, num_samples, batch_size=batch_size, rank=0, world_size=1)
    assert sorted(batches) == sorted(indices.tolist() for _, indices, _ in one)


def test_evaluation_goes_by_length():
    dataset = Uneven(3000)
    batches = [indices.tolist() for _, indices, _ in EvalOrder(dataset, 3000, batch_size=32, rank=0, world_size=1)]
    assert padding(dataset.lengths(0), batches) < 0.02
    assert [dataset.lengths(0)[i] for batch in batches for i in batch] == sorted(dataset.lengths(0))
    assert set(dataset.asked) == {0}
