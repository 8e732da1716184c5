"""Documents as sentences of token ids on disk: for a source and a tokenizer, made once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.encoded import one_line, starts_of
from datamodules.files import write_atomic
from datamodules.sources.base import Source, TextSource
from datamodules.text_split import split_sentences
from datamodules.token_cache import prepared, read_meta, write_meta
from datamodules.tokenizers.base import Tokenizer

FORMAT = 1  # raise it with every change of the files below, or of what a sentence is


class IdFile:
    """A flat array of ids on disk, opened where it is used: a copy sent to a loader worker carries the path alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def ids(self) -> np.ndarray:
        return np.load(self.path, mmap_mode="r")

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


@dataclass(frozen=True)
class Sentences:
    """The sentences of a split, one after the other.

    Attributes:
        file: their ids.
        starts: (S + 1,) where each sentence begins in it; last, where it ends.
        documents: (D + 1,) the number of each document's first sentence; last, S.
    """

    file: IdFile
    starts: np.ndarray
    documents: np.ndarray


def prepare(
    source: TextSource, tokenizer: Tokenizer, cache_dir: str | Path | None = None
) -> tuple[Tokenizer, dict[str, Sentences]]:
    """The trained tokenizer and the sentences of each split. Documents without a sentence are left out.

    Raises:
        FileNotFoundError, ValueError: what the source or the tokenizer says about bad text.
    """
    key = cache_key(FORMAT, source, tokenizer)
    return prepared("sentences", key, cache_dir, lambda folder: _fill(folder, source, tokenizer), _read)


def cache_key(kind: object, source: Source, tokenizer: Tokenizer) -> str:
    """Changes with everything that changes ids."""
    return sha256(f"{kind} {source.fingerprint()} {tokenizer.fingerprint()}".encode()).hexdigest()[:32]


def write_ids(path: Path, rows: Iterable[list[int]], vocab_size: int) -> np.ndarray:
    """Writes the ids of all rows as one array, uint16 or uint32; returns where each row begins (n + 1,)."""
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    arrays = [np.array(row, dtype=np.int32) for row in rows]
    flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)
    if flat.size and not 0 <= flat.min() <= flat.max() < vocab_size:
        raise ValueError(f"ids from {flat.min()} to {flat.max()} are outside the vocabulary of {vocab_size}")
    write_atomic(path, lambda file: np.save(file, flat.astype(dtype)))
    return starts_of(map(len, arrays))


def _fill(folder: Path, source: TextSource, tokenizer: Tokenizer) -> None:
    splits = source.load()
    folder.mkdir()
    tokenizer = Tokenizer.from_json(tokenizer.to_json())
    tokenizer.train(one_line(row["text"]) for row in splits["train"])
    for split, rows in splits.items():
        documents = [split_sentences(row["text"]) for row in rows]
        documents = [sentences for sentences in documents if sentences]
        starts = write_ids(folder / f"{split}.npy", _encoded(documents, tokenizer), tokenizer.vocab_size)
        write_atomic(folder / f"{split}.starts.npy", lambda file, array=starts: np.save(file, array))  # type: ignore[misc]
        firsts = starts_of(map(len, documents))
        write_atomic(folder / f"{split}.documents.npy", lambda file, array=firsts: np.save(file, array))  # type: ignore[misc]
    tokenizer.save(folder / "tokenizer.json")
    write_meta(folder, source=source.describe(), splits=list(splits))


def _encoded(documents: list[list[str]], tokenizer: Tokenizer) -> Iterator[list[int]]:
    for sentences in documents:
        yield from tokenizer.encode_batch([one_line(sentence) for sentence in sentences])


def _read(folder: Path) -> tuple[Tokenizer, dict[str, Sentences]] | None:
    if (meta := read_meta(folder)) is None:
        return None
    return Tokenizer.load(folder / "tokenizer.json"), {
        split: Sentences(
            IdFile(folder / f"{split}.npy"),
            np.load(folder / f"{split}.starts.npy"),
            np.load(folder / f"{split}.documents.npy"),
        )
        for split in meta["splits"]
    }
