"""Labelled images."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only

from datamodules.augment import Augmentation
from datamodules.base import BaseDataModule, checkpoint_assets, chosen_split
from datamodules.batch import ImageBatch
from datamodules.classes import Labels, choose_classes, named
from datamodules.draws import uniform
from datamodules.image_cache import DecodedImages, EncodedImages, NormalisedImages, checked_size, write_decoded
from datamodules.image_decoding import DECODING
from datamodules.order import Key
from datamodules.sources.base import ImageSource
from datamodules.token_cache import prepared, read_meta, write_meta

FORMAT = 1  # raise it with every change of the files
MANY = 5000  # images whose decoding is announced


class LabelledImages:
    """Batches of images and their classes."""

    def __init__(self, images: NormalisedImages, labels: Path, fraction: float = 1.0) -> None:
        self.images, self._path, self.fraction = images, labels, fraction

    @cached_property
    def rows(self) -> np.ndarray:
        """(N,) where the samples stand in the split: all of it, or the fraction of each class."""
        return fraction_of(np.load(self._path), self.fraction)

    @cached_property
    def labels(self) -> np.ndarray:
        return np.load(self._path)[self.rows]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("rows", "labels")}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, key: Key) -> ImageBatch:
        epoch, indices, _ = key
        augmentation = self.images.augmentation
        batch: ImageBatch = {
            "images": self._images(epoch, indices),
            "labels": torch.from_numpy(self.labels[indices]),
            "num_images": len(indices),
            "index": torch.from_numpy(indices),
        }
        if augmentation is not None and augmentation.mixes and len(self) > 1:
            keys = self.images.seed, epoch, indices
            partners = augmentation.partners(keys, len(self))
            mixed = augmentation.mix(batch["images"], self._images(epoch, partners), keys)
            batch["images"], batch["label_weight"] = mixed
            batch["other_labels"] = torch.from_numpy(self.labels[partners])
        return batch

    def _images(self, epoch: int, indices: np.ndarray) -> torch.Tensor:
        return self.images(epoch, indices, self.rows[indices])


class ImageDataModule(BaseDataModule):
    """Classes of images. Batches are `ImageBatch`.

    Images are cut to image_size: resized to cover it, then cut at the centre. A set that fits into memory_limit_gb in that
    size is decoded once and kept on disk, whence it is mapped into memory; a larger one is decoded image by image.

    Args:
        source: where the images come from.
        image_size: one number for squares, [height, width] for rectangles. Linked to the network.
        mean, std: of the red, green and blue channels from 0 to 1, which are brought to mean 0 and standard deviation 1.
        augmentation: of training images.
        train_fraction: share of each class's training images that is used, chosen once for all seeds.
        memory_limit_gb: decoded images, in 10^9 bytes, that are kept.
        init_from: checkpoint whose classes are used where the source has no train split; set by the runner.
        cache_dir: where decoded images are kept. Default: `$XDG_CACHE_HOME/lit-pipeline`.
        batch_size, micro_batch_size, eval_batch_size, num_workers, seed: see BaseDataModule.

    Raises:
        ValueError: a size or an option is out of its range, a split is empty, a label in validation or test is none of train's
            (with the image), there is a single class, or an image is broken (with its name).
    """

    def __init__(
        self, source: ImageSource, batch_size: int, image_size: int | tuple[int, int],
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5), std: tuple[float, float, float] = (0.5, 0.5, 0.5),
        augmentation: Augmentation = Augmentation(), train_fraction: float = 1.0, memory_limit_gb: float = 2.0,  # noqa: B008
        init_from: str | None = None, micro_batch_size: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0, seed: int = 0, cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size, micro_batch_size, eval_batch_size, num_workers, seed)
        self.size = checked_size(image_size, std)
        if not 0 < train_fraction <= 1:
            raise ValueError(f"train_fraction {train_fraction} is not in (0, 1]")
        augmentation.check()
        self.augmentation = augmentation
        self.source, self.image_size, self.mean, self.std = source, image_size, list(mean), list(std)
        self.train_fraction, self.memory_limit_gb = train_fraction, memory_limit_gb
        self.init_from, self.cache_dir = init_from, cache_dir

    @cached_property
    def _prepared(self) -> tuple[list[str], dict[str, LabelledImages]]:
        known = checkpoint_assets(self.init_from, "classes")["classes"] if self.init_from else None
        what = (FORMAT, DECODING, self.size, self.memory_limit_gb, known, self.source.fingerprint())
        key = sha256(repr(what).encode()).hexdigest()[:32]
        folder, meta = prepared("Images", key, self.cache_dir, lambda path: self._fill(path, known), _complete)
        datasets = {}
        for split in meta["splits"]:
            store = DecodedImages(folder / f"{split}.npy") if meta["decoded"] else EncodedImages(self.source, split)
            augmentation, fraction = (self.augmentation, self.train_fraction) if split == "train" else (None, 1.0)
            images = NormalisedImages(store, self.size, self.mean, self.std, self.seed, augmentation)
            datasets[split] = LabelledImages(images, folder / f"{split}.labels.npy", fraction)
        return meta["classes"], datasets

    def _fill(self, folder: Path, known: list[str] | None) -> None:
        splits = self.source.load()
        names = set(splits["train"]["label"]) if "train" in splits else None
        labels = Labels(choose_classes(self.source, names, known))
        num_bytes = sum(map(len, splits.values())) * self.size[0] * self.size[1] * 3
        decoded = num_bytes <= self.memory_limit_gb * 1e9
        folder.mkdir()
        for split, rows in splits.items():
            if not len(rows):
                raise ValueError(f"{self.source.describe()}: the {split} split is empty")
            labels.split = split
            where = zip(rows["label"], rows["row"], strict=True)
            numbers = [labels(label, {"row": row}, number) for number, (label, row) in enumerate(where)]
            np.save(folder / f"{split}.labels.npy", np.array(numbers, dtype=np.int64))
            if decoded:
                if len(rows) > MANY:
                    rank_zero_only(print)(f"{split}: {len(rows):,} images are decoded, once")
                write_decoded(folder / f"{split}.npy", rows, self.size)
        write_meta(folder, classes=labels.classes, decoded=decoded, splits=list(splits))

    def prepare(self) -> None:
        self._prepared  # noqa: B018

    @property
    def classes(self) -> list[str]:
        return self._prepared[0]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def dataset(self, split: str) -> LabelledImages:
        return chosen_split(self.source, self._prepared[1], split)

    def assets(self) -> dict[str, Any]:
        return {"classes": self.classes, "image_size": list(self.size), "mean": self.mean, "std": self.std}

    def readable(self, split: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A table of predictions: index, input (the file, or where it stands), prediction, probability, and label if known."""
        rows, index = self.source.load()[split]["row"], list(columns["index"])
        return {"index": index, "input": [rows[i] for i in index], **named(columns, self.classes)}


def fraction_of(labels: np.ndarray, fraction: float) -> np.ndarray:
    """Where the chosen share of each class stands, at least one of each, in the order of the split."""
    if fraction == 1:
        return np.arange(len(labels))
    draws = uniform(np.arange(len(labels)))
    chosen = []
    for label in np.unique(labels):
        (places,) = np.nonzero(labels == label)
        chosen.append(places[np.argsort(draws[places])[: max(1, round(fraction * len(places)))]])
    return np.sort(np.concatenate(chosen))


def _complete(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    meta = read_meta(folder)
    return None if meta is None else (folder, meta)
