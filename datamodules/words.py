"""Labelled words."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from datamodules.classes import Labels, Row
from datamodules.encoded import SpecialIds, one_line
from datamodules.labelled import LabelledDataModule
from datamodules.sequences import Layout
from datamodules.sources.base import WordSource
from datamodules.tokenizers.base import Tokenizer


class WordDataModule(LabelledDataModule):
    """Classes of the words of a sentence, [CLS] words [SEP], each at the word's first token. Batches are `SequenceBatch`.

    A sentence that does not fit into max_seq_len becomes several, cut between words, and is counted: no label is lost. A word
    that does not fit by itself loses its end.

    Args:
        source: where the sentences come from.
        tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir: see
            EncodedDataModule.

    Raises:
        ValueError: a label in validation or test that is none of train's (with the row), or a single class.
    """

    per_word = True
    cut_means = "cut between words into several sequences"

    def __init__(
        self, source: WordSource, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128,
        init_from: str | None = None, micro_batch_size: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0, seed: int = 0, cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir
        )
        self.source = source

    def _texts(self, row: Row) -> Iterable[str]:
        return ["".join(one_line(word) for word in row["words"])]

    def _lay_out(self, rows: Iterable[Row], tokenizer: Tokenizer, special: SpecialIds, labels: Labels) -> Layout:
        layout = Layout()
        for number, row in enumerate(rows):
            words = tokenizer.encode_batch([one_line(word) for word in row["words"]])
            classes = [labels(name, row, number) for name in row["labels"]]
            pieces = list(fitting(words, self.max_seq_len - 2))
            layout.num_cut += len(pieces) > 1 or max(map(len, words)) > self.max_seq_len - 2
            for first, piece in pieces:
                ids, places = [special.cls], []
                for word in piece:
                    places.append(len(ids))
                    ids += word
                layout.add([*ids, special.sep], len(ids) + 1, classes[first : first + len(piece)], places, (number, first))
        return layout

    def readable(self, split: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A table of predictions, one row a word: index of the sentence, word (its number), input, prediction, probability, and
        label if known."""
        dataset, rows = self.dataset(split), self.source.load()[split]
        sentences: list[list[str]] = rows["words"]
        table: dict[str, list[Any]] = {"index": [], "word": [], "input": []}
        before, number = -1, 0
        for sample in columns["index"]:
            number = number + 1 if sample == before else 0
            before = sample
            row, first = dataset.origin[sample].tolist()
            for name, value in {"index": row, "word": first + number, "input": sentences[row][first + number]}.items():
                table[name].append(value)
        return {**table, **self.named(columns)}


def fitting(words: list[list[int]], budget: int) -> Iterator[tuple[int, list[list[int]]]]:
    """Runs of words that have `budget` ids at most, each with the number of its first word; a longer word is cut off."""
    piece: list[list[int]] = []
    first = size = 0
    for number, word in enumerate(words):
        word = word[:budget]
        if size + len(word) > budget:
            yield first, piece
            first, piece, size = number, [], 0
        piece.append(word)
        size += len(word)
    yield first, piece
