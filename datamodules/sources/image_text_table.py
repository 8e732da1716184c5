"""Images with captions in your own tables: encoded in Parquet, or as paths in CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageTextSource, digest
from datamodules.sources.image_base import encoded_column, file_states, image_files
from datamodules.sources.image_table import path_in, read_parquet
from datamodules.sources.image_text_base import (
    READING,
    Captioned,
    captions_in,
    group_in,
    one_for_each,
    to_image_text_splits,
    with_captions,
)  # fmt: skip
from datamodules.sources.labelled_files import LabelledFiles, Paths
from datamodules.sources.labels import Row
from datamodules.sources.tables import rows_with

if TYPE_CHECKING:
    import datasets


@final
class ImageTextTable(LabelledFiles, ImageTextSource):
    """Images and captions in named columns; columns `image`, `captions`, `group` and `row` (the path, or where the row stands).

    An image is a path, relative to the table, or in Parquet an encoded one, as bytes or as a struct of bytes and path. Rows
    with the same image are one example with all their captions. A caption's cell is text or, in JSON lines and Parquet, a
    list of texts.

    Args:
        train: a file, a list of files or a glob; formats by suffix as in `read_rows`.
        validation: likewise; without it val_fraction of the training images, chosen by their digest.
        test: likewise.
        image: the column of the image.
        captions: the column of the captions, or several; of several some may be empty.
        group: the column that names the part of the data that a pair belongs to; null for none.
        val_fraction: share of the training images.
    """

    def __init__(
        self, train: str | list[str], validation: str | list[str] | None = None, test: str | list[str] | None = None,
        image: str = "image", captions: str | list[str] = "caption", group: str | None = None, val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        self.captions = [captions] if isinstance(captions, str) else list(captions)
        if not self.captions:
            raise ValueError("captions is an empty list: the column of the captions, or several, was expected")
        paths: dict[str, Paths] = {"train": train, "validation": validation, "test": test}
        columns = {"image": image, "group": group, **{f"caption {i}": name for i, name in enumerate(self.captions)}}
        super().__init__(paths, columns, "image", val_fraction)
        self.image, self.group = image, group

    def rows(self, path: Path) -> list[Row]:
        """The rows of a table of paths, with the image's path as one that can be opened."""
        rows = rows_with(path, self.columns.values())
        return [(where, {**row, self.image: path_in(where, row.get(self.image), self.image, path)}) for where, row in rows]

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: a table, or an image that it names, is not there.
            ValueError: a table is empty or broken, lacks a column, or a row has no image or no caption.
        """
        import datasets

        splits = {}
        for split, paths in self.files().items():
            splits[split] = datasets.concatenate_datasets([self._part(path) for path in paths])
        return to_image_text_splits(splits, self.val_fraction)

    def fingerprint(self) -> str:
        states = []
        for path in (path for paths in self.files().values() for path in paths):
            if self._encoded(path) is None:
                states += file_states([row[self.image] for _, row in self.rows(path)], str(path.parent))
        return digest("image text table", READING, super().fingerprint(), states)

    def _encoded(self, path: Path) -> datasets.Dataset | None:
        """A table of encoded images; None of one of paths."""
        if path.suffix.lower() != ".parquet":
            return None
        table = read_parquet(path, tuple(column for column in self.columns.values() if column is not None))
        return None if getattr(table.features[self.image], "dtype", None) in ("string", "large_string") else table

    def _part(self, path: Path) -> datasets.Dataset:
        if (table := self._encoded(path)) is not None:
            images = encoded_column(str(path), table, self.image, paths=False)
            cells = table.remove_columns(self.image)
            rows: list[Row] = [(f"{path}, row {number}", row) for number, row in enumerate(cells, 1)]
            keys: list[object] = [hashlib.sha256(row["image"]["bytes"]).digest() for row in images]
            names = [where for where, _ in rows]
        else:
            rows = self.rows(path)
            names = [row[self.image] for _, row in rows]
            images, keys = image_files(names), [os.path.realpath(name) for name in names]
        captioned = [
            Captioned(captions_in(where, row, self.captions), group_in(row, self.group), name)
            for name, (where, row) in zip(names, rows, strict=True)
        ]
        firsts, merged = one_for_each(keys, captioned)
        return with_captions(images.select(firsts).flatten_indices(), merged)
