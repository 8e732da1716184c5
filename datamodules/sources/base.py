"""What every source shares: the contracts, cutting splits, and the checks of bad text."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing it takes 0.8 s, and a warm token cache never needs it
    import datasets


class Source(ABC):
    """Examples, cut into splits."""

    @abstractmethod
    def load(self) -> datasets.DatasetDict:
        """Splits `train`, `validation` and, where there is one, `test`, with the columns that the class states.

        Raises:
            FileNotFoundError: a file, package or data set is not there.
            ValueError: what is there is not what was expected; the message names the file or row.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes with all that changes the examples (content, options, cleaning); it parses nothing."""

    @abstractmethod
    def describe(self) -> str:
        """The files or the data set in a few words, to name them in an error."""


class TextSource(Source):
    """Documents of text: column `text`, one document a row."""


class SentenceSource(Source):
    """Labelled sentences or sentence pairs: columns `text`, `text_pair` (in pairs only) and `label`.

    A label is the name of its class, None where it is not known (in `test` only).
    """

    def classes(self) -> list[str] | None:
        """The classes in the order of their numbers, where the data fix one; else they are sorted. Call it after `load`."""
        return None


class WordSource(Source):
    """Labelled words: columns `words` and `labels`, two lists of the same length, one sentence a row.

    A label is the name of its class, None where it is not known (in `test` only).
    """

    def classes(self) -> list[str] | None:
        """The classes in the order of their numbers, where the data fix one; else they are sorted. Call it after `load`."""
        return None


class ImageSource(Source):
    """Labelled images: columns `image`, `label` and `row`.

    An image is a struct of its file's `bytes` or, where they are null, the file's `path`, as `datasets.Image(decode=False)` has
    it; it is decoded by `datamodules.image_decoding`. A label is the name of its class, None where it is not known (in `test`
    only). `row` names the image in errors: the file, or where it stands in a table.
    """

    def classes(self) -> list[str] | None:
        """The classes in the order of their numbers, where the data fix one; else they are sorted. Call it after `load`."""
        return None


class ImageTextSource(Source):
    """Images with captions: columns `image`, `captions`, `group` and `row`.

    `image` and `row` are as in ImageSource. `captions` is a list of strings, at least one, none of them empty. `group` names
    the part of the data that a pair belongs to (a font, say) and is "" where there are no parts; metrics are given for each.
    """


class ResponseSource(Source):
    """What to say after a prompt: columns `prompt`, `response` and `row`, one exchange a row."""


class PreferenceSource(Source):
    """Two responses to a prompt: columns `prompt`, `chosen`, `rejected` and `row`; people prefer the chosen one."""


def check_fraction(name: str, value: float) -> None:
    """Raises ValueError unless 0 < value < 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} {value} must lie between 0 and 1 (0.1 keeps a tenth for validation)")


def check_text(text: str, where: str) -> None:
    """Raises ValueError that names `where` if there is nothing but white space."""
    if not text.strip():
        raise ValueError(f"{where} is empty: text was expected")


def cut_characters(texts: Sequence[str], val_fraction: float) -> tuple[list[str], list[str]]:
    """Cut after the first int(n * (1 - val_fraction)) of the n characters of the texts in order; a text on the border is cut.

    Source: nanoGPT, data/shakespeare_char/prepare.py (n * 0.9).
    """
    border = int(sum(map(len, texts)) * (1 - val_fraction))
    train: list[str] = []
    validation: list[str] = []
    for text in texts:
        head, tail = text[:border], text[border:]
        border -= len(head)
        train += [head] if head else []
        validation += [tail] if tail else []
    return train, validation


def cut_documents(rows: Iterable[Mapping[str, str]], key: str) -> dict[str, list[Mapping[str, str]]]:
    """About 80/10/10 % of the characters of column `text`, by whole rows, in their order within each split.

    A row's place depends on the digest of its `key`: the alphabet of titles does not decide what is tested.
    """
    rows = list(rows)
    tenth = sum(len(row["text"]) for row in rows) / 10
    by_digest = sorted(range(len(rows)), key=lambda i: hashlib.sha256(rows[i][key].encode()).digest())
    split_of, taken = {}, 0
    for i in by_digest:
        split_of[i] = "validation" if taken < tenth else "test" if taken < 2 * tenth else "train"
        taken += len(rows[i]["text"])
    return {s: [row for i, row in enumerate(rows) if split_of[i] == s] for s in ("train", "validation", "test")}


def to_dataset_dict(splits: Mapping[str, Sequence[Mapping[str, str]]], columns: Sequence[str]) -> datasets.DatasetDict:
    """Rows of strings to Arrow tables, in memory. `large_string` holds a document of more than 2 GiB."""
    import datasets

    features = datasets.Features({c: datasets.Value("large_string") for c in columns})
    return datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({c: [row[c] for row in rows] for c in columns}, features=features)
            for name, rows in splits.items()
        }
    )


def digest(*parts: object) -> str:
    """sha256 over the parts; a Path stands for the bytes of that file."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with readable(part), part.open("rb") as file:
                piece = hashlib.file_digest(file, "sha256").digest()
        else:
            piece = hashlib.sha256(repr(part).encode("utf-8", "surrogateescape")).digest()
        total.update(piece)
    return total.hexdigest()


class readable:  # small letters: it is read as a statement, `with readable(path):`
    """Turns an OSError on `path` into a ValueError of one line (FileNotFoundError where it is missing)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(f"{self.path} does not exist") from None
        if isinstance(error, OSError):
            raise ValueError(f"{self.path} cannot be read: {error.strerror}") from None
