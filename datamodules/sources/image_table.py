"""Labelled images in your own tables: encoded in Parquet, or as paths in CSV, TSV or JSON lines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageSource, digest, readable
from datamodules.sources.hub import first_line
from datamodules.sources.image_base import ImageRows, file_states, image_files, image_rows, labelled, to_image_splits
from datamodules.sources.labelled_files import LabelledFiles, Paths
from datamodules.sources.labels import Row, check_columns
from datamodules.sources.tables import rows_with

if TYPE_CHECKING:
    import datasets

BATCH = 256  # rows read at once: Arrow joins no structs of more than 2 GiB


@final
class ImageTable(LabelledFiles, ImageSource):
    """Images and their classes in named columns; columns `image`, `label` and `row` (the path, or where the row stands).

    Parquet holds encoded images, as bytes or, as `datasets` writes them, as structs of bytes and path; they are held in memory
    (`HubImages` on a local folder maps larger sets from the disk). Other tables hold paths, relative to the table. A label is a
    string or a whole number; where Parquet names the classes, as `datasets` writes them, a number stands for its class. -1 as a
    number (not in .csv and .tsv, where all is text) means none. Rows of train and validation have a label each, those of test
    all or none of them.

    Args:
        train: a file, a list of files or a glob; formats by suffix as in `read_rows`.
        validation: likewise; without it val_fraction of the training rows, chosen by their digest.
        test: likewise.
        image: the column of the image.
        label: the column of the class.
        val_fraction: share of the training rows.
    """

    def __init__(
        self, train: str | list[str], validation: str | list[str] | None = None, test: str | list[str] | None = None,
        image: str = "image", label: str = "label", val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        paths: dict[str, Paths] = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, {"image": image, "label": label}, "label", val_fraction)
        self.image, self.label = image, label
        self._classes: list[str] | None = None

    def rows(self, path: Path) -> list[Row]:
        """The rows of a table of paths, with the image's path as one that can be opened."""
        rows = rows_with(path, (self.image, self.label))
        return [(where, {**row, self.image: path_in(where, row.get(self.image), self.image, path)}) for where, row in rows]

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: a table, or an image that it names, is not there.
            ValueError: a table is empty or broken, lacks a column, or a row has no image or a wrong label.
        """
        import datasets

        splits = {}
        for split, paths in self.files().items():
            parts = [self._part(path) for path in paths]
            images = datasets.concatenate_datasets([part.images for part in parts])
            splits[split] = ImageRows(images, [example for part in parts for example in part.examples])
        return to_image_splits(splits, self.val_fraction)

    def classes(self) -> list[str] | None:
        """The names of a numbered column in Parquet, in their order; None of any other, and before `load`."""
        return self._classes

    def fingerprint(self) -> str:
        states = []
        for path in (path for paths in self.files().values() for path in paths):
            if not _encoded(path):
                states += file_states([row[self.image] for _, row in self.rows(path)], str(path.parent))
        return digest("image table", super().fingerprint(), states)

    def _part(self, path: Path) -> ImageRows:
        if not _encoded(path):
            rows = self.rows(path)
            examples = [labelled(where, row.get(self.label)) | {"row": row[self.image]} for where, row in rows]
            return ImageRows(image_files([example["row"] for example in examples]), examples)
        part, names = image_rows(str(path), read_parquet(path, (self.image, self.label)), self.image, self.label, paths=False)
        self._classes = self._classes or names
        return part


def _encoded(path: Path) -> bool:
    return path.suffix.lower() == ".parquet"


def path_in(where: str, name: object, column: str, table: Path) -> str:
    """The file that a cell of a table names.

    Raises:
        ValueError: it names none.
        FileNotFoundError: the file is not there.
    """
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{where}: column {column!r} holds {name!r}, where the path of an image was expected")
    file = os.path.join(table.parent, os.path.expanduser(name))
    if not os.path.isfile(file):
        raise FileNotFoundError(f"{where}: there is no image {file}; paths are relative to the table")
    return file


def read_parquet(path: Path, columns: tuple[str, ...]) -> datasets.Dataset:
    """Those columns of a Parquet file, with the features that `datasets` has written into it.

    Raises:
        ValueError: the file is broken or has no rows, or a column is missing.
    """
    import datasets
    import pyarrow
    import pyarrow.parquet

    with readable(path):
        file = path.open("rb")
    try:
        with file, pyarrow.parquet.ParquetFile(file) as parquet:
            check_columns(str(path), parquet.schema_arrow.names, columns)
            batches = list(parquet.iter_batches(BATCH, columns=list(columns)))
            metadata = parquet.schema_arrow.metadata
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise ValueError(f"{path} is not readable as Parquet: {first_line(error)}") from None
    if not batches:
        raise ValueError(f"{path} has no rows")
    table = pyarrow.Table.from_batches(batches).replace_schema_metadata(metadata)
    try:
        return datasets.Dataset(table)
    except Exception as error:  # a type, or metadata, that `datasets` does not know
        raise ValueError(f"{path} is no table that datasets reads: {first_line(error)}") from None
