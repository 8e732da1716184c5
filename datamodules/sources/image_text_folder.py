"""Your own image files, each with a text file of captions beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageTextSource, digest
from datamodules.sources.files import read
from datamodules.sources.image_base import file_states, image_files
from datamodules.sources.image_folder import Folders, below, refuse_nested
from datamodules.sources.image_text_base import READING, Captioned, captions_in, to_image_text_splits, with_captions

if TYPE_CHECKING:
    import datasets


@final
class ImageTextFolder(Folders, ImageTextSource):
    """Images at any depth in a folder; beside `a.jpg`, `a.txt` holds its captions, one a line.

    Columns `image` and `row` (path), `captions`, `group` (""). Blank lines are skipped, and so is whatever has a name that
    begins with a dot.

    Args:
        train: the folder.
        validation: likewise; without it val_fraction of the training images, chosen by their digest.
        test: likewise.
        val_fraction: share of the training images.
    """

    def files(self) -> dict[str, list[tuple[str, str]]]:
        """(image, text) of each split, sorted.

        Raises:
            FileNotFoundError: a folder does not exist, or holds no image.
            ValueError: a folder lies within another, an image has no text beside it, or a text no image.
        """
        refuse_nested(self.folders)
        return {split: _pairs(folder) for split, folder in self.folders.items()}

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError, ValueError: see `files`; or a text is empty or not UTF-8.
        """
        splits = {}
        for split, pairs in self.files().items():
            rows = []
            for image, text in pairs:
                lines = [line for line in read(Path(text)).split("\n") if line.strip()]
                rows.append(Captioned(captions_in(text, {"text": lines}, ["text"]), "", image))
            splits[split] = with_captions(image_files([image for image, _ in pairs]), rows)
        return to_image_text_splits(splits, self.val_fraction)

    def fingerprint(self) -> str:
        files = self.files()
        states = {s: file_states([path for pair in pairs for path in pair], self.folders[s]) for s, pairs in files.items()}
        return digest("image text folder", READING, None if "validation" in files else self.val_fraction, states)


def _pairs(folder: str) -> list[tuple[str, str]]:
    images, others = below(folder)
    texts = {str(Path(path).with_suffix("")): path for path in others if path.lower().endswith(".txt")}
    stems = {str(Path(image).with_suffix("")) for image in images}
    if lonely := next((path for stem, path in sorted(texts.items()) if stem not in stems), None):
        raise ValueError(f"{lonely} has captions, but there is no image of that name beside it")
    pairs = []
    for image in images:
        text = texts.get(str(Path(image).with_suffix("")))
        if text is None:
            raise ValueError(f"{image} has no captions: {Path(image).with_suffix('.txt').name} was expected beside it")
        pairs.append((image, text))
    return pairs
