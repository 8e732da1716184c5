"""The most similar text of thousands, by its words."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

FREQUENT = 0.05  # a word in a larger share of the texts is faster multiplied for all of them than looked up
CHUNK = 256  # texts compared with all others at once: 4 bytes for each pair


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def tf_idf(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Number of the text, number of the word, and weight, of each word of each text once; in the order of the texts.

    Words have two letters or more. The weight is (1 + ln tf) (ln((1 + n) / (1 + df)) + 1), over the norm of the text's.
    """
    numbers: dict[str, int] = {}
    tokens = [[numbers.setdefault(w, len(numbers)) for w in words(text) if len(w) > 1] for text in texts]
    row = np.repeat(np.arange(len(texts)), [len(found) for found in tokens])
    key, count = np.unique(row * len(numbers) + np.array([i for found in tokens for i in found]), return_counts=True)
    row, word = np.divmod(key, len(numbers))
    weight = (1 + np.log(count)) * (np.log((1 + len(texts)) / (1 + np.bincount(word))) + 1)[word]
    return row, word, (weight / np.sqrt(np.bincount(row, weight**2))[row]).astype(np.float32)


class Similarity:
    """The cosine of the tf-idf vectors of any text of `first` and any of `second`, which have the same number of texts.

    It is exact: the words that many texts have are multiplied as dense matrices, the others looked up in an inverted index.
    """

    def __init__(self, first: Sequence[str], second: Sequence[str]) -> None:
        n = len(first)
        row, word, weight = tf_idf([*first, *second])
        is_frequent = np.bincount(word) > FREQUENT * 2 * n
        here = is_frequent[word]
        dense = np.zeros((2 * n, is_frequent.sum()), dtype=np.float32)
        dense[row[here], (is_frequent.cumsum() - 1)[word[here]]] = weight[here]
        self.first, self.second = dense[:n], dense[n:]
        row, word, weight = row[~here], word[~here], weight[~here]
        self.starts = np.searchsorted(row, np.arange(n + 1))  # where the words of each text of `first` begin
        self.word, self.weight = word[: self.starts[n]], weight[: self.starts[n]]
        by_word = self.starts[n] + np.argsort(word[self.starts[n] :], kind="stable")
        self.texts, self.weights = row[by_word] - n, weight[by_word]  # of `second`
        self.places = np.searchsorted(word[by_word], np.arange(len(is_frequent) + 1))  # where those with each word begin

    def nearest(self, wanted: Sequence[int], allowed: np.ndarray) -> list[int]:
        """For each wanted i the number, not i itself, of the text of `second` that is most similar to first[i].

        Args:
            allowed: (n,) True where a text may be taken.
        """
        found: list[int] = []
        for start in range(0, len(wanted), CHUNK):
            chunk = np.asarray(wanted[start : start + CHUNK])
            similarity = self.first[chunk] @ self.second.T
            for line, i in zip(similarity, chunk, strict=True):
                for k in range(self.starts[i], self.starts[i + 1]):
                    having = slice(self.places[self.word[k]], self.places[self.word[k] + 1])
                    line[self.texts[having]] += self.weights[having] * self.weight[k]  # a text is there once
                line[i] = -1
            similarity[:, ~allowed] = -1
            found += similarity.argmax(axis=1).tolist()
        return found
