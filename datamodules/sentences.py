"""Labelled sentences and pairs of sentences."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datamodules.classes import Labels, Row
from datamodules.encoded import SpecialIds, one_line
from datamodules.labelled import LabelledDataModule
from datamodules.sequences import Layout
from datamodules.sources.base import SentenceSource
from datamodules.tokenizers.base import Tokenizer


class SentenceDataModule(LabelledDataModule):
    """Classes of sentences, [CLS] A [SEP], or of pairs, [CLS] A [SEP] B [SEP]. Batches are `SequenceBatch`.

    What does not fit into max_seq_len is cut off at the end, of a pair from the longer one, and counted.

    Args:
        source: where the sentences come from.
        tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir: see
            EncodedDataModule.

    Raises:
        ValueError: a label in validation or test that is none of train's (with the row), or a single class.
    """

    cut_means = "cut off at the end"

    def __init__(
        self, source: SentenceSource, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128,
        init_from: str | None = None, micro_batch_size: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0, seed: int = 0, cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir
        )
        self.source = source

    def _texts(self, row: Row) -> Iterable[str]:
        return [one_line(row[name]) for name in ("text", "text_pair") if row.get(name) is not None]

    def _lay_out(self, rows: Iterable[Row], tokenizer: Tokenizer, special: SpecialIds, labels: Labels) -> Layout:
        layout = Layout()
        for number, row in enumerate(rows):
            parts = tokenizer.encode_batch(list(self._texts(row)))
            kept = cut_to(parts, self.max_seq_len - 1 - len(parts))
            layout.num_cut += kept != parts
            ids = [special.cls] + [i for part in kept for i in (*part, special.sep)]
            layout.add(ids, 2 + len(kept[0]), [labels(row["label"], row, number)], [], (number, 0))
        return layout

    def readable(self, split: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A table of predictions: index, input (of a pair also input_pair), prediction, probability, and label if known."""
        rows = self.source.load()[split]
        index = list(columns["index"])
        names = {"input": "text", "input_pair": "text_pair"}
        inputs = {shown: rows[name] for shown, name in names.items() if name in rows.column_names}
        return {"index": index, **{shown: [text[i] for i in index] for shown, text in inputs.items()}, **self.named(columns)}


def cut_to(parts: list[list[int]], budget: int) -> list[list[int]]:
    """The parts, together `budget` ids at most, cut at the end of the longer of them."""
    if sum(map(len, parts)) <= budget:
        return parts
    if len(parts) == 1:
        return [parts[0][:budget]]
    first, second = map(len, parts)
    shorter = min(first, second, budget // 2)
    first, second = (budget - shorter, shorter) if first > second else (shorter, budget - shorter)
    return [parts[0][:first], parts[1][:second]]
