"""What the sources of images with captions share: captions as text, one example for each image, splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import datasets

READING = 1  # raise it when captions, or the cut of validation rows, change


class Captioned(NamedTuple):
    """An image's captions, the part of the data that it belongs to, and what names it in errors."""

    captions: list[str]
    group: str
    row: str


def captions_in(where: str, row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """The captions of a row, with single blanks; a cell holds one or a list of them.

    Of several columns some may be empty.

    Raises:
        ValueError: there is no caption, one in a list is blank, or a cell holds no text.
    """
    found: list[str] = []
    for column in columns:
        value = row.get(column)
        many = isinstance(value, list)
        for caption in value if many and value is not None else [value]:
            if caption is not None and not isinstance(caption, str):
                kind = type(caption).__name__
                raise ValueError(f"{where}: column {column!r} holds {str(caption)[:40]} ({kind}), where a caption was expected")
            text = " ".join((caption or "").split())
            if text:
                found.append(text)
            elif many or len(columns) == 1:
                raise ValueError(f"{where}: column {column!r} has an empty caption: text was expected")
    if not found:
        raise ValueError(f"{where} has no caption in {', '.join(columns)}: at least one was expected")
    return list(dict.fromkeys(found))


def group_in(row: Mapping[str, Any], column: str | None) -> str:
    value = None if column is None else row.get(column)
    return "" if value is None else str(value).strip()


def one_for_each(keys: Iterable[object], rows: Iterable[Captioned]) -> tuple[list[int], list[Captioned]]:
    """Rows with equal keys are one image with all their captions: the place of the first of each, and the merged rows."""
    places: dict[object, int] = {}
    firsts: list[int] = []
    merged: list[Captioned] = []
    for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
        place = places.setdefault(key, len(merged))
        if place == len(merged):
            firsts.append(number)
            merged.append(Captioned(list(row.captions), row.group, row.row))
        else:
            merged[place].captions.extend(caption for caption in row.captions if caption not in merged[place].captions)
    return firsts, merged


def with_captions(images: datasets.Dataset, rows: Sequence[Captioned]) -> datasets.Dataset:
    """Column `image`, and beside it `captions`, `group` and `row`."""
    import datasets

    columns: dict[str, tuple[list[Any], Any]] = {
        "captions": ([row.captions for row in rows], datasets.List(datasets.Value("string"))),
        "group": ([row.group for row in rows], datasets.Value("string")),
        "row": ([row.row for row in rows], datasets.Value("string")),
    }
    for name, (cells, feature) in columns.items():
        images = images.add_column(name, cells, feature=feature)
    return images


def to_image_text_splits(splits: Mapping[str, datasets.Dataset], val_fraction: float) -> datasets.DatasetDict:
    """Cuts validation rows from train where there are none; which ones depends on the digest of `row`.

    Raises:
        ValueError: a split is empty, or there is a single row to cut from.
    """
    import datasets

    made = dict(splits)
    for split, rows in made.items():
        if not len(rows):
            raise ValueError(f"the {split} split has no images")
    if "train" in made and "validation" not in made:
        rows = made["train"]
        wanted = max(1, round(len(rows) * val_fraction))
        if wanted >= len(rows):
            raise ValueError(f"no validation rows can be cut from {len(rows)} training image(s): give a validation split")
        digests = [hashlib.sha256(row.encode("utf-8", "surrogateescape")).digest() for row in rows["row"][:]]
        held = set(sorted(range(len(rows)), key=digests.__getitem__)[:wanted])
        made["train"] = rows.select([i for i in range(len(rows)) if i not in held])
        made["validation"] = rows.select(sorted(held))
    return datasets.DatasetDict({split: made[split] for split in ("train", "validation", "test") if split in made})
