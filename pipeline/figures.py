"""Tensors in, matplotlib figures out. No global state: figures are made without pyplot."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from datamodules.files import write_atomic


def attention_grid(weights: Tensor, tokens: list[str], brightest: float = 1.0) -> Figure:
    """One panel per layer (rows) and head (columns).

    Args:
        weights: (L, H, T, T) attention weights; rows are queries, columns what they attend to.
        tokens: the T tokens, for the axes of the left and the lowest panels.
        brightest: the weight that has the brightest colour.
    """
    num_layers, num_heads, num_tokens, _ = weights.shape
    figure = Figure(figsize=(2.2 * num_heads + 1.2, 2.2 * num_layers + 1.2), layout="constrained")
    axes = figure.subplots(num_layers, num_heads, squeeze=False)
    image = None
    for layer in range(num_layers):
        for head in range(num_heads):
            ax = axes[layer, head]
            image = ax.imshow(weights[layer, head].float().cpu().numpy(), vmin=0.0, vmax=brightest, cmap="magma")
            ax.set_xticks(range(num_tokens) if layer == num_layers - 1 else [])
            ax.set_yticks(range(num_tokens) if head == 0 else [])
            if layer == num_layers - 1:
                ax.set_xticklabels(tokens, rotation=90, fontsize=6)
            if head == 0:
                ax.set_yticklabels(tokens, fontsize=6)
            ax.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=7)
    assert image is not None
    figure.colorbar(image, ax=axes, shrink=0.5, label="attention weight")
    return figure


def confusion_grid(confusion: Tensor, names: Sequence[str]) -> Figure:
    """How often each class was taken for each; up to 20 classes with counts and the shares of their row as numbers.

    Args:
        confusion: (C, C) counts; rows are the true classes, columns the predicted ones.
        names: the C classes.
    """
    num_classes, total = len(names), int(confusion.sum())
    shares = confusion / confusion.sum(1, keepdim=True).clamp(min=1)
    numbered = num_classes <= 20
    size = 0.55 * max(num_classes, 4) if numbered else min(14.0, max(8.0, 0.16 * num_classes))
    figure = Figure(figsize=(size + 2.5, size + 1.5), layout="constrained")
    ax = figure.subplots()
    image = ax.imshow(shares.numpy(), vmin=0.0, vmax=1.0, cmap="Blues")
    shown = range(0, num_classes, -(-num_classes // 80))  # names that would overlap are left out
    labels = [_label(names[i]) for i in shown]
    ax.set_xticks(shown, labels, rotation=90, fontsize=8 if numbered else 6)
    ax.set_yticks(shown, labels, fontsize=8 if numbered else 6)
    ax.set_xlabel("predicted class")
    ax.set_ylabel("true class")
    if numbered:
        for row in range(num_classes):
            for column in range(num_classes):
                share, count = float(shares[row, column]), int(confusion[row, column])
                colour = "white" if share > 0.5 else "black"
                text = f"{count}\n{share:.0%}" if count else "0"
                ax.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
    ax.set_title(f"{int(confusion.trace()) / max(total, 1):.1%} of {total:,} right", fontsize=9)
    figure.colorbar(image, ax=ax, shrink=0.6, label="share of the true class")
    return figure


def scatter(points: Tensor, shares: Sequence[float], labels: Sequence[int], names: Sequence[str]) -> Figure:
    """Points in the plane of two principal components, coloured by class, with a legend of the classes that occur.

    Args:
        points: (N, 2).
        shares: of the variance, along each axis.
        labels: the N points' classes.
        names: the classes; without any there is one colour and no legend.
    """
    colour = colormaps["tab10" if len(names) <= 10 else "tab20" if len(names) <= 20 else "turbo"]
    if len(names) > 20:
        colour = colour.resampled(len(names))
    present = [i for i in range(len(names)) if i in set(labels)]
    num_columns = -(-len(present) // 30)
    figure = Figure(figsize=(6.5 + 1.8 * num_columns, 5.5), layout="constrained")
    ax = figure.subplots()
    x, y = points.T.tolist()
    ax.scatter(x, y, s=18, c=[colour(i) for i in labels], alpha=0.7, linewidths=0)
    for axis, name, share in zip((ax.xaxis, ax.yaxis), ("first", "second"), shares, strict=True):
        axis.set_label_text(f"{name} principal component ({share:.1%} of the variance)")
    if names:
        handles = [ax.scatter([], [], s=24, color=colour(i), linewidths=0) for i in present]
        texts = [_label(names[i]) for i in present]
        figure.legend(handles, texts, loc="outside right upper", fontsize=8, ncols=num_columns, frameon=False)
    return figure


def _label(name: str) -> str:
    """A class name for an axis or a legend: no longer than 24 characters, a dollar no formula, an underscore not private."""
    name = name if len(name) <= 24 else f"{name[:23]}…"
    return ("\u200b" if name.startswith("_") else "") + name.replace("$", r"\$")


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG, whole or not at all."""
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=120))
