"""Images with captions in .tar shards, as WebDataset writes them."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from datamodules.image_decoding import in_archive
from datamodules.sources.base import ImageTextSource, check_fraction, digest, readable
from datamodules.sources.files import find_files, refuse_shared
from datamodules.sources.image_base import file_states
from datamodules.sources.image_folder import SUFFIXES
from datamodules.sources.image_text_base import READING, captions_in, to_image_text_splits

if TYPE_CHECKING:
    import datasets


@final
class WebDataset(ImageTextSource):
    """Shards whose members `key.jpg` and `key.txt` (or `key.json`) belong together, in any order within a shard.

    Columns `image` (where it lies in the shard), `captions`, `group` (""), `row` ("shard.tar, key"). Images stay where they
    are; an index of the shards is made once and kept in the cache of `datasets`.

    Args:
        train: a shard, a list of shards or a glob; not compressed.
        validation: likewise; without it val_fraction of the training images, chosen by their digest.
        test: likewise.
        captions: txt for key.txt with one caption a line, or json.FIELD for a field of key.json, a text or a list of texts.
        val_fraction: share of the training images.
    """

    def __init__(
        self, train: str | list[str], validation: str | list[str] | None = None, test: str | list[str] | None = None,
        captions: str = "txt", val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        check_fraction("val_fraction", val_fraction)
        if captions != "txt" and (not captions.startswith("json.") or captions == "json."):
            raise ValueError(f"captions {captions!r} is neither txt nor json.FIELD")
        given = {"train": train, "validation": validation, "test": test}
        self.paths = {split: [p] if isinstance(p, str) else list(p) for split, p in given.items() if p is not None}
        self.captions, self.val_fraction = captions, val_fraction

    def files(self) -> dict[str, list[Path]]:
        """The shards of each split; raises FileNotFoundError where there is none, ValueError for one in two splits."""
        files = {split: find_files(names) for split, names in self.paths.items()}
        refuse_shared(files)
        return files

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: a shard is not there.
            ValueError: a shard is broken, or a key has no image or no caption.
        """
        import datasets
        from datasets.exceptions import DatasetGenerationError

        features = datasets.Features({
            "image": datasets.Image(decode=False), "captions": datasets.List(datasets.Value("string")),
            "group": datasets.Value("string"), "row": datasets.Value("string"),
        })  # fmt: skip
        splits = {}
        for split, shards in self.files().items():
            names = [str(shard) for shard in shards]
            given = {"shards": names, "states": file_states(names), "captions": self.captions, "reading": READING}
            try:
                splits[split] = datasets.Dataset.from_generator(index, features=features, gen_kwargs=given)
            except DatasetGenerationError as error:
                raise (error.__cause__ if isinstance(error.__cause__, ValueError) else error) from None
        return to_image_text_splits(splits, self.val_fraction)

    def fingerprint(self) -> str:
        states = {split: file_states(map(str, shards)) for split, shards in self.files().items()}
        return digest("webdataset", READING, self.captions, None if "validation" in states else self.val_fraction, states)

    def describe(self) -> str:
        names = [name for names in self.paths.values() for name in names]
        return "the shards " + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def index(shards: list[str], states: Any, captions: str, reading: int) -> Iterator[dict[str, Any]]:
    """The examples of shards; `states` and `reading` are there because `datasets` keeps the result by its arguments."""
    kind, _, field = captions.partition(".")
    for shard in shards:
        for key, parts in sorted(_members(shard).items()):
            where = f"{shard}, {key}"
            image = next((parts[suffix] for suffix in SUFFIXES if suffix in parts), None)
            if image is None:
                raise ValueError(f"{where} has no image: members {key} with one of {', '.join(SUFFIXES)} were expected")
            if f".{kind}" not in parts:
                raise ValueError(f"{where} has no caption: a member {key}.{kind} was expected")
            path = in_archive(shard, *image)
            text = _text(shard, *parts[f".{kind}"], where)
            cell = [line for line in text.split("\n") if line.strip()] if kind == "txt" else _field(text, field, where)
            found = captions_in(where, {captions: cell}, [captions])
            yield {"image": {"bytes": None, "path": path}, "captions": found, "group": "", "row": where}


def _members(shard: str) -> dict[str, dict[str, tuple[int, int]]]:
    """key -> suffix -> offset and size of each file in a shard; a key is what stands before the first dot of a name."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    with readable(Path(shard)):
        file = open(shard, "rb")  # noqa: SIM115 - closed below
    with file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    if member.isfile():
                        folder, _, name = member.name.rpartition("/")
                        stem, _, suffix = name.partition(".")
                        key = f"{folder}/{stem}" if folder else stem
                        found.setdefault(key, {})[f".{suffix.lower()}"] = member.offset_data, member.size
                end = archive.offset
        except tarfile.TarError as error:
            raise ValueError(f"{shard} is no .tar archive, or a broken one: {error}") from None
        if not found:
            raise ValueError(f"{shard} has no members: images and captions were expected")
        size = file.seek(0, 2)
    if size < max(sum(place) for parts in found.values() for place in parts.values()) or size < end:
        raise ValueError(f"{shard} is cut off: it has {size} bytes, and its members need {end}")
    return found


def _text(shard: str, offset: int, size: int, where: str) -> str:
    with open(shard, "rb") as file:
        file.seek(offset)
        content = file.read(size)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{where}: the caption is not UTF-8") from None


def _field(text: str, field: str, where: str) -> Any:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{where}: the .json is no JSON: {error}") from None
    if not isinstance(content, dict) or field not in content:
        raise ValueError(f"{where}: the .json has no field {field!r}")
    return content[field]
