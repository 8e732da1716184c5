"""Images with captions from a data set on the Hugging Face hub, or from a local folder of such files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import ImageTextSource, check_fraction, digest
from datamodules.sources.hub import download, title
from datamodules.sources.hub_labels import choose_splits
from datamodules.sources.image_base import encoded_column, file_states
from datamodules.sources.image_text_base import READING, Captioned, captions_in, group_in, to_image_text_splits, with_captions
from datamodules.sources.labels import check_columns

if TYPE_CHECKING:
    import datasets


@final
class HubImageText(ImageTextSource):
    """Images and captions; columns `image`, `captions`, `group`, `row` ("train, row 12"). Images stay on the disk.

    For example jxie/flickr8k (captions: [caption_0, caption_1, caption_2, caption_3, caption_4]). Data sets that need a loading
    script do not load.

    Args:
        name: a data set on the hub, or a local folder.
        config: which part of the data set.
        image: the column of the image.
        captions: the column of the captions, texts or lists of them, or several columns; of several some may be empty.
        group: the column that names the part of the data that a pair belongs to; null for none.
        validation: the split to use, where it is not called validation, valid, val or dev; without one, val_fraction of train.
        test: the split to use, where it is not called test.
        val_fraction: share of the training rows.
        revision: the data set's commit; without it the version that is downloaded first is kept.
    """

    def __init__(
        self, name: str, config: str | None = None, image: str = "image", captions: str | list[str] = "caption",
        group: str | None = None, validation: str | None = None, test: str | None = None, val_fraction: float = 0.1,
        revision: str | None = None,
    ) -> None:  # fmt: skip
        check_fraction("val_fraction", val_fraction)
        self.name, self.config, self.revision = name, config, revision
        self.image, self.captions, self.group = image, [captions] if isinstance(captions, str) else list(captions), group
        self.validation, self.test, self.val_fraction = validation, test, val_fraction
        if not self.captions:
            raise ValueError("captions is an empty list: the column of the captions, or several, was expected")

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: there is no such data set, or the hub cannot be reached.
            ValueError: it does not load, lacks a column or split, or a row has no image or no caption.
        """
        loaded = download(self.name, self.config, self.revision)
        chosen = choose_splits(self.describe(), list(loaded), self.validation, self.test)
        try:
            splits = {split: self._split(own, loaded[own]) for split, own in chosen.items()}
            return to_image_text_splits(splits, self.val_fraction)
        except ValueError as error:
            raise ValueError(f"{self.describe()}: {error}") from None

    def fingerprint(self) -> str:
        options = (self.name, self.config, self.image, self.captions, self.group, self.validation, self.test)
        folder = Path(self.name)
        files = sorted(str(path) for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        states = file_states(files, self.name)
        return digest("hub image text", READING, *options, self.val_fraction, self.revision, states)

    def describe(self) -> str:
        return title(self.name, self.config)

    def _split(self, own: str, table: datasets.Dataset) -> datasets.Dataset:
        others = [*self.captions, *([self.group] if self.group else [])]
        check_columns(own, table.column_names, (self.image, *others))
        images = encoded_column(own, table, self.image, paths=True)
        rows = []
        for number, row in enumerate(table.select_columns(others), 1):
            where = f"{own}, row {number}"
            rows.append(Captioned(captions_in(where, row, self.captions), group_in(row, self.group), where))
        return with_captions(images, rows)
