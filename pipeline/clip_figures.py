"""Figures of CLIP. Tensors in, matplotlib figures out; pictures are (N, 3, H, W) with channels from 0 to 1."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from torch import Tensor

from pipeline.image_figures import short

RIGHT, WRONG = "tab:green", "tab:red"


class Ranked(NamedTuple):
    """What a query finds, best first: places among the candidates, similarities, and which are right."""

    query: int
    places: list[int]
    scores: list[float]
    right: list[bool]


def similarity_matrix(images: Float[Tensor, "N 3 H W"], captions: Sequence[str], cosines: Float[Tensor, "N N"]) -> Figure:
    """Images (rows) against texts (columns); on the diagonal is what belongs together."""
    count = len(images)
    size = 0.42 * count + 2.5
    figure = Figure(figsize=(size + 1.0, size), layout="constrained")
    ax = figure.subplots()
    values = cosines.float().nan_to_num().numpy()
    shown = ax.imshow(
        values, cmap="viridis", vmin=float(values.min()), vmax=max(float(values.max()), float(values.min()) + 1e-6)
    )
    ax.set_xticks(range(count), [short(caption, 24) for caption in captions], rotation=90, fontsize=8)
    ax.set_yticks([])
    ax.set_ylabel("images", labelpad=34)
    for i, picture in enumerate(images):
        thumbnail = OffsetImage(_pixels(picture), zoom=22 / max(picture.shape[1:]))
        box = AnnotationBbox(thumbnail, (-0.6, i), box_alignment=(1.0, 0.5), frameon=False, pad=0.1, annotation_clip=False)
        ax.add_artist(box)
    best = values.argmax(1)
    ax.plot(best, range(count), "o", markersize=4, markerfacecolor="none", markeredgecolor="white")
    hits = int((best == np.arange(count)).sum())
    ax.set_title(f"cosine similarity; a ring is an image's nearest text: {hits} of {count} its own", fontsize=9)
    figure.colorbar(shown, ax=ax, shrink=0.6)
    return figure


def retrieval_table(
    pictures: dict[int, Float[Tensor, "3 H W"]], captions: dict[int, str], by_text: Sequence[Ranked], by_image: Sequence[Ranked],
    heading: str,
) -> Figure:  # fmt: skip
    """Above, texts with the nearest images; below, images with the nearest texts; right ones green, wrong ones red.

    Args:
        pictures, captions: those that occur, by their places.
        by_text: queries are captions, what they find images.
        by_image: the reverse.
    """
    width = max((len(row.places) for row in by_text), default=1)
    halves = math.ceil(len(by_image) / 2)
    heights = (1.15 * max(1, len(by_text)), 1.15 * max(1, halves))
    figure = Figure(figsize=(1.9 + 1.15 * max(5, width), sum(heights) + 0.9), layout="constrained")
    figure.suptitle(heading, fontsize=10)
    upper, lower = figure.subfigures(2, 1, height_ratios=heights)
    if by_text:
        ratios = [1.6, *[1.0] * width]
        for row, axes in zip(by_text, upper.subplots(len(by_text), 1 + width, squeeze=False, width_ratios=ratios), strict=True):
            axes[0].axis("off")
            axes[0].text(
                1, 0.5, _wrapped(captions[row.query]), ha="right", va="center", fontsize=9, transform=axes[0].transAxes
            )
            for i, ax in enumerate(axes[1:]):
                if i < len(row.places):
                    _picture(ax, pictures[row.places[i]], f"{row.scores[i]:.2f}", RIGHT if row.right[i] else WRONG)
                else:
                    ax.axis("off")
    if by_image:
        cells = lower.subplots(halves, 4, squeeze=False, width_ratios=[1.0, 2.2, 1.0, 2.2]).reshape(-1, 2)
        for number, (left, ax) in enumerate(cells):
            left.axis("off")
            ax.axis("off")
            if number < len(by_image):
                row = by_image[number]
                left.imshow(_pixels(pictures[row.query]), interpolation="nearest")
                for i, (place, score, right) in enumerate(zip(row.places, row.scores, row.right, strict=True)):
                    text = f"{score:.2f}  {short(captions[place], 26)}"
                    y = 0.95 - i * 0.9 / max(1, len(row.places) - 1)
                    ax.text(0, y, text, color=RIGHT if right else WRONG, va="center", fontsize=8, transform=ax.transAxes)
    return figure


def zero_shot_bars(
    groups: Sequence[str], accuracies: Sequence[float], num_images: Sequence[int], num_classes: Sequence[int]
) -> Figure:
    """Accuracy of each group beside chance, one over the number of classes."""
    figure = Figure(figsize=(6.5, 0.55 * len(groups) + 1.6), layout="constrained")
    ax = figure.subplots()
    places = range(len(groups))
    ax.barh(places, accuracies, color="tab:blue", height=0.6)
    ax.plot([1 / n for n in num_classes], places, "|", color="black", markersize=14, label="chance")
    for place, accuracy in zip(places, accuracies, strict=True):
        ax.text(accuracy + 0.01, place, f"{accuracy:.1%}", va="center", fontsize=9)
    names = [
        f"{short(g, 30) or 'all'}\n{n:,} images, {c:,} classes" for g, n, c in zip(groups, num_images, num_classes, strict=True)
    ]
    ax.set_yticks(places, names, fontsize=8)
    ax.invert_yaxis()
    ax.set(xlim=(0, max(1.0, 0.1)), xlabel="zero-shot accuracy")
    ax.set_xlim(0, 1.08)
    ax.legend(loc="lower right", fontsize=8, frameon=False)
    return figure


def joint_map(
    images: Float[Tensor, "N 2"], texts: Float[Tensor, "N 2"], shares: Sequence[float], gap: float, num_lines: int = 40
) -> Figure:
    """Both modalities in the plane of two principal components; lines join the first pairs.

    Args:
        images, texts: of pair number n.
        shares: of the variance, along each axis.
        gap: distance between the means of the two.
    """
    figure = Figure(figsize=(6.5, 5.8), layout="constrained")
    ax = figure.subplots()
    for a, b in zip(images[:num_lines].tolist(), texts[:num_lines].tolist(), strict=True):
        ax.plot((a[0], b[0]), (a[1], b[1]), "-", color="gray", linewidth=0.6, alpha=0.6, zorder=1)
    for points, name, marker in ((images, "images", "o"), (texts, "texts", "^")):
        ax.scatter(*points.T.tolist(), s=14, marker=marker, alpha=0.7, linewidths=0, label=name, zorder=2)
    for axis, name, share in zip((ax.xaxis, ax.yaxis), ("first", "second"), shares, strict=True):
        axis.set_label_text(f"{name} principal component ({share:.1%} of the variance)")
    ax.set_title(f"{len(images)} pairs; the means of images and texts are {gap:.2f} apart", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=9, frameon=False)
    return figure


def _pixels(picture: Float[Tensor, "3 H W"]) -> Any:
    return picture.float().movedim(0, -1).clamp(0, 1).numpy()


def _picture(ax: Any, picture: Tensor, title: str, colour: str) -> None:
    ax.imshow(_pixels(picture), interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=7, pad=2)
    for spine in ax.spines.values():
        spine.set(color=colour, linewidth=2)


def _wrapped(text: str) -> str:
    """A caption in up to three lines of 18 characters."""
    lines, words = [""], short(text, 50).split(" ")
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > 18:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(line if len(line) <= 22 else f"{line[:21]}…" for line in lines[:3])


def ranked(scores: Float[Tensor, "C"], right: Bool[Tensor, "C"], query: int, count: int) -> Ranked:
    """The `count` best candidates of a query."""
    best = scores.nan_to_num(-math.inf).topk(min(count, len(scores)))
    places = best.indices.tolist()
    return Ranked(query, places, scores[best.indices].tolist(), right[best.indices].tolist())
