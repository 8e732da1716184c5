"""Prompts and responses as token ids: encoded once, kept on disk. What the data of SFT, reward models and PPO share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from datamodules.base import BaseDataModule, checkpoint_assets, chosen_split
from datamodules.order import BatchDataset
from datamodules.sentence_cache import IdFile, cache_key, write_ids
from datamodules.sources.base import Source
from datamodules.token_cache import prepared, read_meta, write_meta
from datamodules.tokenizers.base import Tokenizer, load_tokenizer

FORMAT = 1  # raise it with every change of the files
D = TypeVar("D", bound=BatchDataset)


@dataclass(frozen=True)
class Column:
    """The ids of one column of a split; row i stands from starts[i] to starts[i + 1]."""

    file: IdFile
    starts: np.ndarray  # (N + 1,)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def row(self, index: int) -> np.ndarray:
        return self.file.ids[self.starts[index] : self.starts[index + 1]]


class ExchangeDataModule(BaseDataModule, Generic[D]):
    """Columns of text, each encoded by itself: a prompt has the same ids whatever is answered.

    Args:
        source: where the rows come from.
        tokenizer: with [PAD] and [EOS]; trained on the train split if it is not yet. Not looked at with init_from.
        max_seq_len: tokens of prompt and response at most, [EOS] included; the runner links it to the network's.
        init_from: checkpoint whose tokenizer is used; set by the runner.
        cache_dir: where tokenizer and ids are kept. Default: `$XDG_CACHE_HOME/lit-pipeline`.

    Raises:
        ValueError: the tokenizer lacks a special token, max_seq_len is below 2, or no row of a split fits.
    """

    columns: ClassVar[tuple[str, ...]]

    def __init__(
        self, source: Source, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128, init_from: str | None = None,
        micro_batch_size: int | None = None, eval_batch_size: int | None = None, num_workers: int = 0, seed: int = 0,
        cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size, micro_batch_size, eval_batch_size, num_workers, seed)
        if max_seq_len < 2:
            raise ValueError(f"max_seq_len is {max_seq_len}; a prompt and a response need at least 2")
        self.source, self.max_seq_len, self.init_from, self.cache_dir = source, max_seq_len, init_from, cache_dir
        self._given_tokenizer = tokenizer

    @cached_property
    def _prepared(self) -> tuple[Tokenizer, dict[str, D]]:
        start = first_tokenizer(self._given_tokenizer, self.init_from)
        key = cache_key((FORMAT, self.columns), self.source, start)
        folder, meta = prepared("exchanges", key, self.cache_dir, lambda path: self._fill(path, start), _read)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        datasets = {}
        for split in meta["splits"]:
            with np.load(folder / f"{split}.npz") as arrays:
                columns = {name: Column(IdFile(folder / f"{split}.{name}.npy"), arrays[name]) for name in self.columns}
            datasets[split] = self.split(split, tokenizer, columns)
            if not len(datasets[split]):
                raise ValueError(
                    f"{self.source.describe()}: no row of the {split} split fits into max_seq_len {self.max_seq_len}"
                )
        return tokenizer, datasets

    def _fill(self, folder: Path, tokenizer: Tokenizer) -> None:
        splits = self.source.load()
        tokenizer = Tokenizer.from_json(tokenizer.to_json())
        if not tokenizer.is_trained:
            if "train" not in splits:
                raise ValueError(f"{self.source.describe()} has no train split, and the tokenizer is not trained")
            tokenizer.train("".join(row[name] for name in self.columns) for row in splits["train"])
        folder.mkdir()
        for split, rows in splits.items():
            if not len(rows):
                raise ValueError(f"{self.source.describe()}: the {split} split is empty")
            starts = {}
            for name in self.columns:
                encoded = tokenizer.encode_batch(list(rows[name]))
                if "" in rows[name] or [] in encoded:
                    place = rows["row"][encoded.index([])]
                    raise ValueError(f"{place}: the {name} is empty")
                starts[name] = write_ids(folder / f"{split}.{name}.npy", encoded, tokenizer.vocab_size)
            np.savez(folder / f"{split}.npz", allow_pickle=False, **starts)
        tokenizer.save(folder / "tokenizer.json")
        write_meta(folder, splits=list(splits))

    def split(self, split: str, tokenizer: Tokenizer, columns: dict[str, Column]) -> D:
        """The dataset of a split."""
        raise NotImplementedError

    def say_left_out(self, split: str, what: str, count: int) -> None:
        if count:
            rank_zero_only(print)(f"{split}: {count:,} {what}")

    def prepare(self) -> None:
        self._prepared  # noqa: B018

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prepared[0]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    def dataset(self, split: str) -> D:
        return chosen_split(self.source, self._prepared[1], split)

    def assets(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.to_json()}


def first_tokenizer(given: Tokenizer, init_from: str | None) -> Tokenizer:
    """The checkpoint's, where there is one, else the given one; refused as in `refuse_unfit`."""
    tokenizer = load_tokenizer(checkpoint_assets(init_from, "tokenizer")["tokenizer"]) if init_from else given
    refuse_unfit(tokenizer)
    return tokenizer


def refuse_unfit(tokenizer: Tokenizer) -> None:
    """Raises ValueError where a tokenizer has no [PAD] or no [EOS], or will have none when it is trained."""
    if tokenizer.is_trained:
        missing = [name for name, i in (("[PAD]", tokenizer.pad_id), ("[EOS]", tokenizer.eos_id)) if i is None]
    else:
        missing = [name for name in ("[PAD]", "[EOS]") if name not in tokenizer.special_tokens]
    if missing:
        raise ValueError(f"the tokenizer lacks {' '.join(missing)}: give it the special_tokens [[PAD], [EOS]]")


def padded(rows: Sequence[np.ndarray], pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, T) int64, T that of the longest, and the lengths (n,)."""
    lengths = np.array(list(map(len, rows)), dtype=np.int64)
    ids = np.full((len(rows), int(lengths.max())), pad_id, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids, lengths


def _read(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    meta = read_meta(folder)
    return None if meta is None else (folder, meta)
