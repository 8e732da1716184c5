"""Whether a classifier's probabilities are right."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

UNIT = 2**30
"""A confidence of 1 as a whole number, so that sums over any batches and ranks are exact."""


def calibration_bins(
    logits: Float[Tensor, "B C"], labels: Int[Tensor, "B"], num_bins: int = 15, *, ignore_index: int = -100
) -> Int[Tensor, "3 bins"]:
    """Samples, right ones and confidence (in UNITs) in equal bins of the confidence, the likeliest class's probability."""
    confidence, prediction = logits.double().softmax(-1).max(-1)
    counted = labels != ignore_index
    confidence, right = confidence[counted], (prediction == labels)[counted]
    place = (confidence * num_bins).ceil().long().clamp(1, num_bins) - 1  # the bin's upper end belongs to it
    values = torch.stack((torch.ones_like(place), right.long(), (confidence * UNIT).round().long()))
    return torch.zeros(3, num_bins, dtype=torch.long, device=logits.device).index_add_(1, place, values)


def calibration_error(bins: Int[Tensor, "3 bins"]) -> float:
    """Mean over the samples of |accuracy - confidence| of their bin; NaN without samples.

    Source: Guo et al. 2017, "On calibration of modern neural networks", equation 3 (expected calibration error).
    """
    samples, right, confidence = bins.double()
    return float((right - confidence / UNIT).abs().sum() / samples.sum())
