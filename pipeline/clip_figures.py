"""Figures of CLIP: tensors in, matplotlib figures out. Pictures have channels from 0 to 1."""

import math
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from pipeline.image_figures import short

RIGHT, WRONG = "tab:green", "tab:red"
NUMBERED = 20
"""Rows of a similarity matrix up to which each cell has its number."""


class Ranked(NamedTuple):
    """What a query finds, best first: places among the candidates, similarities, which are right; and the first right rank."""

    query: int
    places: list[int]
    scores: list[float]
    right: list[bool]
    rank: int


class Bar(NamedTuple):
    """Zero-shot accuracy of a group of a split; chance is that of a guess among the classes."""

    group: str
    split: str
    accuracy: float
    chance: float
    num_images: int
    num_classes: int


def similarity_matrix(
    pictures: Float[Tensor, "N 3 H W"], captions: Sequence[str], cosines: Float[Tensor, "N N"], right: Bool[Tensor, "N N"]
) -> Figure:
    """Texts (rows) against images (columns); right cells have a frame, an image's nearest text is bold.

    Colours go from the lowest value to the highest, but over 0.1 at least: what differs by rounding alone has one colour.
    """
    count, numbered = len(pictures), len(pictures) <= NUMBERED
    cell = 0.46 if numbered else min(0.25, 14 / count)  # inches; by hand, since automatic layouts cut long captions off
    size, tall, wide = cell * count, max(cell * (count + 1.1) + 0.6, 2.2), max(cell * count + 3.3, 6.2)
    figure = Figure(figsize=(wide, tall))
    ax = figure.add_axes((2.1 / wide, 0.1 / tall, size / wide, cell * (count + 1.1) / tall))
    scale = figure.add_axes((1 - 0.9 / wide, 0.1 / tall, 0.15 / wide, min(3.5, tall - 0.7) / tall))
    known = cosines.float()[cosines.isfinite()]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    wider = max(0.0, 0.1 - (high - low)) / 2
    low, high = low - wider, high + wider
    shown = ax.imshow(cosines.float().numpy(), cmap="Blues", vmin=low, vmax=high)
    best = nearest(cosines.float().T)  # of each image
    for row, column in right.nonzero().tolist():
        frame = Rectangle((column - 0.44, row - 0.44), 0.88, 0.88, fill=False, edgecolor="tab:orange", linewidth=2)
        ax.add_patch(frame)
    for row, column in ((r, c) for r in range(count) for c in range(count) if numbered):
        value = float(cosines[row, column])
        colour = "white" if value > low + 0.6 * (high - low) else "black"
        weight = "bold" if best[column] == row else "normal"
        ax.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour, weight=weight)
    ax.set_yticks(range(count), [short(caption, 26) for caption in captions], fontsize=8 if numbered else 6)
    ax.set_xticks([])
    for i, picture in enumerate(pictures):  # in a row above the cells
        y, x = (0.44 * n / max(picture.shape[1:]) for n in picture.shape[1:])
        _show(ax, picture, (i - x, i + x, -1.1 + y, -1.1 - y))
    ax.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -1.6))
    ax.spines[:].set_visible(False)
    hits = int(right[best, torch.arange(count)].sum())
    bold = "bold: " if numbered else ""
    heading = f"framed: what belongs together; {bold}an image's nearest text, {hits} of {count} right"
    figure.suptitle(heading, fontsize=9, y=1 - 0.1 / tall, va="top")
    figure.colorbar(shown, cax=scale, label="cosine similarity")
    return figure


def retrieval_table(
    pictures: dict[int, Float[Tensor, "3 H W"]], captions: dict[int, str], by_text: Sequence[Ranked],
    by_image: Sequence[Ranked], own: Sequence[int], heading: str,
) -> Figure:  # fmt: skip
    """Left, texts and the nearest images; right, images and the nearest texts. Right ones are green, wrong ones red.

    Args:
        pictures, captions: those that occur, by their places.
        by_text: queries are captions, what they find images.
        by_image: the reverse.
        own: a right caption of each of these images.
    """
    rows, width = max(len(by_text), len(by_image), 1), max((len(found.places) for found in by_text), default=1)
    figure = Figure(figsize=(6.3 + 0.95 * width, 1.3 * rows + 0.9), layout="constrained")
    figure.suptitle(heading, fontsize=10)
    # A column without content parts the halves.
    grid = figure.subplots(rows, width + 4, squeeze=False, width_ratios=[1.75, *[1.0] * width, 0.3, 1.0, 2.4])
    for ax in grid.flat:
        ax.axis("off")
    for found, axes in zip(by_text, grid, strict=False):
        lines = textwrap.wrap(short(captions[found.query], 54), 18)
        middle = 0.55 - 0.055 * len(lines)
        _write(axes[0], 0.97, middle, "\n".join(lines), ha="right", va="bottom", fontsize=9)
        _write(axes[0], 0.97, middle - 0.07, f"first right: {found.rank:,}", ha="right", va="top", fontsize=7, color="gray")
        for ax, place, score, right in zip(axes[1:], *found[1:4], strict=False):
            _show(ax, pictures[place])
            ax.axis("on")
            ax.set(xticks=[], yticks=[])
            ax.set_title(f"{score:.2f}", fontsize=8, pad=3, color=RIGHT if right else WRONG)
            ax.spines[:].set(color=RIGHT if right else WRONG, linewidth=2.5)
    for found, place, axes in zip(by_image, own, grid, strict=False):
        _show(axes[-2], pictures[found.query])
        for i, (text, score, right) in enumerate(zip(*found[1:4], strict=True)):
            line = f"{score:.2f}  {short(captions[text], 32)}"
            _write(axes[-1], 0.0, 0.95 - 0.17 * i, line, va="center", fontsize=8, color=RIGHT if right else WRONG)
        truth = f"first right: {found.rank:,}  {short(captions[place], 24)}"
        _write(axes[-1], 0.0, 0.95 - 0.17 * len(found.places), truth, va="center", fontsize=7, color="gray")
    return figure


def zero_shot_bars(bars: Sequence[Bar]) -> Figure:
    """A bar for each group, coloured by split, with its accuracy on the right and a mark at chance."""
    figure = Figure(figsize=(7.5, min(100.0, 0.55 * len(bars) + 1.5)), layout="constrained")  # a PNG has its limits
    ax, splits = figure.subplots(), list(dict.fromkeys(bar.split for bar in bars))
    colours = {split: f"C{i}" for i, split in enumerate(splits)}
    ax.barh(range(len(bars)), [bar.accuracy for bar in bars], height=0.6, color=[colours[bar.split] for bar in bars])
    ax.plot([bar.chance for bar in bars], range(len(bars)), "|", color="black", markersize=14, markeredgewidth=1.5)
    for place, bar in enumerate(bars):
        ax.text(1.02, place, f"{bar.accuracy:.1%} (chance {bar.chance:.1%})", va="center", fontsize=8)
    names = [f"{short(bar.group, 30) or 'all'}\n{bar.num_images:,} images, {bar.num_classes:,} classes" for bar in bars]
    ax.set_yticks(range(len(bars)), names, fontsize=8)
    ax.set(xlim=(0, 1), ylim=(len(bars) - 0.5, -0.5), xlabel="zero-shot accuracy")
    marks = [*(Patch(color=colours[split]) for split in splits), *ax.lines]
    figure.legend(marks, [*splits, "chance"], loc="outside lower center", fontsize=8, frameon=False, ncols=len(marks))
    return figure


def joint_map(
    images: Float[Tensor, "N 2"], texts: Float[Tensor, "N 2"], shares: Sequence[float], gap: float, num_lines: int = 30
) -> Figure:
    """Both modalities in the plane of two principal components; thin lines join about `num_lines` pairs.

    Args:
        images, texts: row n of both is pair n.
        shares: of the variance, along each axis.
        gap: distance between the means of the two.
    """
    figure = Figure(figsize=(7, 5.8), layout="constrained")
    ax, step = figure.subplots(), math.ceil(len(images) / num_lines)
    for number, (image, text) in enumerate(zip(images[::step].tolist(), texts[::step].tolist(), strict=True)):
        name = "" if number else "a pair"
        ax.plot(*zip(image, text, strict=True), "-", color="black", linewidth=0.6, alpha=0.6, label=name)
    for points, name, marker in ((images, "images", "o"), (texts, "texts", "^")):
        x, y = points.T.tolist()
        ax.scatter(x, y, s=16, marker=marker, alpha=0.6, linewidths=0, label=name)
    for axis, name, share in zip((ax.xaxis, ax.yaxis), ("first", "second"), shares, strict=True):
        axis.set_label_text(f"{name} principal component ({share:.1%} of the variance)")
    ax.set_title(f"{len(images):,} pairs; modality gap {gap:.2f} (distance between the means of images and texts)", fontsize=9)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def ranked(scores: Float[Tensor, "C"], right: Bool[Tensor, "C"], query: int, count: int) -> Ranked:
    """The `count` best candidates of a query; a similarity that is not a number counts as the lowest."""
    order = scores.nan_to_num(-math.inf).argsort(descending=True, stable=True)
    best, rank = order[:count], int(right[order].int().argmax()) + 1
    return Ranked(query, best.tolist(), scores[best].tolist(), right[best].tolist(), rank)


def nearest(scores: Float[Tensor, "Q C"]) -> Tensor:
    """(Q,) the place of each query's best candidate, as `ranked` has it."""
    return scores.nan_to_num(-math.inf).argmax(1)


def _write(ax: Axes, x: float, y: float, text: str, **style: object) -> None:
    ax.text(x, y, text, transform=ax.transAxes, **style)  # type: ignore[arg-type]


def _show(ax: Axes, picture: Float[Tensor, "3 H W"], extent: tuple[float, float, float, float] | None = None) -> None:
    ax.imshow(picture.float().movedim(0, -1).nan_to_num().clamp(0, 1).numpy(), interpolation="nearest", extent=extent)
