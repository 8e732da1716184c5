"""What a ViT has learned, as pictures."""

from typing import cast

import numpy as np
import torch
from jaxtyping import Float
from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.batch import ImageBatch
from datamodules.images import ImageDataModule
from lit_models.nn.vit import ViT
from pipeline import image_figures
from pipeline.callbacks.mistakes import as_computed, as_shown
from pipeline.callbacks.parts import datamodule, publish

NUM_FILTERS = 28
NUM_MEASURED = 128
"""Validation images over which attention distances are averaged, as in the paper."""


class ViTFigures(Callback):
    """After training, in run_dir/figures and W&B's history:

    class_attention.png: where the class token looks (without one: all tokens on average), in the last layer and by rollout;
    position_similarity.png: cosine similarities of the position embeddings;
    attention_distance.png: how far each head looks, by layer, over 128 validation images;
    patch_filters.png: the principal components of the patch embedding's filters, or the first convolution's of a hybrid.

    Source: Dosovitskiy et al. 2021, figures 6 and 7, appendix D.7; the rollout is that of Abnar and Zuidema 2020, section 3.

    Args:
        num_images: validation images, of different classes as far as there are, whose attention is shown.
    """

    def __init__(self, num_images: int = 6) -> None:
        if num_images < 1:
            raise ValueError(f"num_images is {num_images}; it must be at least 1")
        self.num_images = num_images

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module.net, ViT) or not isinstance(datamodule(trainer), ImageDataModule):
            raise ValueError(f"ViTFigures is for a ViT on images, and the network is a {type(pl_module.net).__name__}")

    @torch.no_grad()
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        net, data = cast(ViT, pl_module.net), datamodule(trainer)
        was_training = net.training
        net.eval()
        dataset = data.dataset("validation")
        indices = of_different_classes(dataset.labels, max(self.num_images, NUM_MEASURED))
        distances = torch.zeros(len(net.blocks), net.blocks[0].attention.num_heads)
        for first in range(0, len(indices), self.num_images):
            chosen = indices[first : first + self.num_images]
            batch = dataset[0, chosen, chosen]
            maps = net.attention_maps(as_computed(trainer, batch["images"], pl_module.device)).float().cpu()  # (L, B, H, T, T)
            distances += mean_distances(maps, net.grid, net.stem.patch_size) * (len(chosen) / len(indices))
            if first == 0:
                publish(trainer, attention_figure(batch, maps, net.grid, data), "class_attention")
        net.train(was_training)
        publish(trainer, image_figures.distance_by_layer(distances), "attention_distance")
        similarity = similarities(net.position_grid.float().cpu())
        publish(trainer, image_figures.similarity_grid(similarity), "position_similarity")
        publish(trainer, image_figures.filter_grid(*filters(net)), "patch_filters")


def attention_figure(
    batch: ImageBatch, maps: Float[Tensor, "L B H T T"], grid: tuple[int, int], data: ImageDataModule
) -> Figure:
    """The images of a batch, and where the class token looks, in the last layer and by rollout."""
    looks = [on_patches(weights, grid) for weights in (maps[-1].mean(1), rollout(maps))]
    titles = [image_figures.short(data.classes[label]) if label >= 0 else "" for label in batch["labels"]]
    return image_figures.attention_over_images(as_shown(batch["images"], data), looks, ("last layer", "rollout"), titles)


def of_different_classes(labels: np.ndarray, count: int) -> np.ndarray:
    """The first sample of each class, then the second of each, and so on."""
    counts: dict[int, int] = {}
    turns = []
    for label in labels.tolist():
        turns.append(counts.get(label, 0))
        counts[label] = turns[-1] + 1
    return np.argsort(np.array(turns), kind="stable")[:count]


def on_patches(weights: Float[Tensor, "B T T"], grid: tuple[int, int]) -> Float[Tensor, "B h w"]:
    """What the class token gives to each patch; without one, what all tokens give on average."""
    num_patches = grid[0] * grid[1]
    has_class = weights.shape[-1] > num_patches
    row = weights[:, 0, 1:] if has_class else weights.mean(1)
    return row.unflatten(1, grid)


def rollout(maps: Float[Tensor, "L B H T T"]) -> Float[Tensor, "B T T"]:
    """The layers' attention, half of it the residual path, multiplied from the first to the last; rows sum to 1."""
    eye = torch.eye(maps.shape[-1])
    total = eye
    for weights in maps.mean(2):
        total = (0.5 * weights + 0.5 * eye) @ total
    return total


def mean_distances(maps: Float[Tensor, "L B H T T"], grid: tuple[int, int], patch_size: int) -> Float[Tensor, "L H"]:
    """Distance in pixels from a patch to those it attends to, by the weights, over all patches and images."""
    num_patches = grid[0] * grid[1]
    weights = maps[..., -num_patches:, -num_patches:]
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)  # a query may look at the class token alone
    place = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).view(-1, 2) * float(patch_size)
    return (weights * torch.cdist(place, place)).sum(-1).mean((1, 3))


def similarities(positions: Float[Tensor, "1 h w D"]) -> Float[Tensor, "h w h w"]:
    unit = F.normalize(positions[0], dim=-1)
    return torch.einsum("hwd,ijd->hwij", unit, unit)


def filters(net: ViT) -> tuple[Float[Tensor, "K 3 p p"], str]:
    """Pictures of what the stem looks for, and a heading; the largest weight of each component is positive."""
    convolution = next(module for module in net.stem.modules() if isinstance(module, nn.Conv2d))
    kernels = convolution.weight.float().cpu()  # (D, 3, p, p)
    if convolution.kernel_size != (net.stem.patch_size, net.stem.patch_size):
        return kernels[:NUM_FILTERS], "filters of the first convolution"
    flat = kernels.flatten(1)
    _, _, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    components = components[: min(NUM_FILTERS, max(1, len(flat) - 1))]  # what is centred varies in one direction less
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    return (components * largest.sign()).unflatten(1, kernels.shape[1:]), "principal components of the patch filters"
