import importlib.metadata
import re

import pytest

from datamodules.sources import wikipedia
from datamodules.sources.wikipedia import Wikipedia


@pytest.fixture(scope="module")
def splits():
    return Wikipedia().load()


def test_size_and_splits_by_whole_article(splits):
    titles = {split: set(rows["title"]) for split, rows in splits.items()}
    assert list(splits) == ["train", "validation", "test"]
    assert sum(map(len, titles.values())) == len(set.union(*titles.values())) == 95
    characters = {split: sum(map(len, rows["text"])) for split, rows in splits.items()}
    total = sum(characters.values())
    assert 2_350_000 < total < 2_450_000
    assert characters["train"] / total == pytest.approx(0.8, abs=0.03)
    assert characters["validation"] / total == pytest.approx(0.1, abs=0.02)
    assert characters["test"] / total == pytest.approx(0.1, abs=0.02)


def test_text_is_prose_in_paragraphs(splits):
    text = {row["title"]: row["text"] for rows in splits.values() for row in rows}
    assert text["Albedo"].startswith("Albedo or reflection coefficient, derived from Latin albedo")
    assert text["Aristotle"].count("\n\n") > 50
    everything = "\n\n".join(text.values())
    for mark in ("[[", "]]", "{{", "}}", "<ref", "http://", "&nbsp;", "'''", "==", "\xa0", "  "):
        assert mark not in everything, mark
    assert all(len(p) >= 80 for p in everything.split("\n\n"))
    assert not re.search(r"\n(References|See also|External links)\b", everything)


def test_the_same_every_time(splits):
    again = Wikipedia()
    assert again.load()["test"]["text"] == splits["test"]["text"]
    assert again.fingerprint() == Wikipedia().fingerprint()


def test_cleaning_is_part_of_the_fingerprint(monkeypatch):
    before = Wikipedia().fingerprint()
    monkeypatch.setattr(wikipedia, "CLEANING", wikipedia.CLEANING + 1)
    assert Wikipedia().fingerprint() != before


def test_without_gensim_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    for call in (Wikipedia().load, Wikipedia().fingerprint):
        with pytest.raises(FileNotFoundError, match=r'gensim.*pip install -e "\.\[samples\]"'):
            call()


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("{{Infobox|a={{nested}}}}", ""),
        ("{| class=wikitable\n|-\n| cell\n|}", ""),
        ("[[Target (disambiguation)|label]] and [[plain]]", "label and plain"),
        ("[[File:A.jpg|thumb|a [[linked]] caption]]", ""),
        ("[http://example.org the page] at http://example.org/x", "the page at"),
        ("'''bold''', ''italic'' and the dogs'", "bold, italic and the dogs'"),
        ("a<ref name=x>not this</ref>b<ref name=y/>c<!-- nor\nthis -->d", "abcd"),
        ("name ( ; ) here&nbsp;and&nbsp;there", "name here and there"),
    ],
)
def test_markup(markup, text):
    filler = "Enough words follow that this line counts as a paragraph of an article, and not as a caption."
    assert list(wikipedia.paragraphs(f"{markup} {filler}")) == [f"{text} {filler}".strip()]
