import re
from collections import Counter

import pytest

from datamodules.sources import restoration, wikipedia
from datamodules.sources.restoration import WikipediaRestoration, stripped
from datamodules.sources.wikipedia import Wikipedia


@pytest.fixture(scope="module")
def splits():
    return WikipediaRestoration().load()


def test_counts(splits):
    assert {split: (len(rows), sum(map(len, rows["words"]))) for split, rows in splits.items()} == {
        "train": (13_598, 305_696),
        "validation": (1_792, 40_525),
        "test": (1_687, 37_175),
    }
    assert all(rows.column_names == ["words", "labels"] for rows in splits.values())


def test_classes(splits):
    classes = WikipediaRestoration().classes()
    assert len(set(classes)) == 12 and classes[:4] == ["lower+none", "lower+comma", "lower+period", "lower+other"]
    for rows in splits.values():
        found = Counter(label for labels in rows["labels"] for label in labels)
        assert set(found) == set(classes)
        assert 0.70 < found["lower+none"] / found.total() < 0.76


def test_words_are_those_of_the_articles_of_the_split(splits):
    """All of them, in order: only sentences of one or two words are missing."""
    for split, articles in Wikipedia().load().items():
        everything = Counter(re.findall(r"\w+", " ".join(articles["text"]).lower()))
        kept = Counter(part for words in splits[split]["words"] for word in words for part in re.findall(r"\w+", word))
        assert kept <= everything and (everything - kept).total() < 40
        text = " ".join(" ".join(re.findall(r"\w+", text.lower())) for text in articles["text"])
        assert all(" ".join(re.findall(r"\w+", " ".join(words))) in text for words in splits[split]["words"][::97])


def test_words_give_nothing_away(splits):
    for rows in splits.values():
        for words, labels in zip(rows["words"], rows["labels"], strict=True):
            assert len(words) == len(labels) >= 3
            assert all(word == word.lower() and re.match(r"\w", word[0]) and re.match(r"\w", word[-1]) for word in words)


@pytest.mark.parametrize(
    ("sentence", "words", "labels"),
    [
        (
            "In 1,000 B.C., NASA's \"McCoy\" (a U.S. ship) didn't sail: why?",
            "in 1,000 b c nasa's mccoy a u s ship didn't sail why",
            "title+none lower+none title+period title+period upper+other title+other lower+none title+period title+period"
            " lower+other lower+none lower+other lower+other",
        ),
        ('"Yes," said I; no.', "yes said i no", "title+comma lower+none title+other lower+period"),
        (
            "well-known jean-Paul 1914–18, 3.5%.",
            "well-known jean-paul 1914 18 3.5",
            "lower+none lower+none lower+other lower+comma lower+other",
        ),
        (
            "Émile A ÉCOLE O'Neill's S-IVB 3D B2B USA’s",
            "émile a école o'neill's s-ivb 3d b2b usa’s",
            "title+none title+none upper+none title+none upper+none lower+none upper+none upper+none",
        ),
        ("the dogs' bone -- 'a' ... b", "the dogs bone a b", "lower+none lower+other lower+other lower+other lower+none"),
        ("(...)", "", ""),
    ],
)  # fmt: skip
def test_labels(sentence, words, labels):
    assert stripped(sentence) == {"words": words.split(), "labels": labels.split()}


def test_a_simple_sentence_can_be_put_back():
    sentence = "When it rained in Paris, NATO met, and Anna left."
    result = stripped(sentence)
    shape = {"lower": str, "title": str.capitalize, "upper": str.upper}
    mark = {"none": "", "comma": ",", "period": "."}
    parts = [label.split("+") for label in result["labels"]]
    words = [shape[case](word) + mark[end] for word, (case, end) in zip(result["words"], parts, strict=True)]
    assert " ".join(words) == sentence


def test_the_same_every_time(splits):
    assert list(WikipediaRestoration().load()["validation"]) == list(splits["validation"])


@pytest.mark.parametrize("module", [restoration, wikipedia])
def test_cleaning_is_part_of_the_fingerprint(monkeypatch, module):
    before = WikipediaRestoration().fingerprint()
    assert before == WikipediaRestoration().fingerprint() != Wikipedia().fingerprint()
    monkeypatch.setattr(module, "CLEANING", module.CLEANING + 1)
    assert WikipediaRestoration().fingerprint() != before
