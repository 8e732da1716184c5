"""Images of a source as datasets ask for them: decoded once and kept, or decoded each time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import UInt8
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from datamodules.image_decoding import decode
from datamodules.sources.base import ImageSource

Size = tuple[int, int]  # height, width


class Store(Protocol):
    """The images of a split. It pickles small."""

    def whole(self, indices: np.ndarray, size: Size) -> UInt8[np.ndarray, "B H W 3"]:
        """Images cut to `size` as `fit` does."""

    def original(self, indices: np.ndarray) -> Sequence[np.ndarray]:
        """Images (h, w, 3) as they are kept."""


class DecodedImages:
    """A file of images of one size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._images: np.ndarray | None = None

    def _read(self, indices: np.ndarray) -> np.ndarray:
        if self._images is None:
            self._images = np.load(self.path, mmap_mode="r")
        return self._images[indices]

    def whole(self, indices: np.ndarray, size: Size) -> np.ndarray:
        return self._read(indices)

    def original(self, indices: np.ndarray) -> Sequence[np.ndarray]:
        return list(self._read(indices))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_images": None}


class EncodedImages:
    """A source's split, opened where it is used and decoded image by image."""

    def __init__(self, source: ImageSource, split: str) -> None:
        import datasets  # noqa: F401 - here: W&B watches for it, and fails where a forked worker is the first to import it

        self.source, self.split = source, split
        self._rows: Any = None

    def original(self, indices: np.ndarray) -> Sequence[np.ndarray]:
        if self._rows is None:
            self._rows = self.source.load()[self.split]
        rows = (self._rows[int(i)] for i in indices)
        return [decode(row["image"], row["row"]) for row in rows]

    def whole(self, indices: np.ndarray, size: Size) -> np.ndarray:
        return np.stack([fit(image, size) for image in self.original(indices)])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}


def fit(image: UInt8[np.ndarray, "h w 3"], size: Size) -> UInt8[np.ndarray, "H W 3"]:
    """Resized, without distortion, so that it just covers `size`, then cut at the centre; of that size already, it is left."""
    if image.shape[:2] == size:
        return image
    height, width = size
    scale = max(height / image.shape[0], width / image.shape[1])
    larger = [max(wanted, round(length * scale)) for wanted, length in zip(size, image.shape[:2], strict=True)]
    resized = TF.resize(
        torch.from_numpy(image).permute(2, 0, 1), larger, interpolation=v2.InterpolationMode.BICUBIC, antialias=True
    )
    return TF.center_crop(resized, [height, width]).permute(1, 2, 0).numpy()


def write_decoded(path: Path, rows: Any, size: Size) -> None:
    """Decodes and fits every image of a split into one file, (N, H, W, 3) uint8."""
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(len(rows), *size, 3))
    for i, row in enumerate(rows):
        images[i] = fit(decode(row["image"], row["row"]), size)
    images.flush()
