"""Sentences of reviews, tweets and newspapers, each rated by about 20 people: sentiment without a hub."""

from __future__ import annotations

import hashlib
import html
import io
import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, final

from datamodules.sources.base import SentenceSource, check_text, cut_documents, digest
from datamodules.sources.labels import Example, nearest, to_splits
from datamodules.sources.packages import fetch

if TYPE_CHECKING:
    import datasets

PACKAGE = "vaderSentiment==3.3.2"  # its wheel has the lexicon only
SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
FOLDER = "hutto_ICWSM_2014"
ARCHIVE = f"vaderSentiment-3.3.2/additional_resources/{FOLDER}.tar.gz"
CLEANING = 1  # raise it with every change of what is read below

FILES = {
    "movies": "movieReviewSnippets", "amazon": "amazonReviewSnippets", "news": "nytEditorialSnippets", "tweets": "tweets",
}  # fmt: skip
Row = Mapping[str, str]


@final
class RatedReviews(SentenceSource):
    """Sentences that people find positive or negative; columns `text` and `label`.

    Movie reviews, a sentence of each, for train, validation and test: about 80/10/10 %. The label is the sign of the mean
    rating, from -4 to 4. Of texts that differ in case or punctuation only one is kept, in test before training.

    Source: vaderSentiment 3.3.2 (MIT), the data of Hutto and Gilbert 2014, "VADER"; the movie reviews are those of Pang and
    Lee 2005. pip fetches the 2.4 MB at first use.

    Args:
        test_domain: what is tested: movies; or all sentences about goods sold by amazon, from news (editorials), or tweets.
        min_rating: sentences whose mean rating is nearer to 0 are left out.
        num_train: how many of the training sentences to keep, chosen by their digest; null keeps all.

    Raises:
        ValueError: there is no such domain, or a number is out of range.
    """

    def __init__(self, test_domain: str = "movies", min_rating: float = 0.5, num_train: int | None = None) -> None:
        if test_domain not in FILES:
            raise ValueError(f"test_domain {test_domain!r} is none of {', '.join(FILES)}{nearest(test_domain, FILES)}")
        if not 0 < min_rating <= 4:
            raise ValueError(f"min_rating {min_rating} must be above 0, where a sentence has no sign, and at most 4")
        if num_train is not None and num_train < 1:
            raise ValueError(f"num_train {num_train} must be at least 1")
        self.test_domain, self.min_rating, self.num_train = test_domain, min_rating, num_train

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: the package cannot be fetched.
            ValueError: a file in it is not as expected, or num_train is more than there are.
        """
        with tarfile.open(fetch(PACKAGE, SHA256, source=True)) as package:
            inner = io.BytesIO(_bytes(package, ARCHIVE))
        with tarfile.open(fileobj=inner) as archive:
            domains = {domain: read_domain(archive, domain) for domain in {"movies", self.test_domain}}
        splits = cut_documents(_distinct(domains["movies"]), key="review")  # of all: no option moves a sentence elsewhere
        if self.test_domain != "movies":
            splits["test"] = _distinct(domains[self.test_domain])
        tested = {words(row["text"]) for row in splits["test"]}
        for split in ("train", "validation"):
            splits[split] = [row for row in splits[split] if words(row["text"]) not in tested]
        examples = {split: [example for row in rows if (example := self._labelled(row))] for split, rows in splits.items()}
        examples["train"] = self._chosen(examples["train"])
        return to_splits(examples, val_fraction=0)

    def classes(self) -> list[str]:
        return ["negative", "positive"]

    def fingerprint(self) -> str:
        return digest("reviews", CLEANING, SHA256, self.test_domain, self.min_rating, self.num_train)

    def describe(self) -> str:
        return "the rated sentences of the vaderSentiment package"

    def _labelled(self, row: Row) -> Example | None:
        rating = float(row["rating"])
        if abs(rating) < self.min_rating:
            return None
        return {"text": row["text"], "label": "positive" if rating > 0 else "negative"}

    def _chosen(self, rows: list[Example]) -> list[Example]:
        if self.num_train is None:
            return rows
        if len(rows) < self.num_train:
            raise ValueError(
                f"num_train is {self.num_train}, but {self.describe()} have {len(rows)} for training"
                f" whose rating is {self.min_rating} or more from 0"
            )
        by_digest = sorted(range(len(rows)), key=lambda i: hashlib.sha256(rows[i]["text"].encode()).digest())
        return [rows[i] for i in sorted(by_digest[: self.num_train])]


def read_domain(archive: tarfile.TarFile, domain: str) -> list[Row]:
    """`review` (its id), `text` and `rating` (the mean) of each sentence, in the order of the file.

    The mean is that of the ratings themselves; a mean beside the texts differs in 199 tweets, always with the same sign.

    Raises:
        ValueError: a line is not as expected, or a sentence has no ratings; the message names file and line.
    """
    ratings = {}
    for where, (name, _, _, listed) in _lines(archive, f"{FILES[domain]}_anonDataRatings.txt", 4):
        try:
            ratings[name] = fmean(json.loads(listed))
        except (ValueError, TypeError):
            raise ValueError(f"{where}: {listed[:40]!r}, where a list of ratings was expected") from None
        if not -4 <= ratings[name] <= 4:
            raise ValueError(f"{where}: the ratings have the mean {ratings[name]}, outside of -4 to 4")
    rows: list[Row] = []
    for where, (name, _, raw) in _lines(archive, f"{FILES[domain]}_GroundTruth.txt", 3):
        text = " ".join(html.unescape(html.unescape(raw)).replace("''", '"').split())  # some are escaped twice
        check_text(text, where)
        if name not in ratings:
            raise ValueError(f"{where}: sentence {name} has no ratings")
        rows.append({"review": name, "text": text, "rating": str(ratings[name])})
    return rows


def words(text: str) -> str:
    """The text without case and punctuation, to compare texts by; itself where it has no words."""
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def _distinct(rows: Iterable[Row]) -> list[Row]:
    """The first row of each text."""
    kept: dict[str, Row] = {}
    for row in rows:
        kept.setdefault(words(row["text"]), row)
    return list(kept.values())


def _lines(archive: tarfile.TarFile, name: str, num_cells: int) -> Iterator[tuple[str, list[str]]]:
    """Where each line stands, and its cells."""
    text = _bytes(archive, f"{FOLDER}/{name}").decode("utf-8-sig")
    for number, line in enumerate(text.replace("\r\n", "\n").rstrip("\n").split("\n"), 1):
        cells = line.split("\t")
        if len(cells) != num_cells:
            raise ValueError(f"{name}, line {number} has {len(cells)} cells, where {num_cells} were expected")
        yield f"{name}, line {number}", cells


def _bytes(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()
