"""Images and captions of a source on disk: decoded and counted once, read ever after."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from datamodules.encoded import one_line, starts_of
from datamodules.image_cache import Size, write_decoded
from datamodules.sources.base import ImageTextSource
from datamodules.token_cache import read_meta, write_meta
from datamodules.tokenizers.base import Tokenizer

FORMAT = 1  # raise it with every change of the files
MANY = 5000  # images whose decoding is announced


def fill(folder: Path, source: ImageTextSource, tokenizer: Tokenizer, size: Size, memory_limit_gb: float) -> None:
    """tokenizer.json, for each split its captions and, where they fit into memory_limit_gb, its images, last meta.json.

    Raises:
        ValueError: a split is empty, an image is broken, or what source and tokenizer say.
    """
    splits = source.load()
    for split, rows in splits.items():
        if not len(rows):
            raise ValueError(f"{source.describe()}: the {split} split is empty")
    if not tokenizer.is_trained and "train" not in splits:
        raise ValueError(f"{source.describe()} has no train split, which the tokenizer would be trained on")
    folder.mkdir()
    tokenizer = Tokenizer.from_json(tokenizer.to_json())
    training = [caption for captions in (splits["train"]["captions"] if "train" in splits else ()) for caption in captions]
    tokenizer.train(map(one_line, training))
    tokenizer.save(folder / "tokenizer.json")
    decoded = sum(map(len, splits.values())) * size[0] * size[1] * 3 <= memory_limit_gb * 1e9
    known = set(training)
    groups = list(dict.fromkeys(group for rows in splits.values() for group in rows["group"]))
    for split, rows in splits.items():
        if decoded:
            if len(rows) > MANY:
                rank_zero_only(print)(f"{split}: {len(rows):,} images are decoded, once")
            write_decoded(folder / f"{split}.npy", rows, size)
            pixels = np.load(folder / f"{split}.npy", mmap_mode="r")
            image_numbers = numbered(sha256(image.tobytes()).digest() for image in pixels)
        else:
            image_numbers = numbered(_file(row["image"]) for row in rows)
        arrays = captions_of(rows["captions"], known, tokenizer)
        arrays["groups"] = np.array([groups.index(group) for group in rows["group"]], dtype=np.int64)
        np.savez(folder / f"{split}.captions.npz", allow_pickle=False, **arrays, image_numbers=image_numbers)
    write_meta(folder, decoded=decoded, splits=list(splits), groups=groups)


def read(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    meta = read_meta(folder)
    return None if meta is None else (folder, meta)


def numbered(things: Iterable[Any]) -> np.ndarray:
    """(n,) int64: equal things have equal numbers, from 0 in the order in which they come first."""
    known: dict[Any, int] = {}
    return np.array([known.setdefault(thing, len(known)) for thing in things], dtype=np.int64)


def _file(image: dict[str, Any]) -> bytes | str:
    """What tells an image file from others without decoding it: its bytes, or where there are none its path."""
    return image["path"] if image["bytes"] is None else sha256(image["bytes"]).digest()


def captions_of(rows: Iterable[list[str]], known: set[str], tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """The captions of a split as `ImageTextPairs.arrays` has them; in one piece, since lists of strings grow in workers."""
    captions: dict[str, int] = {}
    owner: list[int] = []
    own: list[list[int]] = []
    for i, row in enumerate(rows):
        numbers = []
        for caption in dict.fromkeys(row):
            if caption not in captions:
                captions[caption] = len(captions)
                owner.append(i)
            numbers.append(captions[caption])
        own.append(numbers)
    encoded = [caption.encode() for caption in captions]
    return {
        "first": starts_of(map(len, own)),
        "own": np.array([number for numbers in own for number in numbers], dtype=np.int64),
        "owner": np.array(owner, dtype=np.int64),
        "is_class": np.array([caption in known for caption in captions]),
        "lengths": np.array(list(map(len, tokenizer.encode_batch([one_line(c) for c in captions]))), dtype=np.int64),
        "text": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "text_starts": starts_of(map(len, encoded)),
    }
