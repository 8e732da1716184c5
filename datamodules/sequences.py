"""Labelled sequences of token ids: laid out once, kept on disk, read as padded batches."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from datamodules.batch import IGNORE_INDEX, SequenceBatch
from datamodules.encoded import starts_of
from datamodules.files import write_atomic
from datamodules.order import Key
from datamodules.sentence_cache import IdFile, write_ids


@dataclass
class Layout:
    """The sequences of a split, one after the other.

    Attributes:
        ids: of each sequence, with [CLS] and [SEP].
        borders: where segment 1 begins in each.
        labels: each sequence's class, or its words' classes; IGNORE_INDEX where there is none.
        places: where in it the words' first tokens stand; empty where the sequence has the class.
        origin: the row that each sequence is from and, for words, the number of its first word there.
        num_cut: rows that did not fit.
    """

    ids: list[list[int]] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    origin: list[tuple[int, int]] = field(default_factory=list)
    num_cut: int = 0

    def add(self, ids: list[int], border: int, labels: list[int], places: list[int], origin: tuple[int, int]) -> None:
        self.ids.append(ids)
        self.borders.append(border)
        self.labels.append(labels)
        self.places.append(places)
        self.origin.append(origin)

    def save(self, folder: Path, split: str, vocab_size: int) -> None:
        """Writes the files that LabelledSequences reads."""
        arrays = {
            "starts": write_ids(folder / f"{split}.npy", self.ids, vocab_size),
            "borders": np.array(self.borders, dtype=np.int64),
            "labels": np.array([label for row in self.labels for label in row], dtype=np.int64),
            "label_starts": starts_of(map(len, self.labels)),
            "places": np.array([place for row in self.places for place in row], dtype=np.int64),
            "origin": np.array(self.origin, dtype=np.int64).reshape(-1, 2),
        }
        write_atomic(folder / f"{split}.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


class LabelledSequences:
    """Padded batches of sequences with a class each, or with a class for each word; see Layout."""

    def __init__(self, folder: Path, split: str, pad_id: int, per_word: bool) -> None:
        self.pad_id, self.per_word = pad_id, per_word
        self.file = IdFile(folder / f"{split}.npy")
        arrays = np.load(folder / f"{split}.npz")
        self.starts, self.borders, self.origin = arrays["starts"], arrays["borders"], arrays["origin"]
        self.labels, self.label_starts, self.places = arrays["labels"], arrays["label_starts"], arrays["places"]

    def __len__(self) -> int:
        return len(self.borders)

    def lengths(self, epoch: int) -> np.ndarray:
        """(N,) tokens of each sample, special ones included."""
        return np.diff(self.starts)

    def __getitem__(self, key: Key) -> SequenceBatch:
        _, indices, *_ = key
        start, length = self.starts[indices], np.diff(self.starts)[indices]
        column = np.arange(length.max())
        inside = column < length[:, None]
        ids = np.full(inside.shape, self.pad_id, dtype=np.int64)
        ids[inside] = self.file.ids[(start[:, None] + column)[inside]]
        segments = (inside & (column >= self.borders[indices, None])).astype(np.int64)
        batch: SequenceBatch = {
            "input_ids": torch.from_numpy(ids),
            "segment_ids": torch.from_numpy(segments),
            "attention_mask": torch.from_numpy(inside),
            "labels": torch.from_numpy(self.labels[self.label_starts[indices]]),
            "num_tokens": int(length.sum()),
            "index": torch.from_numpy(indices),
        }
        if self.per_word:
            first, number = self.label_starts[indices], np.diff(self.label_starts)[indices]
            row = np.repeat(np.arange(len(indices)), number)
            word = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number) + first[row]
            labels, starts = np.full(inside.shape, IGNORE_INDEX), np.zeros(inside.shape, dtype=bool)
            labels[row, self.places[word]], starts[row, self.places[word]] = self.labels[word], True
            batch["labels"], batch["word_starts"] = torch.from_numpy(labels), torch.from_numpy(starts)
        return batch
