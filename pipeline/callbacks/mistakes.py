"""The images a classifier is most wrong about, as a picture."""

from typing import cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.batch import IGNORE_INDEX
from datamodules.images import ImageDataModule
from pipeline import image_figures
from pipeline.callbacks.parts import datamodule, publish


class WorstMistakes(Callback):
    """The mistakes with the highest loss, at the end of training and at test.

    run_dir/figures/mistakes_{val,test}.png, and W&B's history: each image with its class, and what it was taken for.

    Args:
        num_images: mistakes shown at most.
    """

    def __init__(self, num_images: int = 24) -> None:
        if num_images < 1:
            raise ValueError(f"num_images is {num_images}; it must be at least 1")
        self.num_images = num_images

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(datamodule(trainer), ImageDataModule):
            raise ValueError(f"WorstMistakes is for ImageDataModule, and the data are of {type(datamodule(trainer)).__name__}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "validation", "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw(trainer, pl_module, "test", "test")

    def _draw(self, trainer: Trainer, pl_module: LightningModule, split: str, stage: str) -> None:
        if not trainer.is_global_zero:
            return
        data: ImageDataModule = datamodule(trainer)
        net = cast(nn.Module, pl_module.net)
        was_training = net.training
        net.eval()
        losses, labels, predictions, probabilities = evaluate(net, data, split, pl_module.device)
        net.train(was_training)
        wrong = ((predictions != labels) & (labels != IGNORE_INDEX)).nonzero().squeeze(1)
        worst = wrong[losses[wrong].argsort(descending=True)][: self.num_images].numpy()
        names = data.classes
        titles = [
            f"{names[labels[i]]}\ntaken for {names[predictions[i]]}, {probabilities[i]:.0%}".replace("$", r"\$") for i in worst
        ]
        heading = f"{len(wrong):,} of {int((labels != IGNORE_INDEX).sum()):,} {split} images wrong"
        heading += ", those of the highest loss" if len(worst) else ""
        images = as_shown(data.dataset(split)[0, worst, worst]["images"], data) if len(worst) else torch.empty(0, 3, 1, 1)
        publish(trainer, image_figures.picture_grid(images, titles, heading), f"mistakes_{stage}", f"{stage}/mistakes")


@torch.no_grad()
def evaluate(net: nn.Module, data: ImageDataModule, split: str, device: torch.device) -> tuple[Tensor, ...]:
    """Loss, label, predicted class and its probability for every image of a split, each (N,)."""
    dataset, parts = data.dataset(split), []
    for first in range(0, len(dataset), data.eval_batch_size):
        indices = np.arange(first, min(first + data.eval_batch_size, len(dataset)))
        batch = dataset[0, indices, indices]
        logits = net(move_data_to_device(batch["images"], device)).float().cpu()
        loss = F.cross_entropy(logits, batch["labels"], reduction="none", ignore_index=IGNORE_INDEX)
        probability, prediction = logits.softmax(-1).max(-1)
        parts.append((loss, batch["labels"], prediction, probability))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def as_shown(images: Tensor, data: ImageDataModule) -> Tensor:
    """Normalised images (B, 3, H, W) as channels from 0 to 1."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (data.mean, data.std))
    return (images.cpu() * std + mean).clamp(0, 1)
