"""How well counting alone predicts bytes: n-gram models, the yardstick of configs/gpt.yaml.

    python -m tests.benchmarks.ngram [--source wikipedia|PATH] [--order 5]

An order-n model predicts a byte from the n - 1 before it. Trained on the train split, scored on every byte of the
validation split, in bits per byte; two smoothings, both interpolated down to the uniform distribution over 256 bytes:
- modified Kneser-Ney: three discounts per order, estimated from the counts of counts.
  Source: Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling", section 3.
- Witten-Bell. Source: the same, section 2.5.
Before each document stand zero bytes, which are context and never scored. A PATH is a UTF-8 file of text whose last
tenth is the validation split.
"""

import argparse
import time
from pathlib import Path

import numpy as np

MAX_ORDER = 8  # an n-gram is packed into 64 bits


def ngrams(documents: list[bytes], order: int) -> np.ndarray:
    """The n-gram that ends at each byte of each document, as one big-endian integer: its last byte is the lowest."""
    gap = MAX_ORDER - 1
    data = np.frombuffer(b"".join(bytes(gap) + document for document in documents), np.uint8).astype(np.uint64)
    scored = np.concatenate([np.repeat([False, True], [gap, len(document)]) for document in documents])
    grams = np.zeros(len(data), np.uint64)
    for back in range(order):
        grams[back:] |= data[: len(data) - back] << np.uint64(8 * back)
    return grams[scored]


class Level:
    """Interpolated counts of one order: look-ups of what it adds to the order below.

    p(w | h) = seen(h w) + rest(h) * p(w | h without its first byte); over all bytes w, seen sums to 1 - rest.
    """

    def __init__(self, grams: np.ndarray, counts: np.ndarray, smoothing: str) -> None:
        """grams: distinct and sorted; counts: how often each was seen."""
        first = np.flatnonzero(np.r_[True, grams[1:] >> np.uint64(8) != grams[:-1] >> np.uint64(8)])
        followers = np.diff(np.r_[first, len(grams)])  # distinct bytes after each context
        total = np.add.reduceat(counts, first)
        if smoothing == "witten-bell":
            total = total + followers
            discounted, reserved = counts, followers
        else:
            n1, n2, n3, n4 = (max(1, np.count_nonzero(counts == k)) for k in range(1, 5))
            y = n1 / (n1 + 2 * n2)
            discounts = np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
            discount = np.clip(discounts, 0, [0, 1, 2, 3])[np.minimum(counts, 3)]
            discounted, reserved = counts - discount, np.add.reduceat(discount, first)
        self.grams, self.contexts = grams, grams[first] >> np.uint64(8)
        self.seen = discounted / np.repeat(total, followers)
        self.rest = reserved / total

    def interpolate(self, grams: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Probability of each n-gram's last byte, given that of the order below."""
        return _lookup(self.grams, self.seen, grams, 0.0) + lower * _lookup(
            self.contexts, self.rest, grams >> np.uint64(8), 1.0
        )


def _lookup(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray, missing: float) -> np.ndarray:
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], missing)


class NGram:
    """Models of orders 1 to `order` over bytes, sharing their counts.

    Raises ValueError for an order outside 1 to 8, and without any byte to train on.
    """

    def __init__(self, documents: list[bytes], order: int, smoothing: str = "kneser-ney") -> None:
        if not 1 <= order <= MAX_ORDER:
            raise ValueError(f"order {order} is not in 1 to {MAX_ORDER}")
        if not any(documents):
            raise ValueError("no bytes to train on")
        self.top, self.lower = [], []  # per order: as the highest of its model, and below a higher one
        longest = above = ngrams(documents, order)
        for n in range(order, 0, -1):
            grams, counts = np.unique(longest & _mask(n), return_counts=True)
            self.top.insert(0, Level(grams, counts, smoothing))
            if n < order:
                if smoothing == "kneser-ney":  # in how many contexts was it seen, not how often
                    grams, counts = np.unique(above & _mask(n), return_counts=True)
                self.lower.insert(0, Level(grams, counts, smoothing))
            above = self.top[0].grams  # the distinct n-grams, for the order below

    def probabilities(self, grams: np.ndarray) -> np.ndarray:
        """Probability of the last byte of each n-gram (of the highest order), (order, grams): a row for each order."""
        rows, below = [], np.full(len(grams), 1 / 256)
        for n, top in enumerate(self.top, start=1):
            wanted = grams & _mask(n)
            rows.append(top.interpolate(wanted, below))
            if n < len(self.top):
                below = self.lower[n - 1].interpolate(wanted, below)
        return np.stack(rows)

    def check_normalised(self, grams: np.ndarray) -> None:
        """Raises AssertionError unless the probabilities of the 256 bytes after each n-gram's context sum to 1."""
        every = (grams[:, None] & ~np.uint64(255) | np.arange(256, dtype=np.uint64)).ravel()
        sums = self.probabilities(every).reshape(len(self.top), len(grams), 256).sum(-1)
        assert np.allclose(sums, 1, atol=1e-9), f"probabilities sum to {sums.min()} .. {sums.max()}"

    def bits_per_byte(self, documents: list[bytes]) -> np.ndarray:
        """Mean of -log2 p over all bytes of the documents, one number per order."""
        return -np.log2(self.probabilities(ngrams(documents, len(self.top)))).mean(1)


def _mask(order: int) -> np.uint64:
    return np.uint64(2 ** (8 * order) - 1)


def load(source: str) -> tuple[list[bytes], list[bytes]]:
    """Documents of the train and the validation split."""
    if source == "wikipedia":
        from datamodules.sources.wikipedia import Wikipedia

        splits = Wikipedia().load()
        train, validation = ([text.encode() for text in splits[s]["text"]] for s in ("train", "validation"))
        return train, validation
    text = Path(source).read_text(encoding="utf-8")
    cut = len(text) * 9 // 10
    return [text[:cut].encode()], [text[cut:].encode()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="wikipedia")
    parser.add_argument("--order", type=int, default=5, choices=range(1, MAX_ORDER + 1))
    args = parser.parse_args()
    start = time.perf_counter()
    train, validation = load(args.source)
    size = [sum(map(len, split)) for split in (train, validation)]
    print(f"{args.source}: {size[0]:,} bytes to train on, {size[1]:,} in {len(validation)} documents to predict")
    columns = {}
    for smoothing in ("kneser-ney", "witten-bell"):
        model = NGram(train, MAX_ORDER, smoothing)
        seen, unseen = ngrams(validation, MAX_ORDER), np.random.default_rng(0).integers(2**64, size=50, dtype=np.uint64)
        model.check_normalised(np.r_[np.random.default_rng(1).choice(seen, 200), unseen])
        columns[smoothing] = model.bits_per_byte(validation)
    print("order  Kneser-Ney  Witten-Bell   bits per byte")
    for n in range(MAX_ORDER):
        print(f"{n + 1:5}  {columns['kneser-ney'][n]:10.4f}  {columns['witten-bell'][n]:11.4f}")
    best = min(columns, key=lambda smoothing: columns[smoothing][args.order - 1])
    value = columns[best][args.order - 1]
    print(f"order {args.order}, {best}: {value:.4f} bits per byte ({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
