"""What CLIP's figures are drawn from: features of a split, and which of its images and captions are shown."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from datamodules.image_text import ImageTextDataModule
from datamodules.image_text_pairs import ImageTextPairs
from datamodules.order import EvalOrder, epoch_order
from lit_models.base import in_order
from lit_models.clip import LitCLIP, right_pairs, zero_shot_task
from lit_models.metrics.retrieval import recall_at
from pipeline.callbacks.mistakes import as_shown
from pipeline.callbacks.parts import datamodule
from pipeline.callbacks.vit_figures import of_different_classes
from pipeline.clip_figures import Bar, Ranked, nearest, ranked
from pipeline.run_folder import RunFolder


class CLIPFigure(Callback):
    """A callback that draws what a LitCLIP makes of an ImageTextDataModule."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        refuse_other(self, pl_module, datamodule(trainer))

    def draws(self, trainer: Trainer) -> bool:
        """On one rank, and where a run has its folder."""
        return not trainer.sanity_checking and trainer.is_global_zero and RunFolder(trainer.default_root_dir).config.exists()


def refuse_other(callback: Callback, module: LightningModule, data: object) -> None:
    """Raises ValueError unless model and data are CLIP's."""
    if not isinstance(module, LitCLIP) or not isinstance(data, ImageTextDataModule):
        found = f"the model is {type(module).__name__} on {type(data).__name__}"
        raise ValueError(f"{type(callback).__name__} is for LitCLIP on ImageTextDataModule, and {found}")


class SplitFeatures(NamedTuple):
    """Features of a split's images and captions on the CPU, in float32, and what belongs to what."""

    split: str
    images: Float[Tensor, "I E"]
    texts: Float[Tensor, "C E"]
    right: Tensor  # (I, C) bool
    first: Int[Tensor, "I"]  # the place of each image's first caption
    rows: dict[str, Tensor]  # LitBase.epoch_rows

    @classmethod
    def of(cls, rows: dict[str, Tensor], split: str) -> "SplitFeatures | None":
        """None of rows without features: nothing has been evaluated."""
        if "images" not in rows or "texts" not in rows:
            return None
        right = right_pairs(rows)
        return cls(split, rows["images"].float(), rows["texts"].float(), right, right.int().argmax(1), rows)

    def pictures(self, data: Any, images: Tensor) -> Float[Tensor, "N 3 H W"]:
        index = self.rows["index"][images].numpy()
        return as_shown(data.dataset(self.split).images(0, index, index), data)

    def captions(self, data: ImageTextDataModule, texts: Tensor) -> list[str]:
        """With single spaces."""
        dataset: ImageTextPairs = data.dataset(self.split)
        return [" ".join(dataset.caption(number).split()) for number in self.rows["captions"][texts].tolist()]

    def fixed_pairs(self, count: int) -> Int[Tensor, "N"]:
        """Places of images, no two of which have the same first caption, of the groups in turn: always the same ones."""
        _, places = np.unique(self.first.numpy(), return_index=True)
        return torch.from_numpy(some(places, self.rows["groups"], count))

    def examples(self, by_text: bool, count: int, num_candidates: int) -> list[Ranked]:
        """What some queries find: as far as there are, half of them a right nearest candidate, and of the groups in turn."""
        queries, candidates, right, groups = self.images, self.texts, self.right, self.rows["groups"]
        if by_text:
            queries, candidates, right, groups = candidates, queries, right.T, groups[right.int().argmax(0)]
        hit = torch.cat([nearest(part @ candidates.T) for part in queries.split(1024)])
        hits = right[torch.arange(len(queries)), hit].numpy()
        found, missed = (some(np.flatnonzero(which), groups, count) for which in (hits, ~hits))
        num_found = min(len(found), max(count - count // 2, count - len(missed)))
        chosen = [*found[:num_found].tolist(), *missed[: count - num_found].tolist()]
        return [ranked(candidates @ queries[i], right[i], i, num_candidates) for i in chosen]

    def bars(self, names: list[str]) -> list[Bar]:
        """Of each group that has two captions which training knows."""
        made = []
        for number, name in enumerate(names):
            chosen, classes = zero_shot_task(self.rows, self.right, number)
            if len(classes) > 1:
                right = self.right[chosen][:, classes]
                accuracy = recall_at(self.images[chosen], self.texts[classes], right, ks=(1,))[1]
                chance = float(right.double().mean())
                made.append(Bar(name, self.split, accuracy, chance, len(chosen), len(classes)))
        return made


def some(places: np.ndarray, groups: Tensor, count: int) -> np.ndarray:
    """`count` of `places`, of the groups in turn: drawn, since neighbours are often alike, but always the same ones."""
    places = places[epoch_order(0, 0, len(places))]
    return places[of_different_classes(groups.numpy()[places], count)]


@torch.no_grad()
def encoded(trainer: Trainer, module: LitCLIP, split: str) -> SplitFeatures | None:
    """The features of all that the trainer evaluates in a split, computed as an evaluation would."""
    data: ImageTextDataModule = datamodule(trainer)
    loader = data.val_dataloader() if split == "validation" else data.test_dataloader()
    assert isinstance(loader.sampler, EvalOrder)
    # In the order of one process: the loader has this rank's share only.
    order = EvalOrder(data.dataset(split), loader.sampler.num_samples, batch_size=data.eval_batch_size, rank=0, world_size=1)
    was_training, parts = module.training, dict[str, list[tuple[Tensor, Tensor]]]()
    module.eval()
    for key in order:
        batch: Any = trainer.precision_plugin.convert_input(data.dataset(split)[key])
        with trainer.precision_plugin.forward_context():
            rows = module.step(move_data_to_device(batch, module.device)).rows
        for name, (keys, values) in rows.items():
            parts.setdefault(name, []).append((keys.cpu(), values.cpu()))
    module.train(was_training)
    return SplitFeatures.of({name: in_order(pairs) for name, pairs in parts.items()}, split)
