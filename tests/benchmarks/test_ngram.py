"""The n-gram yardstick: normalised, and equal to counts in dictionaries."""

import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.ngram import MAX_ORDER, NGram, load, ngrams

TEXT = [b"the cat sat on the mat, the rat sat on the cat.", b"", b"a", b"\x00\xff the end"]


def pack(context: bytes, byte: int, order: int) -> np.ndarray:
    return np.array([int.from_bytes((context + bytes([byte]))[-order:], "big")], np.uint64)


def test_ngrams_end_at_each_byte_and_never_cross_documents() -> None:
    assert ngrams([b"abc", b"", b"d"], 2).tolist() == [0x0061, 0x6162, 0x6263, 0x0064]
    assert ngrams([b"12345678"], 8)[-1] == 0x3132333435363738


@pytest.mark.parametrize("smoothing", ["kneser-ney", "witten-bell"])
@pytest.mark.parametrize("order", [1, 2, 5, MAX_ORDER])
def test_probabilities_of_256_bytes_sum_to_1(smoothing: str, order: int) -> None:
    model = NGram(TEXT, order, smoothing)
    unseen = np.random.default_rng(0).integers(2**64, size=20, dtype=np.uint64) & np.uint64(2 ** (8 * order) - 1)
    grams = np.r_[ngrams(TEXT, order), unseen]
    model.check_normalised(grams)
    assert (model.probabilities(grams) > 0).all()
    model.lower = model.top = [*model.top]
    model.top[0].rest = model.top[0].rest * 1.01
    with pytest.raises(AssertionError, match="sum to"):
        model.check_normalised(grams)


def test_witten_bell_by_hand() -> None:
    model = NGram([b"aab"], 2, "witten-bell")
    one = (2 + 2 / 256) / 5  # c(a) = 2 of 3 bytes, 2 kinds
    assert model.probabilities(pack(b"a", ord("a"), 2))[:, 0] == pytest.approx([one, (1 + 2 * one) / 4])
    assert model.probabilities(pack(b"b", ord("z"), 2))[:, 0] == pytest.approx([2 / 256 / 5] * 2)  # b: no continuation
    assert model.bits_per_byte([b"a"])[0] == pytest.approx(-math.log2(one))


def slow_kneser_ney(context: bytes, byte: int, order: int, documents: list[bytes]) -> float:
    """The same in dictionaries over byte strings, one probability at a time."""

    def windows(length: int) -> list[bytes]:
        padded = [bytes(MAX_ORDER) + d for d in documents]
        return [d[i - length + 1 : i + 1] for d in padded for i in range(MAX_ORDER, len(d))]

    probability = 1 / 256
    for n in range(1, order + 1):
        counts = Counter(windows(n)) if n == order else Counter(gram[1:] for gram in set(windows(n + 1)))
        counts_of_counts = Counter(counts.values())
        n1, n2, n3, n4 = (max(1, counts_of_counts[k]) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        raw = [0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        discount = [min(max(d, 0), k) for k, d in enumerate(raw)]
        after: dict[bytes, dict[int, int]] = defaultdict(dict)
        for gram, count in counts.items():
            after[gram[:-1]][gram[-1]] = count
        seen = after.get(context[len(context) - n + 1 :])
        if seen:
            total = sum(seen.values())
            reserved = sum(discount[min(c, 3)] for c in seen.values())
            count = seen.get(byte, 0)
            probability = (count - discount[min(count, 3)]) / total + reserved / total * probability
    return probability


def test_kneser_ney_equals_dictionaries() -> None:
    rng = random.Random(0)
    documents = [bytes(rng.choices(b"abcd", [8, 4, 2, 1], k=200)) for _ in range(3)]
    model = NGram(documents, 4)
    for _ in range(30):
        context, byte = bytes(rng.choices(b"abcdz", k=3)), rng.choice(b"abcdz")
        expected = [slow_kneser_ney(context, byte, n, documents) for n in (1, 2, 3, 4)]
        assert model.probabilities(pack(context, byte, 4))[:, 0] == pytest.approx(expected, abs=1e-12)


def test_it_learns_what_repeats() -> None:
    bits = NGram([b"abcabc" * 50], 3).bits_per_byte([b"abc" * 50])
    assert bits[2] < 0.2 < 1.5 < bits[0] < math.log2(3) + 0.1


@pytest.mark.parametrize(
    ("documents", "order", "message"), [([b"a"], 0, "order 0"), ([b"a"], 9, "order 9"), ([b""], 2, "no bytes")]
)
def test_bad_arguments_are_refused(documents: list[bytes], order: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NGram(documents, order)


def test_a_file_is_cut_after_nine_tenths(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("ä" * 9 + "b", encoding="utf-8")
    assert load(str(tmp_path / "text.txt")) == (["ä".encode() * 9], [b"b"])
