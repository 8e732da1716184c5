"""Losses of language models."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def token_cross_entropy(
    logits: Float[Tensor, "*batch V"],
    labels: Int[Tensor, "*batch"],
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Sum of the cross-entropy in nats over the labels that count, and how many they are.

    labels stand where they are predicted: labels[t] belongs to logits[t]. Nothing is shifted here.
    The sum is in float32 (float64 for float64 logits), and 0 with a graph when no label counts.

    Raises: ValueError when labels do not have the shape of logits without its last axis.
    Source: label smoothing as in Szegedy et al. 2016, section 7.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(f"labels of shape {tuple(labels.shape)} do not fit logits of shape {tuple(logits.shape)}")
    total = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).to(torch.promote_types(logits.dtype, torch.float32)),
        labels.reshape(-1).long(),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
    return total, (labels != ignore_index).sum()
