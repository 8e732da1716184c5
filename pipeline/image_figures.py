"""Figures of image classifiers: tensors in, matplotlib figures out."""

import math
from collections.abc import Sequence

from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lit_models.metrics.calibration import UNIT, calibration_error

MAX_PANELS = 16
"""Rows and columns of small pictures at most."""


def picture_grid(images: Float[Tensor, "N 3 H W"], titles: Sequence[str], heading: str) -> Figure:
    """Pictures with a title each; without any, the heading alone.

    Args:
        images: channels from 0 to 1.
    """
    columns = max(1, min(len(images), 6))
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(max(5.0, 1.8 * columns), (1.7 * _aspect(images) + 0.4) * rows + 0.5), layout="constrained")
    figure.suptitle(heading, fontsize=10)
    for i, ax in enumerate(figure.subplots(rows, columns, squeeze=False).flat if rows else ()):
        ax.axis("off")
        if i < len(images):
            _show(ax, images[i])
            ax.set_title(titles[i], fontsize=7)
    return figure


def reliability(bins: Int[Tensor, "3 bins"]) -> Figure:
    """Accuracy of the images in each bin of confidence beside the diagonal, and below it the bins' shares of all images.

    Args:
        bins: of `calibration_bins`: samples, right ones, confidence.
    """
    samples, right, confidence = bins.double()
    num_bins, filled = len(samples), samples > 0
    middle = [(i + 0.5) / num_bins for i in range(num_bins)]
    figure = Figure(figsize=(5, 5.7), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    accuracy = (right / samples.clamp(min=1)).tolist()
    upper.bar(middle, accuracy, width=0.95 / num_bins, color="tab:blue", label="accuracy")
    mean = (confidence / UNIT / samples.clamp(min=1))[filled].tolist()
    at_mean = [value for value, is_filled in zip(accuracy, filled, strict=True) if is_filled]
    upper.plot([0, 1], [0, 1], "--", color="tab:orange", label="as sure as right")
    upper.plot(mean, at_mean, "o", color="black", markersize=4, clip_on=False, zorder=3, label="at the bin's mean confidence")
    upper.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    figure.legend(loc="outside lower center", fontsize=8, frameon=False, ncols=3)
    upper.set_title(f"expected calibration error {calibration_error(bins):.3f}, {int(samples.sum()):,} images", fontsize=9)
    lower.bar(middle, (samples / samples.sum()).tolist(), width=0.95 / num_bins, color="tab:gray")
    lower.set(xlabel="confidence: probability of the likeliest class", ylabel="share of images")
    return figure


def attention_over_images(
    images: Float[Tensor, "N 3 H W"], maps: Sequence[Float[Tensor, "N h w"]], names: Sequence[str], titles: Sequence[str]
) -> Figure:
    """A row for each image: itself, then each map laid over it, bright where the weight is high (each map by its own largest).

    Args:
        images: channels from 0 to 1.
    """
    size = 1.9 * (1 + len(maps)), 1.85 * _aspect(images) * len(images) + 0.4
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(images), 1 + len(maps), squeeze=False)
    height, width = images.shape[2:]
    for i, row in enumerate(axes):
        for ax in row:
            ax.set_xticks([])
            ax.set_yticks([])
        _show(row[0], images[i])
        row[0].set_ylabel(titles[i], fontsize=8)
        for ax, values in zip(row[1:], maps, strict=True):
            grey = images[i].mean(0).tolist()
            ax.imshow(grey, cmap="gray", vmin=0, vmax=1)
            extent = (-0.5, width - 0.5, height - 0.5, -0.5)
            ax.imshow(values[i].tolist(), cmap="inferno", alpha=0.65, vmin=0, extent=extent, interpolation="bilinear")
    for ax, name in zip(axes[0], ("image", *names), strict=True):
        ax.set_title(name, fontsize=8)
    return figure


def similarity_grid(similarity: Float[Tensor, "h w h w"]) -> Figure:
    """At each place a picture: how similar its position embedding is to those of all places.

    Of more than MAX_PANELS rows or columns every second, third ... is shown.
    """
    h, w = similarity.shape[:2]
    step = math.ceil(max(h, w) / MAX_PANELS)
    rows, columns = range(0, h, step), range(0, w, step)
    figure = Figure(figsize=(0.55 * len(columns) + 1.6, 0.55 * len(rows) + 0.9), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            ax = axes[i, j]
            image = ax.imshow(similarity[row, column].tolist(), cmap="viridis", vmin=-1, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
            if j == 0:
                ax.set_ylabel(row + 1, fontsize=7)
            if i == len(rows) - 1:
                ax.set_xlabel(column + 1, fontsize=7)
    figure.supxlabel("column of patches", fontsize=8)
    figure.supylabel("row of patches", fontsize=8)
    figure.suptitle("similarity of position embeddings", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.7, label="cosine similarity")
    return figure


def distance_by_layer(distances: Float[Tensor, "L H"]) -> Figure:
    """A point for each head: how far it looks on average, by layer."""
    num_layers, num_heads = distances.shape
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    ax = figure.subplots()
    layers = range(1, num_layers + 1)
    for head in range(num_heads):
        ax.plot(layers, distances[:, head].tolist(), "o", markersize=5, alpha=0.8, label=f"head {head + 1}")
    ax.plot(layers, distances.mean(1).tolist(), "-", color="black", linewidth=1, label="mean")
    highest = max(1.0, 1.08 * float(distances.max()))
    ax.set(xlabel="layer", ylabel="mean attention distance in pixels", xticks=layers, ylim=(0, highest))
    if num_heads <= 8:
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def filter_grid(filters: Float[Tensor, "K 3 p p"], heading: str) -> Figure:
    """Filters as small colour pictures, each stretched from its lowest value to its highest."""
    low, high = filters.amin((1, 2, 3), keepdim=True), filters.amax((1, 2, 3), keepdim=True)
    columns = min(len(filters), 7)
    rows = math.ceil(len(filters) / columns)
    figure = Figure(figsize=(0.8 * columns + 0.4, 0.8 * rows + 0.6), layout="constrained")
    figure.suptitle(heading, fontsize=9)
    for i, ax in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        ax.axis("off")
        if i < len(filters):
            _show(ax, (filters[i] - low[i]) / (high[i] - low[i]).clamp(min=1e-12))
    return figure


def short(name: str, length: int = 18) -> str:
    """A name above a picture: cut to so many characters, a dollar no formula."""
    return (name if len(name) <= length else f"{name[: length - 1]}…").replace("$", r"\$")


def _aspect(images: Float[Tensor, "N 3 H W"]) -> float:
    """Height by width, within what leaves a title room."""
    return min(2.0, max(0.6, images.shape[2] / images.shape[3]))


def _show(ax: Axes, image: Float[Tensor, "3 H W"]) -> None:
    ax.imshow(image.movedim(0, -1).clamp(0, 1).tolist(), interpolation="nearest")
