import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from datamodules import similarity
from datamodules.similarity import Similarity, tf_idf


def corpus(n, seed):
    """Texts in which a few words are frequent and most are rare, with repeated words, capitals and short ones."""
    rng = random.Random(seed)
    return [" ".join(f"W{int(rng.paretovariate(0.7)) % 3000} a" for _ in range(rng.randrange(1, 25))) for _ in range(n)]


def vectors(first, second):
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit([*first, *second])
    return vectorizer.transform(first), vectorizer.transform(second)


def test_weights_are_those_of_scikit_learn():
    texts = ["The cat sat, the cat SAT on it.", "A dog's dinner", "cat 42 café", "Don't"]
    row, word, weight = tf_idf(texts)
    expected = TfidfVectorizer(sublinear_tf=True).fit_transform(texts).toarray()
    assert sorted(zip(row, weight.round(5), strict=True)) == sorted(
        (i, np.float32(value).round(5)) for i, line in enumerate(expected) for value in line if value
    )
    assert len(set(word)) == expected.shape[1]


@pytest.mark.parametrize("frequent", [0.0, 0.05, 0.3, 1.0])
def test_the_nearest_is_the_one_of_scikit_learn(monkeypatch, frequent):
    """Whether its words are multiplied or looked up: none, some, all."""
    monkeypatch.setattr(similarity, "FREQUENT", frequent)
    monkeypatch.setattr(similarity, "CHUNK", 64)
    first, second = corpus(400, 0), corpus(400, 1)
    rng = np.random.default_rng(0)
    allowed, wanted = rng.random(400) < 0.7, rng.permutation(400)[:150].tolist()
    found = Similarity(first, second).nearest(wanted, allowed)
    a, b = vectors(first, second)
    everything = (a @ b.T).toarray()
    everything[:, ~allowed] = -1
    np.fill_diagonal(everything, -1)
    assert np.allclose(everything[wanted, found], everything[wanted].max(axis=1), atol=1e-6)
    assert allowed[found].all() and not np.any(np.array(found) == wanted)


def test_never_itself():
    texts = ["one two three", "one two four", "five six seven"]
    assert Similarity(texts, texts).nearest([0, 1], np.ones(3, dtype=bool)) == [1, 0]
    assert Similarity(texts, texts).nearest([0, 1], np.array([True, False, True])) == [2, 0]
    assert Similarity(texts, texts).nearest([], np.ones(3, dtype=bool)) == []


def test_a_text_without_words_is_like_none():
    assert Similarity(["one", "!", "two"], ["a", "one", "two three"]).nearest([0, 1, 2], np.ones(3, dtype=bool))[0] == 1
