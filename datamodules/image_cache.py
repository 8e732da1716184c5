"""Images of a source as datasets ask for them: decoded once and kept, or decoded each time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from datamodules.augment import Augmentation
from datamodules.image_decoding import decode
from datamodules.sources.base import Source

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

    def __init__(self, source: Source, split: str) -> None:
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


class NormalisedImages:
    """Images of a store as a network takes them; `augmentation` in training only."""

    def __init__(
        self, store: Store, size: Size, mean: Sequence[float], std: Sequence[float], seed: int,
        augmentation: Augmentation | None,
    ) -> None:  # fmt: skip
        self.store, self.size, self.seed, self.augmentation = store, size, seed, augmentation
        self.mean, self.std = (torch.tensor(values).view(1, 3, 1, 1) * 255 for values in (mean, std))

    def __call__(self, epoch: int, indices: np.ndarray, rows: np.ndarray) -> Float[Tensor, "B 3 H W"]:
        """Samples number `indices`, which decide the random draws, from the store's `rows`."""
        augmentation, keys = self.augmentation, (self.seed, epoch, indices)
        if augmentation is None:
            return self._normalised(torch.from_numpy(self.store.whole(rows, self.size)).permute(0, 3, 1, 2))
        if augmentation.min_scale is not None:
            images = augmentation.resized_crops(self.store.original(rows), self.size, keys)
        else:
            images = self.store.whole(rows, self.size)
        return augmentation.erased(self._normalised(augmentation.pixels(images, keys)), keys)

    def _normalised(self, pixels: Tensor) -> Tensor:
        return pixels.to(torch.float32, memory_format=torch.contiguous_format).sub_(self.mean).div_(self.std)


def checked_size(image_size: int | tuple[int, int], std: Sequence[float]) -> Size:
    """Height and width; raises ValueError where one is below 1, or a standard deviation is not above 0."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(height, width) < 1:
        raise ValueError(f"image_size {image_size} must be at least 1")
    if min(std) <= 0:
        raise ValueError(f"std {list(std)} must be above 0")
    return height, width


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
