"""Images with captions."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_only

from datamodules.augment import Augmentation
from datamodules.base import BaseDataModule, chosen_split
from datamodules.exchanges import first_tokenizer
from datamodules.image_cache import DecodedImages, EncodedImages, NormalisedImages, checked_size
from datamodules.image_decoding import DECODING
from datamodules.image_text_cache import FORMAT, fill, read
from datamodules.image_text_pairs import ImageTextPairs, Texts
from datamodules.sources.base import ImageTextSource
from datamodules.token_cache import prepared
from datamodules.tokenizers.base import Tokenizer


class ImageTextDataModule(BaseDataModule):
    """Pairs of an image and a text. Batches are `ImageTextBatch`.

    Images are cut to image_size and kept as in ImageDataModule. Of several captions one is drawn in each epoch, and of several
    templates one, into which it is put; in evaluation a caption's features are those of all its prompts. Captions that are too
    long are cut off and counted.

    Args:
        source: where the pairs come from.
        tokenizer: with [PAD] and [EOS]; trained on the train split's captions if it is not yet.
        image_size: one number for squares, [height, width] for rectangles. Linked to the network.
        max_seq_len: tokens of a text at most, [EOS] included; the runner links it to the network's.
        templates: prompts with {} where the caption goes.
        mean, std: of the red, green and blue channels from 0 to 1, which are brought to mean 0 and standard deviation 1.
        augmentation: of training images; without mixup and cutmix.
        memory_limit_gb: decoded images, in 10^9 bytes, that are kept.
        init_from: checkpoint whose tokenizer is used; set by the runner.
        batch_size: pairs; the negatives of each are the others of its batch, in evaluation those of eval_batch_size.
        micro_batch_size: pairs that one device takes at once; the loss sees the whole batch all the same.
        eval_batch_size, num_workers, seed, cache_dir: see BaseDataModule.

    Raises:
        ValueError: a batch has a single pair, a template has not one {}, the tokenizer lacks a special token, an option is out
            of its range, or what the source says.
    """

    def __init__(
        self, source: ImageTextSource, tokenizer: Tokenizer, batch_size: int, image_size: int | tuple[int, int],
        max_seq_len: int = 77, templates: list[str] = ["{}"],  # noqa: B006 - never changed
        mean: tuple[float, float, float] = (0.5, 0.5, 0.5), std: tuple[float, float, float] = (0.5, 0.5, 0.5),
        augmentation: Augmentation = Augmentation(), memory_limit_gb: float = 2.0,  # noqa: B008
        init_from: str | None = None, micro_batch_size: int | None = None, eval_batch_size: int | None = None,
        num_workers: int = 0, seed: int = 0, cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size, micro_batch_size, eval_batch_size, num_workers, seed)
        if eval_batch_size is None:
            self.eval_batch_size = max(2, self.eval_batch_size)
        for name, value in {"batch_size": batch_size, "eval_batch_size": self.eval_batch_size}.items():
            if value < 2:
                raise ValueError(f"data.init_args.{name} is {value}; a pair is compared with others, so it must be at least 2")
        check_templates(templates)
        augmentation.check()
        if augmentation.mixes:
            raise ValueError("augmentation mixup and cutmix are for classes: a mixed image has no caption")
        self.size = checked_size(image_size, std)
        self.source, self.image_size, self.max_seq_len, self.templates = source, image_size, max_seq_len, list(templates)
        self.augmentation, self.mean, self.std = augmentation, list(mean), list(std)
        self.memory_limit_gb, self.init_from, self.cache_dir = memory_limit_gb, init_from, cache_dir
        self._given_tokenizer = tokenizer

    @cached_property
    def _prepared(self) -> tuple[Tokenizer, list[str], dict[str, ImageTextPairs]]:
        start = first_tokenizer(self._given_tokenizer, self.init_from)
        what = (FORMAT, DECODING, self.size, self.memory_limit_gb, self.source.fingerprint(), start.fingerprint())
        key = sha256(repr(what).encode()).hexdigest()[:32]
        folder, meta = prepared("ImageText", key, self.cache_dir, lambda path: self._fill(path, start), read)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        texts = Texts(tokenizer, self.templates, self.max_seq_len)
        datasets = {}
        for split in meta["splits"]:
            store = DecodedImages(folder / f"{split}.npy") if meta["decoded"] else EncodedImages(self.source, split)
            training = split == "train"
            images = NormalisedImages(store, self.size, self.mean, self.std, self.seed, self.augmentation if training else None)
            datasets[split] = ImageTextPairs(images, folder / split, texts, self.micro_batch_size, training)
            if num_cut := datasets[split].num_cut:
                rank_zero_only(print)(f"{split}: {num_cut:,} captions longer than max_seq_len {self.max_seq_len} are cut off")
        return tokenizer, meta["groups"], datasets

    def _fill(self, folder: Path, tokenizer: Tokenizer) -> None:
        fill(folder, self.source, tokenizer, self.size, self.memory_limit_gb)

    def prepare(self) -> None:
        self._prepared  # noqa: B018

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prepared[0]

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def eos_id(self) -> int:
        return self.tokenizer.eos_id

    @property
    def groups(self) -> list[str]:
        """The parts of the data, in the order of their numbers."""
        return self._prepared[1]

    @property
    def splits(self) -> list[str]:
        return list(self._prepared[2])

    def dataset(self, split: str) -> ImageTextPairs:
        return chosen_split(self.source, self._prepared[2], split)

    def zero_shot_groups(self, split: str) -> list[str]:
        """The groups of a split that have at least two captions which training knows: the classes of zero-shot accuracy."""
        arrays = self.dataset(split).arrays
        of_caption = np.repeat(arrays["groups"], np.diff(arrays["first"]))  # (L,) the group of each image's captions
        known = arrays["is_class"][arrays["own"]]
        return [
            name for number, name in enumerate(self.groups) if len(np.unique(arrays["own"][known & (of_caption == number)])) > 1
        ]

    def accumulation(self, world_size: int) -> int:
        """One: a rank's whole share is a batch, which the model itself cuts into micro-batches. Raises as BaseDataModule's."""
        super().accumulation(world_size)
        return 1

    def assets(self) -> dict[str, Any]:
        sizes = {"image_size": list(self.size), "mean": self.mean, "std": self.std}
        return {"tokenizer": self.tokenizer.to_json(), "templates": self.templates, **sizes}

    def readable(self, split: str, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """A table of predictions: index, input (the file, or where it stands), caption, similarity."""
        rows, dataset, index = self.source.load()[split]["row"], self.dataset(split), list(columns["index"])
        captions = [dataset.caption(dataset.own(i)[0]) for i in index]
        inputs = [rows[i] for i in index]
        return {"index": index, "input": inputs, "caption": captions, "similarity": list(columns["similarity"])}


def check_templates(templates: Sequence[str]) -> None:
    """Raises ValueError unless there is a template, and one {} in each."""
    if not templates:
        raise ValueError("templates is empty: ['{}'] is the caption alone")
    for template in templates:
        if template.count("{}") != 1:
            raise ValueError(f"the template {template!r} must have one {{}}, where the caption goes")
