import sys

import pytest

from datamodules.sources.stdlib import StdlibDocs


def test_prose_in_three_splits_without_overlap():
    splits = StdlibDocs().load()
    characters = {split: sum(map(len, rows["text"])) for split, rows in splits.items()}
    total = sum(characters.values())
    assert 150_000 < total < 500_000
    assert characters["train"] / total == pytest.approx(0.8, abs=0.06)
    assert min(characters.values()) > 0.05 * total
    paragraphs = [p for rows in splits.values() for text in rows["text"] for p in text.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs)), "a paragraph stands in two topics, and so in two splits"
    assert not [p for p in paragraphs if "::=" in p or ">>>" in p]


def test_a_python_without_topics(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(FileNotFoundError, match="pydoc_data"):
        StdlibDocs().fingerprint()
