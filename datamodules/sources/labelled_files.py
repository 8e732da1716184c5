"""What labelled sentences and labelled words in your own files share: which files make up each split."""

from __future__ import annotations

import glob
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from datamodules.sources.base import Source, check_fraction, digest
from datamodules.sources.files import find_files, refuse_shared
from datamodules.sources.labels import CHECKS, Example, Row, to_splits

if TYPE_CHECKING:
    import datasets

Paths = str | list[str] | None
READING = 1  # raise it when what a file is read as changes


class LabelledFiles(Source):
    """Files of train, validation and test rows; only the splits that are given exist, and validation may be cut from train.

    Args:
        paths: for each split a file, a list of files or a glob; None where there is none.
        columns: the column that holds each part of an example.
        labels: the part that is the label; where its column is None, only test may be given.
        val_fraction: share of the training rows that is for validation where there are no such files.

    Raises:
        ValueError: no path, an empty list, an option out of range, or training without labels.
    """

    example: ClassVar[Callable[..., Example]]  # `sentence` or `tagged`

    def __init__(self, paths: Mapping[str, Paths], columns: Mapping[str, str | None], labels: str, val_fraction: float) -> None:
        check_fraction("val_fraction", val_fraction)
        self.columns, self.val_fraction = dict(columns), val_fraction
        self.paths = {split: [p] if isinstance(p, str) else list(p) for split, p in paths.items() if p is not None}
        if not self.paths:
            raise ValueError("no files are given: name those of train, and of validation and test where you have them")
        if empty := next((split for split, names in self.paths.items() if not names), None):
            raise ValueError(f"{empty} is an empty list: a file, a list of files or a glob was expected")
        if columns[labels] is None and (others := [split for split in self.paths if split != "test"]):
            raise ValueError(f"{labels} is null: without labels there can be a test split only, not {' and '.join(others)}")

    @abstractmethod
    def rows(self, path: Path) -> Iterable[Row]:
        """The rows of one file."""

    def files(self) -> dict[str, list[Path]]:
        """The files of each split: sorted by path, each once.

        Raises:
            FileNotFoundError: a path does not exist, or a glob matches nothing.
            ValueError: a path is a folder, or a file is in two splits.
        """
        files = {split: _found(names) for split, names in self.paths.items()}
        refuse_shared(files)
        return files

    def load(self) -> datasets.DatasetDict:
        make = type(self).example
        examples = {
            split: [make(where, row, self.columns, None) for path in paths for where, row in self.rows(path)]
            for split, paths in self.files().items()
        }
        return to_splits(examples, self.val_fraction)

    def fingerprint(self) -> str:
        files = self.files()
        contents = [part for split, paths in files.items() for path in paths for part in (split, path.suffix.lower(), path)]
        options = (type(self).__name__, self.columns, None if "validation" in files else self.val_fraction)
        return digest(READING, CHECKS, *options, *contents)

    def describe(self) -> str:
        names = [name for names in self.paths.values() for name in names]
        return "the rows of " + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _found(names: Sequence[str]) -> list[Path]:
    for name in names:
        path = Path(name).expanduser()
        if path.is_dir():
            raise ValueError(f"{name} is a folder: name its files, or a glob such as {Path(name) / '*.jsonl'}")
        if not path.exists() and not glob.has_magic(name):
            raise FileNotFoundError(f"{name} does not exist: a file, a list of files or a glob was expected")
    return find_files(names)
