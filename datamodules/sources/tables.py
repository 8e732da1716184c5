"""Labelled sentences in your own CSV, TSV, JSON lines or Parquet files."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import final

from datamodules.sources.base import SentenceSource, readable
from datamodules.sources.files import read
from datamodules.sources.hub import first_line
from datamodules.sources.labelled_files import LabelledFiles, Paths
from datamodules.sources.labels import Row, check_columns, sentence


@final
class SentenceTable(LabelledFiles, SentenceSource):
    """Sentences or sentence pairs and their classes, in named columns; columns `text`, `text_pair`, `label`, `row`.

    A label is a string or a whole number; -1 as a number (not in .csv and .tsv, where all is text) means none. Rows of train
    and validation have a label each, those of test all or none of them. `row` says where a row stands.

    Args:
        train: a file, a list of files or a glob; formats by suffix as in `read_rows`.
        validation: likewise; without it val_fraction of the training rows, chosen by their digest.
        test: likewise.
        text: the column of the sentence.
        text_pair: the column of the second sentence, in pairs.
        label: the column of the class; null for rows without labels, which only `test` can be.
        val_fraction: share of the training rows.
    """

    example = staticmethod(sentence)

    def __init__(
        self, train: str | list[str] | None = None, validation: str | list[str] | None = None,
        test: str | list[str] | None = None, text: str = "text", text_pair: str | None = None, label: str | None = "label",
        val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        paths: dict[str, Paths] = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, {"text": text, "text_pair": text_pair, "label": label}, "label", val_fraction)

    def rows(self, path: Path) -> Iterable[Row]:
        return rows_with(path, self.columns.values())


def rows_with(path: Path, wanted: Iterable[str | None]) -> list[Row]:
    """The rows of a table that has the wanted columns.

    Raises:
        ValueError: what `read_rows` says, there is no row, or a column is in none of them.
    """
    rows = list(read_rows(path))
    if not rows:
        raise ValueError(f"{path} has no rows below its columns' names")
    check_columns(str(path), list(dict.fromkeys(column for _, row in rows for column in row)), wanted)
    return rows


def read_rows(path: Path) -> Iterator[Row]:
    """Each row of a table: where it stands ("reviews.csv, row 17", counted from 1; of JSON lines the line), and its cells.

    .csv is Python's csv with quotes; in .tsv cells are parted by tabs and quotes are ordinary characters, as in GLUE's files;
    the first line of both names the columns. .jsonl, .ndjson and .json hold one object a line. .parquet is any Parquet.
    Text is UTF-8, with or without a byte order mark; blank lines at the end are ignored.

    Raises:
        ValueError: the suffix is another, or the file is empty or broken; the message names the file and the row.
    """
    suffix = path.suffix.lower()
    if suffix not in READERS:
        raise ValueError(f"{path} has the suffix {suffix!r}: a table ends in {', '.join(READERS)}")
    return READERS[suffix](path)


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, without the blank ones at its end."""
    lines = read(path).split("\n")  # splitlines would also split at characters that belong to a text
    while not lines[-1].strip(" "):
        lines.pop()
    return lines


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # by default a long document is an error
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    yield from _below_header(path, _parsed(path, rows), "a cell that holds a comma, quote or line end is quoted")


def _parsed(path: Path, rows: Iterator[list[str]]) -> Iterator[list[str]]:
    number = 0
    while True:
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}, {_place(number)}: {error} (a quote inside a quoted cell is written twice)") from None
        yield cells
        number += 1


def _tsv(path: Path) -> Iterator[Row]:
    cells = (line.split("\t") for line in read_lines(path))
    yield from _below_header(path, cells, "a cell of a .tsv holds no tab or line end, and quotes do not change that")


def _below_header(path: Path, rows: Iterator[list[str]], rule: str) -> Iterator[Row]:
    header = next(rows)
    if twice := next((name for i, name in enumerate(header) if name in header[:i]), None):
        raise ValueError(f"{path} has two columns {twice!r}: its first line is to name each column once")
    for number, cells in enumerate(rows, 1):
        if len(cells) != len(header):
            raise ValueError(f"{path}, row {number} has {len(cells)} cells, but the first line names {len(header)}: {rule}")
        yield f"{path}, row {number}", dict(zip(header, cells, strict=True))


def _place(number: int) -> str:
    return f"row {number}" if number else "first line"


def _json_lines(path: Path) -> Iterator[Row]:
    for number, line in enumerate(read_lines(path), 1):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
            if "\\ud" in line.lower():  # perhaps half of a pair: no text, and no UTF-8
                json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where} holds half of a surrogate pair (\\ud800 to \\udfff), which is no character") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is not JSON: {error}; one object a line was expected") from None
        if not isinstance(row, dict):
            raise ValueError(f"{where} holds {type(row).__name__}, where an object was expected, one a line")
        yield where, row


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    with readable(path):
        file = path.open("rb")
    number = 0
    try:
        with file, pyarrow.parquet.ParquetFile(file) as table:
            for batch in table.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        place = f"row {number + 1} or later" if number else "from its start"
        raise ValueError(f"{path} is not readable as Parquet, {place}: {first_line(error)}") from None


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _csv, ".tsv": _tsv, ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_lines, ".parquet": _parquet,
}  # fmt: skip
