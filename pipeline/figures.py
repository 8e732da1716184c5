"""Tensors in, matplotlib figures out. No global state: figures are made without pyplot."""

from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from datamodules.files import write_atomic


def attention_grid(weights: Tensor, tokens: list[str]) -> Figure:
    """One panel per layer (rows) and head (columns).

    Args:
        weights: (L, H, T, T) attention weights; rows are queries, columns what they attend to.
        tokens: the T tokens, for the axes of the left and the lowest panels.
    """
    num_layers, num_heads, num_tokens, _ = weights.shape
    figure = Figure(figsize=(2.2 * num_heads + 1.2, 2.2 * num_layers + 1.2), layout="constrained")
    axes = figure.subplots(num_layers, num_heads, squeeze=False)
    image = None
    for layer in range(num_layers):
        for head in range(num_heads):
            ax = axes[layer, head]
            image = ax.imshow(weights[layer, head].float().cpu().numpy(), vmin=0.0, vmax=1.0, cmap="magma")
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


def save(figure: Figure, path: Path) -> None:
    """Writes a PNG, whole or not at all."""
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=120))
