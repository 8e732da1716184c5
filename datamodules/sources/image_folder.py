"""Your own image files: a folder with a sub-folder for each class, or any files without labels."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageSource, Source, check_fraction, digest
from datamodules.sources.image_base import ImageRows, file_states, image_files, labelled, to_image_splits
from datamodules.sources.labels import CHECKS, nearest

if TYPE_CHECKING:
    import datasets

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")
READING = 1  # raise it when which files are read changes


class Folders(Source):
    """A folder for each split; validation may be cut from train."""

    def __init__(
        self, train: str, validation: str | None = None, test: str | None = None, val_fraction: float = 0.1
    ) -> None:  # fmt: skip
        check_fraction("val_fraction", val_fraction)
        self.val_fraction = val_fraction
        given = {"train": train, "validation": validation, "test": test}
        self.folders = {split: folder for split, folder in given.items() if folder is not None}

    def describe(self) -> str:
        return "the images below " + " and ".join(self.folders.values())


@final
class ImageFolder(Folders, ImageSource):
    """Images in a sub-folder for each class, at any depth in it; columns `image` and `row` (path), `label` (the sub-folder).

    Files with other suffixes than .png, .jpg, .jpeg, .webp, .bmp, .gif, .tif and .tiff are left out, and so is whatever has a
    name that begins with a dot.

    Args:
        train: the folder of the classes' folders.
        validation: likewise; without it val_fraction of the training images, chosen by their digest.
        test: likewise.
        val_fraction: share of the training images.
    """

    def files(self) -> dict[str, dict[str, list[str]]]:
        """The sorted files of each class, for each split.

        Raises:
            FileNotFoundError: a folder does not exist.
            ValueError: a folder lies within another, has no sub-folder, has one without images, or a class that train lacks.
        """
        refuse_nested(self.folders)
        files = {split: _by_class(folder) for split, folder in self.folders.items()}
        for split, classes in files.items():
            if unknown := [name for name in classes if name not in files["train"]]:
                shown = ", ".join(map(repr, unknown[:5])) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
                near = nearest(unknown[0], files["train"])
                raise ValueError(f"{self.folders[split]} has {shown}, which is no class of {self.folders['train']}{near}")
        return files

    def load(self) -> datasets.DatasetDict:
        splits = {}
        for split, classes in self.files().items():
            paths = [path for files in classes.values() for path in files]
            examples = [labelled(path, name) for name, files in classes.items() for path in files]
            splits[split] = ImageRows(image_files(paths), examples)
        return to_image_splits(splits, self.val_fraction)

    def fingerprint(self) -> str:
        files = self.files()
        states = {s: [file_states(f, self.folders[s]) for f in classes.values()] for s, classes in files.items()}
        return digest("image folder", READING, CHECKS, None if "validation" in files else self.val_fraction, states)


@final
class ImageFiles(ImageSource):
    """Images without labels, as split `test`; columns `image` (path), `label` (None), `row` (path), sorted by path.

    Args:
        paths: files, folders (the images at any depth in them, as in `ImageFolder`) or globs such as `photos/**/*.jpg`.
    """

    def __init__(self, paths: str | list[str]) -> None:
        self.paths = [paths] if isinstance(paths, str) else list(paths)
        if not self.paths:
            raise ValueError("paths is empty: an image, a folder of images or a glob was expected")

    def files(self) -> list[str]:
        """Sorted, each once.

        Raises:
            FileNotFoundError: a path does not exist, or a folder or glob holds no image.
        """
        return sorted({os.path.realpath(path): path for name in self.paths for path in _named(name)}.values())

    def load(self) -> datasets.DatasetDict:
        files = self.files()
        return to_image_splits(
            {"test": ImageRows(image_files(files), [labelled(path, None) for path in files])}, val_fraction=0
        )

    def fingerprint(self) -> str:
        return digest("image files", READING, file_states(self.files()))

    def describe(self) -> str:
        return "the images " + ", ".join(self.paths[:3]) + (f" and {len(self.paths) - 3} more" if len(self.paths) > 3 else "")


def refuse_nested(given: Mapping[str, str]) -> None:
    """Raises ValueError where the folder of one split lies within that of another."""
    folders = [(split, Path(folder).expanduser().resolve()) for split, folder in given.items()]
    for (other, outer), (split, folder) in itertools.permutations(folders, 2):
        if folder == outer or outer in folder.parents:
            raise ValueError(f"{folder} ({split}) lies within {outer} ({other}): its images would be in both splits")


def below(name: str) -> tuple[list[str], list[str]]:
    """The images at any depth in a folder, and its other files, both sorted.

    Raises:
        FileNotFoundError: there is no such folder, or it holds no image.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"{name} is no folder: a folder of images was expected")
    found = sorted(_walk(folder))
    if not (images := _images(found)):
        raise FileNotFoundError(f"the folder {name} holds no image ({_count(found)}): images end in {', '.join(SUFFIXES)}")
    return images, [file for file in found if file not in set(images)]


def _by_class(name: str) -> dict[str, list[str]]:
    folder = Path(name).expanduser()
    expected = "a folder with a sub-folder of images for each class was expected"
    if not folder.exists():
        raise FileNotFoundError(f"{name} does not exist: {expected}")
    if not folder.is_dir():
        raise ValueError(f"{name} is a file: {expected}")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise ValueError(f"{name} has no sub-folder ({_count(_walk(folder))}): {expected}")
    files = {}
    for label in classes:
        found = list(_walk(folder / label))
        files[label] = _images(found)
        if not files[label]:
            raise ValueError(f"{folder / label} holds no image ({_count(found)}): images end in {', '.join(SUFFIXES)}")
    return files


def _named(name: str) -> Sequence[str]:
    path = Path(name).expanduser()
    if path.is_file():  # before globbing: a file's name may hold brackets
        return [str(path)]
    if path.is_dir():
        found = list(_walk(path))
        problem = f"the folder {name} holds no image"
    elif glob.has_magic(name):
        found = [file for file in glob.glob(str(path), recursive=True) if os.path.isfile(file)]
        problem = f"no image matches {name}"
    else:
        raise FileNotFoundError(f"{name} does not exist: an image, a folder of images or a glob was expected")
    if not (images := _images(found)):
        raise FileNotFoundError(f"{problem} ({_count(found)}): images end in {', '.join(SUFFIXES)}")
    return images


def _walk(folder: Path) -> Iterator[str]:
    """Every file below the folder, also through links, but for hidden ones."""
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(place, name) for name in files if not name.startswith("."))


def _images(files: Iterable[str]) -> list[str]:
    return sorted(file for file in files if file.lower().endswith(SUFFIXES))


def _count(files: Iterable[str]) -> str:
    files = list(files)
    images = len(_images(files))
    return f"{images} images and {len(files) - images} other files" if images else f"{len(files)} other files"
