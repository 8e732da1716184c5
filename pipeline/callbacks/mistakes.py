"""The images a classifier is most wrong about, as a picture."""

from typing import cast

import numpy as np
import torch
from jaxtyping import Float, Int
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import move_data_to_device
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.batch import IGNORE_INDEX
from datamodules.images import ImageDataModule
from datamodules.order import EvalOrder
from pipeline import image_figures
from pipeline.callbacks.parts import datamodule, publish
from pipeline.run_folder import RunFolder


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
        if not trainer.is_global_zero or not RunFolder(trainer.default_root_dir).config.exists():
            return
        net = cast(nn.Module, pl_module.net)
        was_training = net.training
        net.eval()
        columns = evaluate(trainer, net, split, pl_module.device)
        net.train(was_training)
        if figure := self._figure(datamodule(trainer), split, *columns):
            publish(trainer, figure, f"mistakes_{stage}", f"{stage}/mistakes")

    def _figure(
        self, data: ImageDataModule, split: str, losses: Tensor, labels: Tensor, predictions: Tensor, probabilities: Tensor
    ) -> Figure | None:
        """None of a split without labels."""
        num_labelled = int((labels != IGNORE_INDEX).sum())
        if not num_labelled:
            return None
        wrong = mistakes(losses, labels, predictions)
        worst = wrong[: self.num_images].numpy()
        heading = f"{len(wrong):,} of {num_labelled:,} {split} images wrong"
        heading += f": the {len(worst)} with the highest loss" if len(wrong) > len(worst) else ""
        images, names = torch.empty(0, 3, 1, 1), [image_figures.short(name) for name in data.classes]
        if len(worst):
            images = as_shown(data.dataset(split)[0, worst, worst]["images"], data)
        titles = [f"{names[labels[i]]} taken for\n{names[predictions[i]]} ({probabilities[i]:.0%})" for i in worst]
        return image_figures.picture_grid(images, titles, heading)


@torch.no_grad()
def evaluate(trainer: Trainer, net: nn.Module, split: str, device: torch.device) -> tuple[Tensor, ...]:
    """Loss, label, predicted class and its probability of every image that the trainer evaluates in a split, each (N,)."""
    data: ImageDataModule = datamodule(trainer)
    loader = data.val_dataloader() if split == "validation" else data.test_dataloader()
    num_samples = cast(EvalOrder, loader.sampler).num_samples  # of all ranks together
    dataset, parts = data.dataset(split), []
    for first in range(0, num_samples, data.eval_batch_size):
        indices = np.arange(first, min(first + data.eval_batch_size, num_samples))
        batch = dataset[0, indices, indices]
        with trainer.precision_plugin.forward_context():  # else the figure and the accuracy may differ
            logits = net(as_computed(trainer, batch["images"], device)).float().cpu()
        loss = F.cross_entropy(logits, batch["labels"], reduction="none", ignore_index=IGNORE_INDEX)
        probability, prediction = logits.softmax(-1).max(-1)
        parts.append((loss, batch["labels"], prediction, probability))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def mistakes(losses: Float[Tensor, "N"], labels: Int[Tensor, "N"], predictions: Int[Tensor, "N"]) -> Int[Tensor, "M"]:
    """Which images are taken for a wrong class, from the highest loss to the lowest; those without a label are left out."""
    wrong = ((predictions != labels) & (labels != IGNORE_INDEX)).nonzero().squeeze(1)
    return wrong[losses[wrong].argsort(descending=True, stable=True)]


def as_computed(trainer: Trainer, images: Tensor, device: torch.device) -> Tensor:
    """Images in the type of the network's numbers, where it is."""
    return move_data_to_device(trainer.precision_plugin.convert_input(images), device)


def as_shown(images: Tensor, data: ImageDataModule) -> Tensor:
    """Normalised images (B, 3, H, W) as channels from 0 to 1."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (data.mean, data.std))
    return (images.cpu() * std + mean).clamp(0, 1)
