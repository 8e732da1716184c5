"""Which tokens are hidden, and by what: never a special one, in the published shares, for a sample's own reasons alone."""

import numpy as np
import pytest

from datamodules.draws import uniform
from datamodules.masking import corrupt, num_selected, select

FRACTION = 0.15
PAD, UNK, CLS, SEP, MASK = range(5)
ORDINARY = np.arange(5, 300)


def rows_of(lengths, width=None):
    """(B, T) ids [CLS] text [SEP] [PAD]... with `lengths` tokens of text, and their words: each token one of its own."""
    width = width or max(lengths) + 2
    ids = np.full((len(lengths), width), PAD)
    words = np.full(ids.shape, -1)
    ids[:, 0] = CLS
    for row, n in enumerate(lengths):
        ids[row, 1 : n + 1] = ORDINARY[(np.arange(n) * 7 + row * 13) % len(ORDINARY)]
        ids[row, n + 1] = SEP
        words[row, 1 : n + 1] = np.arange(1, n + 1)
    return ids, words


def in_words(size, num_words, rng):
    """(B, T) words of 1 to `size` tokens, numbered in order, a -1 at either end; some rows have no text."""
    rows = [np.repeat(np.arange(n), rng.integers(1, size + 1, n)) for n in num_words]
    width = max(map(len, rows)) + 2
    return np.stack([np.concatenate([[-1], row, np.full(width - 1 - len(row), -1)]) for row in rows])


@pytest.fixture(scope="module")
def many():
    """(keys, ids, words, selected, corrupted) with more than 20,000 tokens of text."""
    lengths = np.random.default_rng(0).integers(5, 126, 1000)
    ids, words = rows_of(lengths)
    keys = (3, 1, np.arange(1000))
    selected = select(keys, words, FRACTION)
    assert lengths.sum() > 20_000
    return keys, ids, words, selected, corrupt(keys, ids, selected, mask_id=MASK, ordinary_ids=ORDINARY)


def test_o03_special_tokens_and_padding_are_never_selected(many):
    _, ids, _, selected, corrupted = many
    assert np.isin(ids, [PAD, CLS, SEP]).any(1).all() and not selected[np.isin(ids, [PAD, CLS, SEP])].any()
    assert np.array_equal(corrupted[~selected], ids[~selected])


def test_o03_fifteen_percent_are_selected(many):
    _, _, words, selected, _ = many
    assert abs(selected.sum() / (words >= 0).sum() - FRACTION) < 0.01
    assert np.abs(selected.sum(1) - FRACTION * (words >= 0).sum(1)).max() < 1  # of each row too


@pytest.mark.parametrize("length", range(5, 13))
def test_o03_short_rows_get_their_share_on_average(length):
    _, words = rows_of([length] * 4000)
    selected = select((0, 0, np.arange(4000)), words, FRACTION)
    assert abs(selected.mean(where=words >= 0) - FRACTION) < 0.01
    at = selected[:, 1 : length + 1].mean(0)  # wherever a token stands
    assert np.abs(at - FRACTION).max() < 5 * (FRACTION * (1 - FRACTION) / 4000) ** 0.5


def test_o03_eighty_percent_are_masked_ten_random_ten_kept(many):
    _, ids, _, selected, corrupted = many
    old, new = ids[selected], corrupted[selected]
    changed = (new != MASK) & (new != old)
    assert abs((new == MASK).mean() - 0.8) < 0.02
    assert abs(changed.mean() - 0.1) < 0.02 and abs((new == old).mean() - 0.1) < 0.02


def test_o03_random_ids_are_never_special_and_reach_all_others():
    ids, words = rows_of([100] * 3000)
    keys = (0, 0, np.arange(3000))
    selected = select(keys, words, FRACTION)
    ids_before = ids.copy()
    ordinary = np.array([6, 9, 290])
    corrupted = corrupt(keys, ids, selected, mask_id=MASK, ordinary_ids=ordinary)
    assert np.array_equal(ids, ids_before)
    random = corrupted[selected & (corrupted != ids) & (corrupted != MASK)]
    found, counts = np.unique(random, return_counts=True)
    assert found.tolist() == ordinary.tolist() and np.abs(counts / counts.sum() - 1 / 3).max() < 0.03


def test_o03_num_selected_is_what_select_takes_row_by_row(many):
    keys, _, words, selected, _ = many
    assert num_selected(keys, (words >= 0).sum(1), FRACTION).tolist() == selected.sum(1).tolist()
    lengths = [0, 1, 2, 6, 7, 20, 40, 100] * 50  # 20, 40, 100: the share is a whole number
    for fraction in (0.05, 0.15, 0.5, 0.99):
        words = rows_of(lengths)[1]
        for seed in range(5):
            keys = (seed, 0, np.arange(len(lengths)))
            assert num_selected(keys, np.array(lengths), fraction).tolist() == select(keys, words, fraction).sum(1).tolist()


@pytest.mark.parametrize("size", [1, 3, 9])
def test_whole_words_stay_whole_with_the_same_mean(size):
    rng = np.random.default_rng(size)
    words = in_words(size, rng.integers(1, 30, 3000), rng)
    selected = select((0, 0, np.arange(len(words))), words, FRACTION)
    assert not selected[words < 0].any()
    for row, chosen in zip(words, selected, strict=True):
        assert set(row[chosen]).isdisjoint(row[~chosen])
    taken, tokens = selected.sum(1), (words >= 0).sum(1)
    assert abs(taken.sum() / tokens.sum() - FRACTION) < 0.01
    assert np.abs(taken - FRACTION * tokens).max() < size


def test_a_single_long_word_is_taken_as_often_as_a_short_one():
    words = np.full((4000, 22), -1)
    words[:, 1:21] = 0
    selected = select((0, 0, np.arange(4000)), words, FRACTION)
    assert set(selected.sum(1)) == {0, 20} and abs(selected[:, 1].mean() - FRACTION) < 0.02


def test_a_long_word_has_its_turn_in_a_short_row():
    words = np.tile(np.array([0, 0, 0, 0, 0, 1, 2, 3, 4, 5]), (20_000, 1))
    at = select((0, 0, np.arange(len(words))), words, FRACTION).mean(0)
    assert abs(at.mean() - FRACTION) < 0.01 and at.min() > 0.05


# ---- a draw is its sample's own --------------------------------------------------------------------------------------


def masked(seed, epoch, samples, width, lengths):
    words = rows_of([lengths[i] for i in samples], width)[1]
    ids = np.where(words >= 0, words + 7, PAD)
    keys = (seed, epoch, np.asarray(samples))
    selected = select(keys, words, FRACTION)
    return corrupt(keys, ids, selected, mask_id=MASK, ordinary_ids=ORDINARY), selected


def test_a_mask_depends_on_no_companion_and_no_padding():
    lengths = np.random.default_rng(1).integers(5, 60, 40)
    ids, selected = masked(3, 2, np.arange(40), 62, lengths)
    for samples, width in ([[7], None], [[7], 200], [[31, 7, 2], 80], [np.arange(40)[::-1], 62], [[7, 7], 70]):
        other_ids, other = masked(3, 2, samples, width, lengths)
        for row, sample in enumerate(samples):
            n = lengths[sample] + 2
            assert np.array_equal(other[row, :n], selected[sample, :n]) and not other[row, n:].any()
            assert np.array_equal(other_ids[row, :n], ids[sample, :n])


def test_seed_epoch_and_sample_each_give_another_mask():
    lengths = [60] * 40
    ids, selected = masked(3, 2, np.arange(40), None, lengths)
    for seed, epoch, first in ((3, 3, 0), (4, 2, 0), (3, 2, 1), (2, 3, 0)):
        other_ids, other = masked(seed, epoch, np.arange(first, first + 40), None, [60] * 41)
        assert other[selected].mean() < 0.25  # as often as by chance, 0.15
        assert not np.array_equal(other_ids, ids)


def test_nothing_to_select():
    words = np.full((2, 4), -1)
    selected = select((0, 0, np.arange(2)), words, FRACTION)
    assert selected.shape == (2, 4) and not selected.any()
    ids = np.full((2, 4), PAD)
    assert np.array_equal(corrupt((0, 0, np.arange(2)), ids, selected, mask_id=MASK, ordinary_ids=ORDINARY), ids)


# ---- the generator ---------------------------------------------------------------------------------------------------


def test_uniform_is_splitmix64():
    """Another way of writing it: whole numbers of Python."""
    bits = (1 << 64) - 1

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) & bits
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
        return x ^ (x >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF and mix(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4  # SplitMix64, seed 0
    for keys in [(0,), (1, 2, 3), (3, 0, 2**40, 7), (2**63, 5)]:
        state = 0
        for key in keys:
            state = mix(state ^ mix((key + 0x9E3779B97F4A7C15) & bits))
        assert uniform(*keys).tolist() == [(state >> 11) / 2**53]


def test_uniform_gives_these_numbers():
    """Pinned: another generator means other batches for a seed."""
    assert uniform(0).tolist() == [0.27623358227789463]
    assert uniform(3, 1, np.arange(3), 2).tolist() == [0.489728721627933, 0.6671238580876501, 0.6322016819693999]
    grid = [[0.521726941411473, 0.8174954930490875], [0.7083127939526296, 0.4782315207231004]]
    assert uniform(3, 1, np.array([[4], [5]]), np.array([6, 7])).tolist() == grid


def test_uniform_is_uniform():
    for draws in (uniform(0, 0, np.arange(200_000)), uniform(np.arange(200_000), 5, 7), uniform(1, np.arange(200_000) * 1024)):
        assert draws.dtype == np.float64 and draws.min() >= 0 and draws.max() < 1
        assert abs(draws.mean() - 1 / 2) < 0.003 and abs(draws.var() - 1 / 12) < 0.001
        counts = np.bincount((draws * 100).astype(int), minlength=100)
        assert np.sum((counts - 2000) ** 2 / 2000) < 150  # chi squared with 99 degrees of freedom; 149 is 1 in 1000


def test_uniform_draws_of_neighbours_are_independent():
    grid = uniform(0, np.arange(400)[:, None], np.arange(400))
    pairs = [(grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1]), (grid[1:, 1:], grid[:-1, :-1]), (grid, grid.T)]
    pairs += [(grid, uniform(1, np.arange(400)[:, None], np.arange(400)))]
    for number, (one, other) in enumerate(pairs):
        keep = one != other  # the diagonal of a matrix and its transpose
        assert abs(np.corrcoef(one[keep], other[keep])[0, 1]) < 0.02, number
        assert abs(np.mean((one < 0.15) & (other < 0.15)) - 0.0225) < 0.004, number


def test_uniform_depends_on_the_order_and_number_of_keys():
    keys = [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (1,), (3,), (0, 3), (1, 1, 2)]
    assert len({uniform(*key).item() for key in keys}) == len(keys)


def test_uniform_broadcasts():
    rows, columns = np.array([[4], [9]]), np.arange(5)
    grid = uniform(3, rows, columns, 1)
    assert grid.shape == (2, 5) and len(np.unique(grid)) == 10
    assert grid[1, 2] == uniform(3, 9, 2, 1).item()
    assert uniform(3, 1).shape == (1,) and uniform(3, np.arange(0)).shape == (0,)
