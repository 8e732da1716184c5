"""Labelled images from a data set on the Hugging Face hub, or from a local folder of such files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageSource, digest
from datamodules.sources.hub import download
from datamodules.sources.hub_labels import HubLabels, choose_splits
from datamodules.sources.image_base import ImageRows, file_states, image_rows, to_image_splits
from datamodules.sources.labels import CHECKS

if TYPE_CHECKING:
    import datasets

READING = 1  # raise it when which rows are read changes


@final
class HubImages(HubLabels, ImageSource):
    """Images and their classes; columns `image`, `label`, `row` ("train, row 12"). Images stay on the disk.

    For example uoft-cs/cifar10 (image: img), ylecun/mnist, zalando-datasets/fashion_mnist. Data sets that need a loading script
    do not load. A label of -1 is none, as all of a test split may be.

    Args:
        name: a data set on the hub, or a local folder.
        config: which part of the data set.
        image: the column of the image.
        label: the column of the class, numbers or strings.
        validation: the split to use, where it is not called validation, valid, val or dev; without one, val_fraction of train.
        test: the split to use, where it is not called test.
        val_fraction: share of the training rows.
        revision: the data set's commit; without it the version that is downloaded first is kept.
    """

    def __init__(
        self, name: str, config: str | None = None, image: str = "image", label: str = "label", validation: str | None = None,
        test: str | None = None, val_fraction: float = 0.1, revision: str | None = None,
    ) -> None:  # fmt: skip
        columns = {"image": image, "label": label}
        super().__init__(name, config, columns, "label", validation, test, val_fraction, revision)
        self.image, self.label = image, label

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: there is no such data set, or the hub cannot be reached.
            ValueError: it does not load, lacks a column or split, or a row has no image or a wrong label.
        """
        loaded = download(self.name, self.config, self.revision)
        chosen = choose_splits(self.describe(), list(loaded), self.validation, self.test)
        try:
            splits = {split: self._images(own, loaded[own]) for split, own in chosen.items()}
            return to_image_splits(splits, self.val_fraction)
        except ValueError as error:
            raise ValueError(f"{self.describe()}: {error}") from None

    def fingerprint(self) -> str:
        options = (self.name, self.config, self.columns, self.validation, self.test, self.val_fraction, self.revision)
        folder = Path(self.name)
        files = sorted(str(path) for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        return digest("hub images", READING, CHECKS, *options, file_states(files, self.name))

    def _images(self, own: str, rows: datasets.Dataset) -> ImageRows:
        images, names = image_rows(own, rows, self.image, self.label, paths=True)
        self._classes = self._classes or names
        return images
