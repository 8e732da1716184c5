"""What a CLIP has learned, in pictures."""

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.nn import functional as F

from datamodules.image_text import ImageTextDataModule
from lit_models.clip import LitCLIP
from pipeline import clip_figures
from pipeline.callbacks.clip_rows import CLIPFigure, SplitFeatures, encoded
from pipeline.callbacks.embeddings import principal_components
from pipeline.callbacks.parts import datamodule, publish
from pipeline.clip_figures import Bar


class SimilarityMatrix(CLIPFigure):
    """A fixed batch of validation images against its captions, at every validation.

    run_dir/figures/similarity.png, and W&B's history.

    Args:
        num_pairs: pairs shown at most, of different captions.
    """

    def __init__(self, num_pairs: int = 16) -> None:
        self.num_pairs = at_least("num_pairs", num_pairs, 1)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitCLIP)
        if not self.draws(trainer) or (found := SplitFeatures.of(pl_module.epoch_rows, "validation")) is None:
            return
        data, chosen = datamodule(trainer), found.fixed_pairs(self.num_pairs)
        texts = found.first[chosen]
        cosines, right = found.texts[texts] @ found.images[chosen].T, found.right[chosen][:, texts].T
        pictures, captions = found.pictures(data, chosen), found.captions(data, texts)
        publish(trainer, clip_figures.similarity_matrix(pictures, captions, cosines, right), "similarity", "val/similarity")


class RetrievalTable(CLIPFigure):
    """A few captions with the nearest images and images with the nearest captions, after training and at test.

    run_dir/figures/retrieval_{val,test}.png, and W&B's history. Half of the queries have a right one as the nearest, half not.

    Args:
        num_examples: captions, and images, at most.
        num_nearest: what is shown for each.
    """

    def __init__(self, num_examples: int = 6, num_nearest: int = 5) -> None:
        self.num_examples = at_least("num_examples", num_examples, 1)
        self.num_nearest = at_least("num_nearest", num_nearest, 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "validation", "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "test", "test")

    def _draw(self, trainer: Trainer, pl_module: LightningModule, split: str, stage: str) -> None:
        assert isinstance(pl_module, LitCLIP)
        if not self.draws(trainer) or (found := SplitFeatures.of(pl_module.epoch_rows, split)) is None:
            return
        data: ImageTextDataModule = datamodule(trainer)
        by_text, by_image = (found.examples(way, self.num_examples, self.num_nearest) for way in (True, False))
        own = [int(found.first[row.query]) for row in by_image]
        places = sorted({p for row in by_text for p in row.places} | {row.query for row in by_image})
        texts = sorted({p for row in by_image for p in row.places} | {row.query for row in by_text} | set(own))
        pictures = dict(zip(places, found.pictures(data, torch.tensor(places)), strict=True))
        captions = dict(zip(texts, found.captions(data, torch.tensor(texts)), strict=True))
        sizes = f"{len(found.images):,} images and {len(found.texts):,} captions"
        heading = f"{split}: captions and their nearest images, images and their nearest captions, among {sizes}"
        figure = clip_figures.retrieval_table(pictures, captions, by_text, by_image, own, heading)
        publish(trainer, figure, f"retrieval_{stage}", f"{stage}/retrieval")


class ZeroShotBars(CLIPFigure):
    """Zero-shot accuracy of each group beside chance: run_dir/figures/ and W&B's history.

    zero_shot_{val,test}.png at every validation and test; zero_shot.png after training, with the groups of both splits.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.draws(trainer):
            self._publish(trainer, self._evaluated(pl_module, "validation"), "zero_shot_val", "val/zero_shot_groups")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.draws(trainer):
            self._publish(trainer, self._evaluated(pl_module, "test"), "zero_shot_test", "test/zero_shot_groups")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitCLIP)
        if not self.draws(trainer):
            return
        bars = self._evaluated(pl_module, "validation")
        if "test" in datamodule(trainer).splits and (found := encoded(trainer, pl_module, "test")) is not None:
            bars += found.bars(pl_module.groups)
        self._publish(trainer, bars, "zero_shot", "zero_shot")

    def _evaluated(self, pl_module: LightningModule, split: str) -> list[Bar]:
        assert isinstance(pl_module, LitCLIP)
        found = SplitFeatures.of(pl_module.epoch_rows, split)
        return [] if found is None else found.bars(pl_module.groups)

    def _publish(self, trainer: Trainer, bars: list[Bar], name: str, key: str) -> None:
        if bars:
            publish(trainer, clip_figures.zero_shot_bars(bars), name, key)


class JointMap(CLIPFigure):
    """Validation images and their first captions in the plane of two principal components, after training.

    run_dir/figures/joint_map.png, and W&B's history. Source of the gap: Liang et al. 2022 (Mind the gap), section 4.1.

    Args:
        num_pairs: pairs shown at most, evenly over the split.
    """

    def __init__(self, num_pairs: int = 500) -> None:
        self.num_pairs = at_least("num_pairs", num_pairs, 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitCLIP)
        if not self.draws(trainer) or (found := SplitFeatures.of(pl_module.epoch_rows, "validation")) is None:
            return
        count = min(self.num_pairs, len(found.images))
        chosen = torch.from_numpy(np.linspace(0, len(found.images) - 1, count).astype(np.int64))
        images, texts = found.images[chosen], found.texts[found.first[chosen]]
        points, shares = principal_components(torch.cat((images, texts)).nan_to_num())
        missing = 2 - points.shape[1]  # of a space of one dimension
        points, shares = F.pad(points, (0, missing)), F.pad(shares, (0, missing))
        gap = float((images.mean(0) - texts.mean(0)).norm())
        figure = clip_figures.joint_map(points[:count], points[count:], shares.tolist(), gap)
        publish(trainer, figure, "joint_map")


def at_least(name: str, value: int, lowest: int) -> int:
    if value < lowest:
        raise ValueError(f"{name} is {value}; it must be at least {lowest}")
    return value
