"""What a CLIP has learned, in pictures."""

from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from datamodules.image_text import ImageTextDataModule
from datamodules.image_text_pairs import ImageTextPairs
from lit_models.base import in_order
from lit_models.clip import LitCLIP, right_pairs, zero_shot_task
from lit_models.metrics.retrieval import recall_at
from pipeline import clip_figures
from pipeline.callbacks.embeddings import principal_components
from pipeline.callbacks.mistakes import as_shown
from pipeline.callbacks.parts import datamodule, publish
from pipeline.clip_figures import Ranked, ranked
from pipeline.run_folder import RunFolder

TOP = 5
NUM_MAPPED = 500
Rows = dict[str, Tensor]


class CLIPFigures(Callback):
    """Into run_dir/figures and W&B's history.

    similarity.png: a fixed batch of validation images against its texts, at every validation;
    retrieval_{val,test}.png: texts with the nearest images and images with the nearest texts, half of them found, half not;
    zero_shot.png: the accuracy of every held-out group, those of the test split too, after training; zero_shot_test.png;
    joint_map.png: images and texts in one plane, after training.

    Args:
        num_pairs: of the similarity matrix.
        num_examples: texts, and images, of the retrieval table.
    """

    def __init__(self, num_pairs: int = 16, num_examples: int = 6) -> None:
        for name, value in {"num_pairs": num_pairs, "num_examples": num_examples}.items():
            if value < 2:
                raise ValueError(f"{name} is {value}; it must be at least 2")
        self.num_pairs, self.num_examples = num_pairs, num_examples

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, LitCLIP):
            raise ValueError(f"CLIPFigures is for a LitCLIP, and the model is a {type(pl_module).__name__}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitCLIP)
        if trainer.sanity_checking or not _draws(trainer):
            return
        self._similarity(trainer, pl_module.epoch_rows)
        self._retrieval(trainer, pl_module.epoch_rows, "validation", "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitCLIP)
        if _draws(trainer):
            self._retrieval(trainer, pl_module.epoch_rows, "test", "test")
            _zero_shot(trainer, {"test": pl_module.epoch_rows}, pl_module.groups, "zero_shot_test", "test/zero_shot")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitCLIP)
        if not _draws(trainer):
            return
        data: ImageTextDataModule = datamodule(trainer)
        rows = {split: rows_of(trainer, pl_module, split) for split in ("validation", "test") if split in data.splits}
        _zero_shot(trainer, rows, pl_module.groups, "zero_shot", "zero_shot")
        _joint_map(trainer, rows["validation"])

    def _similarity(self, trainer: Trainer, rows: Rows) -> None:
        data: ImageTextDataModule = datamodule(trainer)
        dataset, own = data.dataset("validation"), first_captions(rows)
        chosen = different(own, self.num_pairs)
        texts = rows["texts"][torch.searchsorted(rows["captions"], own[chosen])].float()
        cosines = rows["images"][chosen].float() @ texts.T
        captions = [dataset.caption(int(number)) for number in own[chosen]]
        publish(
            trainer,
            clip_figures.similarity_matrix(pictures(dataset, rows["index"][chosen], data), captions, cosines),
            "similarity",
            "val/similarity",
        )

    def _retrieval(self, trainer: Trainer, rows: Rows, split: str, stage: str) -> None:
        data: ImageTextDataModule = datamodule(trainer)
        dataset, right = data.dataset(split), right_pairs(rows)
        images, texts = rows["images"].float(), rows["texts"].float()
        by_text = examples(texts, images, right.T, self.num_examples)
        by_image = examples(images, texts, right, self.num_examples)
        places = sorted({p for row in by_text for p in row.places} | {row.query for row in by_image})
        shown = pictures(dataset, rows["index"][places], data)
        numbers = {p for row in by_image for p in row.places} | {row.query for row in by_text}
        captions = {place: dataset.caption(int(rows["captions"][place])) for place in numbers}
        heading = f"{split}: the nearest of {len(images):,} images and {len(texts):,} texts"
        figure = clip_figures.retrieval_table(dict(zip(places, shown, strict=True)), captions, by_text, by_image, heading)
        publish(trainer, figure, f"retrieval_{stage}", f"{stage}/retrieval")


def _draws(trainer: Trainer) -> bool:
    return trainer.is_global_zero and RunFolder(trainer.default_root_dir).config.exists()


def _zero_shot(trainer: Trainer, splits: dict[str, Rows], groups: list[str], name: str, key: str) -> None:
    """Nothing where no group has two captions that training knows."""
    bars: list[tuple[str, float, int, int]] = []
    for split, rows in splits.items():
        right = right_pairs(rows)
        for number, group in enumerate(groups):
            chosen, classes = zero_shot_task(rows, right, number)
            if len(classes) > 1:
                found = recall_at(rows["images"][chosen], rows["texts"][classes], right[chosen][:, classes], ks=(1,))[1]
                title = f"{group} ({split})" if len(splits) > 1 else group
                bars.append((title, found, len(chosen), len(classes)))
    if bars:
        names, accuracies, num_images, num_classes = map(list, zip(*bars, strict=True))
        publish(trainer, clip_figures.zero_shot_bars(names, accuracies, num_images, num_classes), name, key)


def _joint_map(trainer: Trainer, rows: Rows) -> None:
    images = rows["images"][:NUM_MAPPED].float().nan_to_num()
    own = torch.searchsorted(rows["captions"], first_captions(rows)[:NUM_MAPPED])
    texts = rows["texts"][own].float().nan_to_num()
    points, shares = principal_components(torch.cat((images, texts)))
    gap = float((images.mean(0) - texts.mean(0)).norm())
    publish(trainer, clip_figures.joint_map(*points.split(len(images)), shares.tolist(), gap), "joint_map")


@torch.no_grad()
def rows_of(trainer: Trainer, module: LitCLIP, split: str) -> Rows:
    """What `epoch_rows` holds after an evaluation of this split, in the trainer's precision."""
    data: ImageTextDataModule = datamodule(trainer)
    dataset = data.dataset(split)
    was_training, parts = module.training, dict[str, list[tuple[Tensor, Tensor]]]()
    module.eval()
    for first in range(0, len(dataset), data.eval_batch_size):
        indices = np.arange(first, min(first + data.eval_batch_size, len(dataset)))
        batch: Any = trainer.precision_plugin.convert_input(dataset[0, indices, indices])
        with trainer.precision_plugin.forward_context():
            loss = module.step(move_data_to_device(batch, module.device))
        for name, (keys, values) in loss.rows.items():
            parts.setdefault(name, []).append((keys.cpu(), values.cpu()))
    module.train(was_training)
    return {name: in_order(pairs) for name, pairs in parts.items()}


def first_captions(rows: Rows) -> Tensor:
    """(I,) the number of each image's first caption, in the order of `rows`' images."""
    places = torch.searchsorted(rows["index"], rows["pairs"][:, 0].contiguous())
    first = torch.zeros(len(rows["index"]), dtype=torch.int64)
    first[places.flip(0)] = rows["pairs"][:, 1].flip(0)
    return first


def different(numbers: Tensor, count: int) -> Tensor:
    """The first `count` places whose numbers have not come before."""
    _, places = np.unique(numbers.numpy(), return_index=True)
    return torch.from_numpy(np.sort(places)[:count])


def pictures(dataset: ImageTextPairs, index: Tensor, data: ImageTextDataModule) -> Tensor:
    chosen = index.numpy()
    return as_shown(dataset[0, chosen, chosen]["images"], data)


def examples(queries: Tensor, candidates: Tensor, right: Tensor, count: int) -> list[Ranked]:
    """What some queries find: the first ones whose nearest candidate is right, and as many whose nearest is wrong."""
    nearest = torch.cat([(part @ candidates.T).nan_to_num(-torch.inf).argmax(1) for part in queries.split(1024)])
    hits = right[torch.arange(len(queries)), nearest]
    found, missed = hits.nonzero()[:, 0].tolist(), (~hits).nonzero()[:, 0].tolist()
    half = max(count // 2, count - len(missed))
    chosen = [*found[:half], *missed[: count - min(half, len(found))]]
    return [ranked(queries[i] @ candidates.T, right[i], i, TOP) for i in chosen]
