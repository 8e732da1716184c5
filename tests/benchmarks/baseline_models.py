"""The models of baselines.py that scikit-learn does not have as such."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier

from datamodules.similarity import words

NEGATIONS = {"no", "not", "nobody", "nothing", "none", "never", "neither", "nor", "without", "cannot"}
Pair = tuple[str, str]


def tf_idf() -> TfidfVectorizer:
    """Words and bigrams that are in two texts or more."""
    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)


def jaccard(pair: Pair) -> float:
    """Shared words over all words of two texts."""
    first, second = (set(words(text)) for text in pair)
    return len(first & second) / len(first | second) if first | second else 0.0


class JaccardThreshold(ClassifierMixin, BaseEstimator):
    """Positive from the overlap on that makes the fewest errors in training."""

    def __init__(self, positive: str, negative: str) -> None:
        self.positive, self.negative = positive, negative

    def fit(self, pairs: Sequence[Pair], labels: Sequence[str]) -> "JaccardThreshold":
        overlap, positive = np.array([jaccard(pair) for pair in pairs]), np.array(labels) == self.positive
        candidates = np.append(np.unique(overlap), np.inf)
        self.threshold_ = max(candidates.tolist(), key=lambda t: np.count_nonzero((overlap >= t) == positive))
        self.classes_ = np.array(sorted((self.positive, self.negative)))
        return self

    def predict(self, pairs: Sequence[Pair]) -> np.ndarray:
        return np.where([jaccard(pair) >= self.threshold_ for pair in pairs], self.positive, self.negative)


class PairFeatures(TransformerMixin, BaseEstimator):
    """tf-idf of the first and of the second text as two blocks, and what their words share: `overlap`."""

    def fit(self, pairs: Sequence[Pair], labels: Sequence[str] | None = None) -> "PairFeatures":
        self.tf_idf_ = tf_idf().fit([text for pair in pairs for text in pair])
        return self

    def transform(self, pairs: Sequence[Pair]) -> sparse.csr_matrix:
        blocks = [self.tf_idf_.transform([pair[i] for pair in pairs]) for i in (0, 1)]
        return sparse.hstack([*blocks, np.array([overlap(pair) for pair in pairs])], format="csr")


def overlap(pair: Pair) -> list[float]:
    """Jaccard, how many words are in the first only and in the second only, and whether one alone has a negation."""
    first, second = (set(words(text)) for text in pair)
    negated = [bool(found & NEGATIONS) for found in (first, second)]
    return [jaccard(pair), len(first - second), len(second - first), float(negated[0] != negated[1])]


class FrequentLabel:
    """The label that a word most often had in training; of ties the one seen first.

    Args:
        unknown: the label of other words.
        known: without it all words have that label.
    """

    def __init__(self, unknown: str, known: bool = True) -> None:
        self.unknown, self.known = unknown, known

    def fit(self, sentences: Iterable[list[str]], labels: Iterable[list[str]]) -> None:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for each, their_labels in zip(sentences, labels, strict=True):
            for word, label in zip(each, their_labels, strict=True):
                counts[word][label] += 1
        self.labels = {word: found.most_common(1)[0][0] for word, found in counts.items()} if self.known else {}

    def predict(self, sentences: Iterable[list[str]]) -> list[list[str]]:
        return [[self.labels.get(word, self.unknown) for word in each] for each in sentences]


class LinearTagger:
    """A label for each word on its own, by logistic regression (one against the rest, SGD) on `features`."""

    def __init__(self, seed: int) -> None:
        self.vectorizer = DictVectorizer()
        self.classifier = SGDClassifier(loss="log_loss", alpha=2e-6, max_iter=20, tol=None, random_state=seed)

    def fit(self, sentences: Iterable[list[str]], labels: Iterable[list[str]]) -> None:
        inputs = self.vectorizer.fit_transform(found for each in sentences for found in features(each))
        self.classifier.fit(narrow(inputs), [label for each in labels for label in each])

    def predict(self, sentences: Iterable[list[str]]) -> list[list[str]]:
        listed = list(sentences)
        inputs = self.vectorizer.transform(found for each in listed for found in features(each))
        predicted = iter(self.classifier.predict(narrow(inputs)).tolist())
        return [[next(predicted) for _ in each] for each in listed]


def narrow(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """With indices of 32 bits: DictVectorizer makes them of 64, which SGDClassifier refuses."""
    indices, indptr = (array.astype(np.int32) for array in (matrix.indices, matrix.indptr))
    return sparse.csr_matrix((matrix.data, indices, indptr), shape=matrix.shape)


@cache
def shape(word: str) -> str:
    """Its kinds of characters, each run once: U.N. is X.X., Smith-2 is Xx-d."""
    kinds = ((r"[^\W\d_]", lambda found: "X" if found[0].isupper() else "x"), (r"\d", "d"), (r"(.)\1+", r"\1"))
    for pattern, kind in kinds:
        word = re.sub(pattern, kind, word)
    return word


def features(sentence: list[str]) -> Iterator[dict[str, str | bool]]:
    """Of each word: itself, its shape and affixes, and the two words and shapes on either side."""
    padded = ["<", "<", *sentence, ">", ">"]
    shouted = all(not word.islower() for word in sentence)  # a headline
    for i, word in enumerate(sentence, 2):
        yield {
            "word": word, "lower": word.lower(), "shape": shape(word), "suffix2": word[-2:], "suffix3": word[-3:],
            "prefix3": word[:3], "first": i == 2, "shouted": shouted, "-2": padded[i - 2].lower(), "-1": padded[i - 1].lower(),
            "+1": padded[i + 1].lower(), "+2": padded[i + 2].lower(), "-1, shape": shape(padded[i - 1]),
            "+1, shape": shape(padded[i + 1]), "-1 and 0": f"{padded[i - 1]} {word}", "0 and +1": f"{word} {padded[i + 1]}",
            "shapes": " ".join(map(shape, padded[i - 1 : i + 2])),
        }  # fmt: skip
