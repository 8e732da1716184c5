"""What the sources of labelled images share: encoded images in Arrow, labels as names, splits, the state of files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from datamodules.sources.hub_labels import class_names
from datamodules.sources.labels import Example, check_columns, check_labelled, cut_validation, sentence

if TYPE_CHECKING:
    import datasets
    from PIL.Image import Image

LABEL_ONLY = {"text": None, "text_pair": None, "label": "label"}


class ImageRows(NamedTuple):
    """A split: the encoded images (column `image`) and, for each, `label` and `row`."""

    images: datasets.Dataset
    examples: list[Example]


def labelled(where: str, label: object, names: Sequence[str] | None = None) -> Example:
    """`label` and `row` of one image; `names` are the classes by number, where labels are numbers.

    Raises:
        ValueError: the label is no class.
    """
    return sentence(where, {"label": label}, LABEL_ONLY, names)


def to_image_splits(splits: Mapping[str, ImageRows], val_fraction: float) -> datasets.DatasetDict:
    """Checks the labels, cuts validation rows where there are none, and puts the columns together; no image is copied.

    Which rows are cut depends on the digest of their number and label. A row that is the last of its class stays in training.

    Raises:
        ValueError: a split is empty, its labels are incomplete, or validation rows cannot be cut.
    """
    import datasets

    made = {}
    for split, (images, examples) in splits.items():
        if not examples:
            raise ValueError(f"the {split} split has no images")
        check_labelled(split, examples)
        for column in ("label", "row"):
            cells = [example[column] for example in examples]
            images = images.add_column(column, cells, feature=datasets.Value("string"))
        made[split] = images
    if "train" in made and "validation" not in made:
        numbered = [{"text": e["label"], "label": e["label"], "number": i} for i, e in enumerate(splits["train"].examples)]
        parts = cut_validation(numbered, val_fraction)
        made["train"], made["validation"] = (made["train"].select([e["number"] for e in part]) for part in parts)
    return datasets.DatasetDict({split: made[split] for split in ("train", "validation", "test") if split in made})


def image_rows(
    place: str, rows: datasets.Dataset, image: str, label: str, *, paths: bool
) -> tuple[ImageRows, list[str] | None]:
    """The images and labels of a table, and the names of its classes where its metadata have them.

    Args:
        place: the table, as errors and column `row` name it.
        rows: the table; `image` holds images of `datasets`, structs of bytes and path, or bytes.
        image, label: the columns.
        paths: whether an image may be a path without bytes.

    Raises:
        ValueError: a column is missing or holds something else, or a row has no image or a label that is no class.
    """
    check_columns(place, rows.column_names, (image, label))
    names = class_names(rows.features[label])
    images = encoded_column(place, rows, image, paths=paths)
    examples = [labelled(f"{place}, row {i}", cell, names) for i, cell in enumerate(rows[label][:], 1)]
    return ImageRows(images, examples), names


def encoded_column(place: str, rows: datasets.Dataset, column: str, *, paths: bool) -> datasets.Dataset:
    """Column `image` with the images of a table; arguments and errors as in `image_rows`."""
    import datasets

    feature: Any = rows.features[column]
    content = feature.get("bytes") if isinstance(feature, dict) else feature
    if not isinstance(feature, datasets.Image) and getattr(content, "dtype", None) not in ("binary", "large_binary"):
        raise ValueError(f"{place}: column {column!r} holds {feature}, where images were expected, as files' bytes")
    images = rows.select_columns([column])
    if column != "image":  # renaming a column to its own name is an error
        images = images.rename_column(column, "image")
    images = images.cast_column("image", datasets.Image(decode=False))
    if (missing := _first_missing(images, paths)) is not None:
        raise ValueError(f"{place}, row {missing + 1}: column {column!r} holds no {'image' if paths else 'bytes of an image'}")
    return images


def _first_missing(images: datasets.Dataset, paths: bool) -> int | None:
    """The number of the first row that has no bytes (nor, where it may have one, a path)."""
    import pyarrow.compute as pc

    number = 0
    for chunk in images.data.column("image").chunks:
        missing = pc.is_null(pc.struct_field(chunk, "bytes"))
        if paths:
            missing = pc.and_(missing, pc.is_null(pc.struct_field(chunk, "path")))
        if (first := pc.index(missing, True).as_py()) >= 0:
            return number + first
        number += len(chunk)
    return None


def encoded_images(images: Iterable[Image]) -> datasets.Dataset:
    """Column `image` with the images as PNG, which loses nothing."""
    return _column([_png(image) for image in images], None)


def image_files(paths: Sequence[str]) -> datasets.Dataset:
    """Column `image` with the paths of files."""
    return _column(None, paths)


def _column(contents: Sequence[bytes] | None, paths: Sequence[str] | None) -> datasets.Dataset:
    import datasets
    import pyarrow as pa

    rows = len(contents or paths or ())
    fields = [pa.nulls(rows, pa.binary()) if contents is None else pa.array(contents, pa.binary())]
    fields += [pa.nulls(rows, pa.string()) if paths is None else pa.array(paths, pa.string())]
    images = datasets.Dataset(pa.table({"image": pa.StructArray.from_arrays(fields, ["bytes", "path"])}))
    return images.cast_column("image", datasets.Image(decode=False))


def _png(image: Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def file_states(paths: Iterable[str], start: str = "") -> list[tuple[str, int, int]]:
    """Name (without the folder `start`), size and time of change of each file: a cheap sign of whether images have changed.

    Raises:
        FileNotFoundError: a file is not there.
    """
    states, prefix = [], str(Path(start).expanduser()) if start else ""
    for path in paths:
        try:
            state = os.stat(path)
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist") from None
        states.append((path.removeprefix(prefix), state.st_size, state.st_mtime_ns))
    return states
