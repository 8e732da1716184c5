"""Token ids on disk: made once for a text and a tokenizer, read by memory map ever after."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from filelock import FileLock

from datamodules.files import write_atomic
from datamodules.sources.base import TextSource
from datamodules.tokenizers.base import Tokenizer

T = TypeVar("T")
FORMAT = 1  # raise it with every change of the files below
BATCH = 1 << 20  # characters encoded at once


@dataclass(frozen=True)
class PreparedText:
    """A trained tokenizer and, for each split, the file of its ids (for `open_tokens`) and its size in bytes of UTF-8."""

    tokenizer: Tokenizer
    paths: dict[str, Path]
    num_bytes: dict[str, int]


def prepare(source: TextSource, tokenizer: Tokenizer, cache_dir: str | Path | None = None) -> PreparedText:
    """Train `tokenizer` on the training split if it is not trained, and encode all splits, unless the cache holds both.

    The cache's key is the digest of source, tokenizer and file format. Any number of processes may call this at once: one
    works, the others wait. A warm start reads no text. The tokenizer passed in is left as it is; use the one returned.

    Raises:
        FileNotFoundError, ValueError: what the source or the tokenizer says about bad text, with the source's name.
        OSError: the cache cannot be written.
    """
    key = sha256(f"{FORMAT} {source.fingerprint()} {tokenizer.fingerprint()}".encode()).hexdigest()[:32]
    return prepared("tokens", key, cache_dir, lambda folder: fill_folder(folder, source, tokenizer), read_folder)


def prepared(
    kind: str, key: str, cache_dir: str | Path | None, fill: Callable[[Path], None], read: Callable[[Path], T | None]
) -> T:
    """What `read` finds in the cache's folder of this kind and key, once one process has filled it; the others wait.

    Args:
        fill: makes the folder, which is put in place when it is complete.
        read: the content of a complete folder, None for any other.
    """
    root = Path(cache_dir).expanduser() if cache_dir is not None else default_cache_dir()
    folder = root / kind / key
    if (found := read(folder)) is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if (found := read(folder)) is None:  # else another process made it while this one waited
            building = folder.with_name(f"{key}.building")  # the lock makes it ours: what is there was left by a crash
            shutil.rmtree(building, ignore_errors=True)
            try:
                fill(building)
                shutil.rmtree(folder, ignore_errors=True)
                os.replace(building, folder)
            finally:
                shutil.rmtree(building, ignore_errors=True)
            found = read(folder)
    assert found is not None, folder
    return found


def default_cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lit-pipeline"


def fill_folder(folder: Path, source: TextSource, tokenizer: Tokenizer) -> None:
    """tokenizer.json, one .npy for each split, and last meta.json with the size of each."""
    splits = source.load()
    folder.mkdir()
    tokenizer = Tokenizer.from_json(tokenizer.to_json())
    split, num_bytes = "train", {}
    try:
        tokenizer.train(row["text"] for row in splits["train"])
        for split, rows in splits.items():
            num_bytes[split] = encode_split((row["text"] for row in rows), tokenizer, folder / f"{split}.npy")
    except ValueError as error:
        raise ValueError(f"{source.describe()}: {split}, {error}") from None
    tokenizer.save(folder / "tokenizer.json")
    write_meta(folder, source=source.describe(), num_bytes=num_bytes)


def read_folder(folder: Path) -> PreparedText | None:
    if (meta := read_meta(folder)) is None:
        return None
    paths = {split: folder / f"{split}.npy" for split in meta["num_bytes"]}
    return PreparedText(Tokenizer.load(folder / "tokenizer.json"), paths, meta["num_bytes"])


def write_meta(folder: Path, **content: Any) -> None:
    """meta.json, which marks a folder as complete: `content`, and the size of each file so far. Written last."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    write_atomic(folder / "meta.json", json.dumps({**content, "sizes": sizes}))


def read_meta(folder: Path) -> dict[str, Any] | None:
    """What `write_meta` wrote; None where a file is missing or not as long as it was made, or the tokenizer is damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        if any((folder / name).stat().st_size != size for name, size in meta["sizes"].items()):
            return None
        if "tokenizer.json" in meta["sizes"]:
            Tokenizer.load(folder / "tokenizer.json")
    except (OSError, ValueError, KeyError):
        return None
    return meta


def encode_split(texts: Iterable[str], tokenizer: Tokenizer, path: Path) -> int:
    """Write the ids of all documents as one array (n,) uint16, or uint32 for a vocabulary over 65,536; returns bytes of text.

    [EOS] stands between documents if the tokenizer has it; there is none at the end, where a document may have been cut.

    Raises:
        ValueError: a document cannot be encoded (with its number), or an id is not in the vocabulary.
    """
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    separator = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    num_bytes = num_tokens = 0

    def write(file: BinaryIO) -> None:
        nonlocal num_bytes, num_tokens
        write_header(file, dtype, 0)  # numpy leaves room to put the real length there
        start = file.tell()
        for batch in batches(texts, tokenizer):
            for part, ids in zip(batch, encode_parts(batch, tokenizer), strict=True):
                array = np.array(separator + ids if part.starts and part.number else ids, dtype=np.int64)
                # a plain cast would wrap silently: 65536 becomes 0
                if array.size and not 0 <= array.min() <= array.max() < tokenizer.vocab_size:
                    bad = array.min() if array.min() < 0 else array.max()
                    raise ValueError(f"document {part.number}: id {bad} is outside the vocabulary of {tokenizer.vocab_size}")
                file.write(array.astype(dtype).tobytes())
                num_bytes += len(part.piece.encode())
                num_tokens += array.size
        file.seek(0)
        write_header(file, dtype, num_tokens)
        assert file.tell() == start

    write_atomic(path, write)
    return num_bytes


def write_header(file: BinaryIO, dtype: np.dtype, length: int) -> None:
    description = np.lib.format.dtype_to_descr(dtype)
    header = {"descr": description, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)


@dataclass(frozen=True)
class Part:
    """A piece of document `number`; `starts` if it is the first one."""

    number: int
    starts: bool
    piece: str
    document: str


def batches(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[list[Part]]:
    """Consecutive pieces of at least BATCH characters together: enough for all cores, little enough for memory."""
    batch: list[Part] = []
    size = 0
    for number, text in enumerate(texts):
        for i, piece in enumerate(tokenizer.pieces(text)):
            batch.append(Part(number, i == 0, piece, text))
            size += len(piece)
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def encode_parts(batch: list[Part], tokenizer: Tokenizer) -> list[list[int]]:
    """Ids of each piece; an error says in which document, counted from 0, and where in it."""
    try:
        return tokenizer.encode_batch([part.piece for part in batch])
    except ValueError:
        for part in batch:
            try:
                tokenizer.encode(part.document)
            except ValueError as error:
                raise ValueError(f"document {part.number}: {error}") from None
        raise


def open_tokens(path: str | Path) -> np.memmap:
    """(n,) ids on disk, read only. Keep the path in a dataset, not this: a pickled memory map carries all its data."""
    return np.load(path, mmap_mode="r")
