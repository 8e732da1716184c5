"""Losses of pairs of responses to one prompt, of which the first is preferred."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F


def bradley_terry(
    chosen: Float[Tensor, "B"], rejected: Float[Tensor, "B"], *, centring: float = 0.0
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Sum of -log sigmoid(chosen - rejected) in nats, and how many pairs are ordered right (a tie counts for nothing).

    centring: weight of the squared sum of both scores, which keeps them about 0; the preferences alone fix differences only.

    Source: Christiano et al. 2017, equation 1; Stiennon et al. 2020, section 3.4. Centring: Eisenstein et al. 2023, equation 6.
    """
    loss = F.softplus(rejected - chosen) + centring * (chosen + rejected).square()
    return loss.sum(), (chosen > rejected).sum()


def direct_preference(
    chosen: Float[Tensor, "B"], rejected: Float[Tensor, "B"], reference_chosen: Float[Tensor, "B"],
    reference_rejected: Float[Tensor, "B"], *, beta: float, label_smoothing: float = 0.0,
) -> tuple[Float[Tensor, ""], Float[Tensor, "B"], Float[Tensor, "B"]]:  # fmt: skip
    """Sum of -log sigmoid of the implicit rewards' difference in nats; and the rewards, beta log (p / p_ref), without a graph.

    Args:
        chosen, rejected: log-probabilities of whole responses under the policy.
        reference_chosen, reference_rejected: under the reference.
        label_smoothing: share of preferences that are taken to be wrong.

    Source: Rafailov et al. 2023 (DPO), equation 7; label smoothing: Mitchell 2023 (cDPO), equation 3.
    """
    good, bad = beta * (chosen - reference_chosen), beta * (rejected - reference_rejected)
    margin = good - bad
    loss = (1 - label_smoothing) * F.softplus(-margin) + label_smoothing * F.softplus(margin)
    return loss.sum(), good.detach(), bad.detach()


def calibration(margins: Float[Tensor, "N"], num_bins: int = 10) -> Float[Tensor, "3 bins"]:
    """Pairs, how many of them are ordered right, and the sum of their predicted probabilities, by the probability's bin.

    The probability is that of the likelier order, sigmoid(|chosen - rejected|), from 1/2 to 1. Sums, which add up over batches.
    """
    likelier = torch.sigmoid(margins.abs().double())
    which = ((likelier - 0.5) * 2 * num_bins).long().clamp(max=num_bins - 1)
    made = torch.zeros(3, num_bins, dtype=torch.float64, device=margins.device)
    for row, values in enumerate((torch.ones_like(likelier), (margins > 0).double(), likelier)):
        made[row].index_add_(0, which, values)
    return made
