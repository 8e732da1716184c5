"""Random numbers that depend on what they are for, and on nothing else."""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniform(*keys: int | np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64, each a function of its keys alone: (seed, epoch, sample, ...).

    Keys are whole numbers of at least 0; arrays of keys broadcast against each other. Keys that many draws share come first,
    where they cost least.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", the finalizer of SplitMix64.
    """
    state = np.zeros(1, dtype=np.uint64)
    for key in keys:
        state = _mix(state ^ _mix(np.atleast_1d(np.asarray(key)).astype(np.uint64) + _GOLDEN))
    return (state >> np.uint64(11)) * 2.0**-53


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
