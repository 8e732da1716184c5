"""Batches of images and texts, and how texts become ids."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import ImageTextBatch
from datamodules.draws import uniform
from datamodules.encoded import one_line
from datamodules.image_cache import NormalisedImages
from datamodules.order import Key
from datamodules.tokenizers.base import Tokenizer

_CAPTION, _TEMPLATE = 50, 51
"""What a draw is for (datamodules.masking, pair_sampling and augment have those below)."""


class Texts:
    """Captions in templates as ids, each ended by [EOS], padded after it."""

    def __init__(self, tokenizer: Tokenizer, templates: Sequence[str], max_seq_len: int) -> None:
        self.tokenizer, self.templates, self.max_seq_len = tokenizer, list(templates), max_seq_len

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(n, T) int64, T that of the longest; what goes beyond max_seq_len is cut off before [EOS]."""
        ids = [row[: self.max_seq_len - 1] for row in self.tokenizer.encode_batch([one_line(text) for text in texts])]
        padded = np.full((len(ids), 1 + max(map(len, ids), default=0)), self.tokenizer.pad_id, dtype=np.int64)
        for i, row in enumerate(ids):
            padded[i, : len(row)] = row
            padded[i, len(row)] = self.tokenizer.eos_id
        return torch.from_numpy(padded)

    def prompts(self, captions: Sequence[str]) -> Tensor:
        """(M, P, T) each caption in every template."""
        texts = [template.replace("{}", caption) for caption in captions for template in self.templates]
        return self(texts).unflatten(0, (len(captions), len(self.templates)))

    @cached_property
    def overhead(self) -> int:
        """Tokens that the longest template and [EOS] add to a caption."""
        texts = [one_line(template.replace("{}", "x")) for template in (*self.templates, "{}")]
        *lengths, alone = map(len, self.tokenizer.encode_batch(texts))
        return max(lengths) - alone + 1


class ImageTextPairs:
    """Images of a split with their captions: read from the folder that `datamodules.image_text_cache.fill` made.

    A batch of training has a caption and a template of each image, drawn by (seed, epoch, sample).
    """

    def __init__(
        self, images: NormalisedImages, files: Path, texts: Texts, micro_batch_size: int | None, training: bool
    ) -> None:  # fmt: skip
        self.images, self.files, self.texts = images, files, texts
        self.micro_batch_size, self.training = micro_batch_size, training

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """image_numbers, groups (N,); first (N + 1,) into own (L,), the captions' numbers; is_class, owner, lengths (M,);
        text_starts (M + 1,) into text, bytes."""
        with np.load(f"{self.files}.captions.npz") as arrays:
            return dict(arrays)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "arrays"}

    def __len__(self) -> int:
        return len(self.arrays["groups"])

    @property
    def num_cut(self) -> int:
        """Captions that do not fit in the longest template."""
        return int((self.arrays["lengths"] + self.texts.overhead > self.texts.max_seq_len).sum())

    def own(self, index: int) -> np.ndarray:
        """The numbers of an image's captions."""
        first = self.arrays["first"]
        return self.arrays["own"][first[index] : first[index + 1]]

    def caption(self, number: int) -> str:
        starts = self.arrays["text_starts"]
        return self.arrays["text"][starts[number] : starts[number + 1]].tobytes().decode()

    def __getitem__(self, key: Key) -> ImageTextBatch:
        epoch, indices, _ = key
        first, keys = self.arrays["first"][indices], (self.images.seed, epoch, indices)
        chosen, templates = np.zeros_like(indices), np.zeros_like(indices)
        if self.training:
            count = self.arrays["first"][indices + 1] - first
            chosen = (uniform(*keys, _CAPTION) * count).astype(np.int64)
            templates = (uniform(*keys, _TEMPLATE) * len(self.texts.templates)).astype(np.int64)
        numbers = self.arrays["own"][first + chosen]
        prompts = [self.texts.templates[t].replace("{}", self.caption(n)) for t, n in zip(templates, numbers, strict=True)]
        batch: ImageTextBatch = {
            "images": self.images(epoch, indices, indices),
            "input_ids": self.texts(prompts),
            "caption_numbers": torch.from_numpy(numbers),
            "image_numbers": torch.from_numpy(self.arrays["image_numbers"][indices]),
            "num_pairs": len(indices),
            "micro_batch_size": self.micro_batch_size or len(indices),
            "index": torch.from_numpy(indices),
        }
        if not self.training:
            pairs = [(i, number) for i in indices for number in self.own(i)]
            new = np.array([number for i, number in pairs if self.arrays["owner"][number] == i], dtype=np.int64)
            batch["prompts"] = self.texts.prompts([self.caption(number) for number in new])
            batch["new_captions"] = torch.from_numpy(new)
            batch["is_class"] = torch.from_numpy(self.arrays["is_class"][new])
            batch["groups"] = torch.from_numpy(self.arrays["groups"][indices])
            batch["pairs"] = torch.tensor(pairs, dtype=torch.int64)
        return batch
