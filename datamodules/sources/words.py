"""Labelled words in your own files: one word a line, or lists in JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import final

from datamodules.sources.base import WordSource
from datamodules.sources.labelled_files import LabelledFiles, Paths
from datamodules.sources.labels import Row, tagged
from datamodules.sources.tables import read_lines, rows_with

LINES = (".txt", ".conll", ".bio", ".iob", ".iob2")
LISTS = (".jsonl", ".ndjson", ".json", ".parquet")


@final
class WordFiles(LabelledFiles, WordSource):
    """Sentences as words and a label for each; columns `words`, `labels`, `row`, where `row` says where a sentence begins.

    Sentences of train and validation are labelled, those of test all or none of them.

    Args:
        train: a file, a list of files or a glob. .txt, .conll, .bio, .iob and .iob2 hold a word a line as in `read_words`;
            .jsonl, .ndjson, .json (an object a line) and .parquet two columns of lists.
        validation: likewise; without it val_fraction of the training sentences, chosen by their digest.
        test: likewise.
        words: the column of the words, where there are columns of lists.
        labels: the column of their labels; null for words without labels, which only `test` can be.
        val_fraction: share of the training sentences.
    """

    example = staticmethod(tagged)

    def __init__(
        self, train: str | list[str] | None = None, validation: str | list[str] | None = None,
        test: str | list[str] | None = None, words: str = "words", labels: str | None = "labels", val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        paths: dict[str, Paths] = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, {"words": words, "labels": labels}, "labels", val_fraction)

    def rows(self, path: Path) -> Iterable[Row]:
        suffix = path.suffix.lower()
        if suffix in LISTS:
            return rows_with(path, self.columns.values())
        if suffix in LINES:
            return self._lines(path)
        raise ValueError(f"{path} has the suffix {suffix!r}: a file of words ends in {', '.join(LINES + LISTS)}")

    def _lines(self, path: Path) -> Iterator[Row]:
        words, labels = str(self.columns["words"]), self.columns["labels"]
        for where, first, last in read_words(path, labelled=labels is not None):
            yield where, {words: first} if labels is None else {words: first, labels: last}


def read_words(path: Path, labelled: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each sentence of a file with a word a line: where it begins ("train.txt, line 120"), its words, its labels.

    Columns are parted by spaces or tabs: the first is the word, the last the label. A blank line ends a sentence; lines that
    begin with -DOCSTART- do too, and are not part of one. There are no comments.

    Raises:
        ValueError: the file is empty, or not UTF-8, or holds no sentence; or a line has another number of columns than the
            first, or the file one column only, where labels were expected.
    """
    words: list[str] = []
    labels: list[str] = []
    start, width, first = 0, 0, 0
    for number, line in enumerate([*read_lines(path), ""], 1):
        cells = [cell for cell in line.replace("\t", " ").split(" ") if cell]  # other white space may be part of a word
        if not cells or cells[0] == "-DOCSTART-":
            if words:
                yield f"{path}, line {start}", words, labels
            words, labels = [], []
            continue
        if not width:
            width, first = len(cells), number
            if labelled and width == 1:
                raise ValueError(f"{path}, line {number} has one column: a word and, last, its label were expected")
        if len(cells) != width:
            raise ValueError(f"{path}, line {number} has {len(cells)} columns, but line {first} has {width}")
        if not words:
            start = number
        words.append(cells[0])
        labels.append(cells[-1])
    if not width:
        raise ValueError(f"{path} holds no sentence: a word and its label a line were expected, a blank line after a sentence")
