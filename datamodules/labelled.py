"""What fine-tuning on sentences and on words shares: classes, sequences kept on disk, tables of predictions."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from datamodules.base import chosen_split
from datamodules.classes import Labels, Row, choose_classes, named
from datamodules.encoded import EncodedDataModule, SpecialIds
from datamodules.sentence_cache import cache_key
from datamodules.sequences import LabelledSequences, Layout
from datamodules.sources.base import SentenceSource, WordSource
from datamodules.token_cache import prepared, read_meta, write_meta
from datamodules.tokenizers.base import Tokenizer

FORMAT = 1  # raise it with every change of the files or of the layout


class LabelledDataModule(EncodedDataModule):
    """Sequences whose classes are the source's own or, where it has none and no train split, those of a trained model."""

    source: SentenceSource | WordSource
    per_word = False
    cut_means = ""
    """What happens to a row that does not fit into max_seq_len."""

    @abstractmethod
    def _texts(self, row: Row) -> Iterable[str]:
        """What a tokenizer is trained on."""

    @abstractmethod
    def _lay_out(self, rows: Iterable[Row], tokenizer: Tokenizer, special: SpecialIds, labels: Labels) -> Layout:
        """The sequences of a split."""

    @cached_property
    def _prepared(self) -> tuple[Tokenizer, list[str], dict[str, LabelledSequences]]:
        known = self._pretrained.get("classes")
        key = cache_key((FORMAT, type(self).__name__, self.max_seq_len, known), self.source, self._tokenizer)
        kind = type(self).__name__
        folder, meta = prepared(kind, key, self.cache_dir, lambda path: self._fill(path, known), _complete)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        for split, num_cut in meta["cut"].items():
            if num_cut:
                what = f"{num_cut} rows of more than max_seq_len {self.max_seq_len} tokens"
                rank_zero_only(print)(f"{self.source.describe()}: {split}: {what} are {self.cut_means}")
        pad_id = SpecialIds.of(tokenizer).pad
        datasets = {split: LabelledSequences(folder, split, pad_id, self.per_word) for split in meta["cut"]}
        return tokenizer, meta["classes"], datasets

    def _fill(self, folder: Path, known: list[str] | None) -> None:
        splits = self.source.load()
        tokenizer = Tokenizer.from_json(self._tokenizer.to_json())
        column = "labels" if self.per_word else "label"
        names = (
            {name for row in splits["train"] for name in (row[column] if self.per_word else [row[column]])}
            if "train" in splits
            else None
        )
        labels = Labels(choose_classes(self.source, names, known))
        if not tokenizer.is_trained:
            if "train" not in splits:
                raise ValueError(f"{self.source.describe()} has no train split, and the tokenizer is not trained")
            tokenizer.train(text for row in splits["train"] for text in self._texts(row))
        special = SpecialIds.of(tokenizer)
        folder.mkdir()
        cut = {}
        for split, rows in splits.items():
            labels.split = split
            layout = self._lay_out(rows, tokenizer, special, labels)
            if not layout.ids:
                raise ValueError(f"{self.source.describe()}: the {split} split is empty")
            layout.save(folder, split, tokenizer.vocab_size)
            cut[split] = layout.num_cut
        tokenizer.save(folder / "tokenizer.json")
        write_meta(folder, classes=labels.classes, cut=cut)

    def prepare(self) -> None:
        self._prepared  # noqa: B018

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prepared[0]

    @property
    def classes(self) -> list[str]:
        return self._prepared[1]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def dataset(self, split: str) -> LabelledSequences:
        return chosen_split(self.source, self._prepared[2], split)

    def assets(self) -> dict[str, Any]:
        return {**super().assets(), "classes": self.classes}

    def named(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """The columns prediction, probability and, where labels are known, label of a table, with classes by name."""
        return named(columns, self.classes)


def _complete(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    meta = read_meta(folder)
    return None if meta is None else (folder, meta)
