"""The small labelled image sets that torchvision reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from datamodules.sources.base import ImageSource, check_fraction, digest
from datamodules.sources.image_base import ImageRows, encoded_images, file_states, labelled, to_image_splits
from datamodules.sources.labels import CHECKS, nearest

if TYPE_CHECKING:
    import datasets

Name = Literal["MNIST", "FashionMNIST", "KMNIST", "CIFAR10", "CIFAR100", "SVHN", "STL10"]
FILES = {
    "MNIST": "MNIST/raw/*", "FashionMNIST": "FashionMNIST/raw/*", "KMNIST": "KMNIST/raw/*", "CIFAR10": "cifar-10-batches-py/*",
    "CIFAR100": "cifar-100-python/*", "SVHN": "*_32x32.mat", "STL10": "stl10_binary/*",
}  # fmt: skip
BY_SPLIT = ("SVHN", "STL10")  # their argument is split; that of the others is train
READING = 1  # raise it when the images or labels that are read change


@final
class TorchvisionSet(ImageSource):
    """A data set of `torchvision.datasets`; columns `image` (PNG), `label`, `row` ("CIFAR10 train, row 12").

    Its test images are the test split; validation is cut from the training images.

    Args:
        name: which one.
        root: the folder that holds its files, as torchvision lays them out.
        download: fetch them where they are missing.
        val_fraction: share of the training images for validation, chosen by their digest.
    """

    def __init__(self, name: Name, root: str, download: bool = False, val_fraction: float = 0.1) -> None:
        if name not in FILES:
            raise ValueError(f"name {name!r} is none of {', '.join(FILES)}{nearest(name, FILES)}")
        check_fraction("val_fraction", val_fraction)
        self.name, self.root, self.download, self.val_fraction = name, root, download, val_fraction
        self._classes: list[str] | None = None

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: files are missing and not to be downloaded or cannot be; or SVHN needs scipy.
            ValueError: a file is broken.
        """
        splits = {}
        for split in ("train", "test"):
            rows = self._open(split)
            names = getattr(rows, "classes", None)  # SVHN has none: its labels are the digits
            self._classes = [name.split(" - ")[0] for name in names] if names else [str(digit) for digit in range(10)]
            pairs = [rows[i] for i in range(len(rows))]
            where = f"{self.name} {split}, row"
            examples = [labelled(f"{where} {i}", int(label), self._classes) for i, (_, label) in enumerate(pairs, 1)]
            splits[split] = ImageRows(encoded_images(image for image, _ in pairs), examples)
        return to_image_splits(splits, self.val_fraction)

    def classes(self) -> list[str] | None:
        """As torchvision names them (MNIST's "0 - zero" is "0"); None before `load`."""
        return self._classes

    def fingerprint(self) -> str:
        found = [] if self.download else self._files()  # what is downloaded is the published set, before and after
        if not found and not self.download:
            raise FileNotFoundError(self._missing())
        return digest("torchvision", READING, CHECKS, self.name, self.val_fraction, file_states(found, self.root))

    def describe(self) -> str:
        return f"the data set {self.name} in {self.root}"

    def _open(self, split: str) -> Any:
        import torchvision

        which: dict[str, Any] = {"split": split} if self.name in BY_SPLIT else {"train": split == "train"}
        try:
            make = getattr(torchvision.datasets, self.name)
            return make(Path(self.root).expanduser(), **which, download=self.download)
        except ImportError as error:
            raise FileNotFoundError(f"{self.describe()} needs a package that is missing: {error}") from None
        except Exception as error:  # each file format has errors of its own
            said = " ".join(str(error).split()) or type(error).__name__
            if self._files():
                raise ValueError(f"{self.describe()} cannot be read: {said}") from None
            raise FileNotFoundError(f"{self._missing()}: {said}" if self.download else self._missing()) from None

    def _files(self) -> list[str]:
        return sorted(map(str, Path(self.root).expanduser().glob(FILES[self.name])))

    def _missing(self) -> str:
        if self.download:
            return f"{self.describe()} could not be downloaded"
        place = Path(self.root) / Path(FILES[self.name]).parent
        return f"{self.describe()} is not there: set download to true, or put its files into {place}"
