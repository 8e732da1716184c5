"""Which tokens a masked language model is to predict, and what stands in their place."""

import numpy as np

from datamodules.draws import uniform

_PRIORITY, _ROUNDING, _ACTION, _REPLACEMENT = range(4)
"""What a draw is for: the last key of each."""


def select(keys: tuple[int, int, np.ndarray], words: np.ndarray, fraction: float) -> np.ndarray:
    """(B, T) bool: the tokens to predict, `fraction` of the ordinary ones on average, by whole words.

    The words of a row come in random order; the first tokens are taken up to fraction * (ordinary tokens), and the word across
    that border with the probability that makes the mean exact. Tokens that are words of their own come out within 1 of it.

    Args:
        keys: seed, epoch and the samples' numbers (B,), which decide every draw.
        words: (B, T) number of each token's word within its row, from 0; -1 where nothing may be predicted. The tokens of a
            word stand together.
    """
    seed, epoch, indices = keys
    num_rows, length = words.shape
    ordinary = words >= 0
    priority = np.where(ordinary, uniform(seed, epoch, indices[:, None], words, _PRIORITY), 2.0)
    order = np.argsort(priority, axis=1, kind="stable")  # the tokens of a word stay together
    rows, column = np.arange(num_rows)[:, None], np.arange(length)
    ranked = words[rows, order]
    first = np.ones_like(ordinary)
    first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    start = np.maximum.accumulate(np.where(first, column, 0), axis=1)  # tokens in the words before
    flat = rows * length + ranked.clip(0)
    size = np.bincount(flat[ranked >= 0], minlength=num_rows * length)[flat]  # tokens in the word
    budget = fraction * ordinary.sum(1, keepdims=True)
    taken = (start + uniform(seed, epoch, indices, _ROUNDING)[:, None] * size < budget) & (ranked >= 0)
    selected = np.zeros_like(ordinary)
    selected[rows, order] = taken
    return selected


def num_selected(keys: tuple[int, int, np.ndarray], num_ordinary: np.ndarray, fraction: float) -> np.ndarray:
    """(B,) how many tokens `select` takes in rows of (B,) ordinary tokens that are words of their own, without looking."""
    seed, epoch, indices = keys
    return np.ceil(fraction * num_ordinary - uniform(seed, epoch, indices, _ROUNDING)).astype(np.int64).clip(0, num_ordinary)


def corrupt(
    keys: tuple[int, int, np.ndarray], ids: np.ndarray, selected: np.ndarray, *, mask_id: int, ordinary_ids: np.ndarray
) -> np.ndarray:
    """(B, T) ids with 80 % of the selected tokens replaced by `mask_id`, 10 % by a random ordinary token, 10 % left.

    Source: Devlin et al. 2019, section 3.1 and appendix A.1.
    """
    seed, epoch, indices = keys
    row, column = np.nonzero(selected)
    draws = [uniform(seed, epoch, indices[row], column, what) for what in (_ACTION, _REPLACEMENT)]
    replacement = ordinary_ids[(draws[1] * len(ordinary_ids)).astype(np.int64)]
    corrupted = ids.copy()
    corrupted[row, column] = np.select([draws[0] < 0.8, draws[0] < 0.9], [mask_id, replacement], ids[row, column])
    return corrupted
