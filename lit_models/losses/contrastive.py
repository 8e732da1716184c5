"""Losses of pairs against all other combinations of a batch, and the features of all ranks with their gradient."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def contrast(
    logits: Float[Tensor, "B N"], own: Int[Tensor, "B"], equal: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Sum over rows of the cross-entropy of the own column in nats, and in how many rows a right column has the highest logit.

    Columns whose caption or image is the row's own are right, too: each is compared with the wrong ones alone, and a row's loss
    is the mean over its right columns. They are never negatives, neither of the row nor of each other.

    equal: True where a column is as right as the own one, which may be left out.

    Source: Radford et al. 2021 (CLIP), figure 3, one direction. Departs: several right columns, averaged as in Khosla et al.
    2020, equation 2, but without them in the denominator.
    """
    right = equal.scatter(1, own[:, None], True)
    wrong = logits.masked_fill(right, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)  # (B, 1)
    return _mean_of_right(F.softplus(wrong - logits), right).sum(), _num_right(logits, right)


def sigmoid_contrast(
    logits: Float[Tensor, "B N"], own: Int[Tensor, "B"], equal: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Sum over rows and columns of the cross-entropy of "they are a pair" in nats, and in how many rows a right one is highest.

    equal: as in `contrast`; of several right columns a row has the mean.

    Source: Zhai et al. 2023 (SigLIP), equation in section 3.2.
    """
    right = equal.scatter(1, own[:, None], True)
    wrong = F.softplus(logits).masked_fill(right, 0.0).sum()
    return wrong + _mean_of_right(F.softplus(-logits), right).sum(), _num_right(logits, right)


def _mean_of_right(values: Tensor, right: Tensor) -> Float[Tensor, "B"]:
    return values.masked_fill(~right, 0.0).sum(1) / right.sum(1)


def _num_right(logits: Tensor, right: Tensor) -> Int[Tensor, ""]:
    return right.gather(1, logits.argmax(1, keepdim=True)).sum()


def chance(num_pairs: int, sigmoid: bool) -> float:
    """The loss per row, in nats, of features that say nothing: ln N, or for the sigmoid loss N times the entropy of 1/N."""
    n = torch.tensor(float(num_pairs), dtype=torch.float64)
    return float(n.log() - ((n - 1) * torch.log1p(-1 / n) if sigmoid else 0))


def gather(local: Tensor) -> Tensor:
    """The rows of all ranks one after the other, with a gradient; every rank has as many.

    Each rank's loss then counts its own rows only, and the gradients add up to that of one process with all rows.
    """
    return _Gather.apply(local)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor) -> Tensor:
        ctx.rows = len(local)
        parts = [torch.empty_like(local) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        torch.distributed.all_reduce(grad)  # what every rank's loss says of these rows
        first = torch.distributed.get_rank() * ctx.rows
        return grad[first : first + ctx.rows]
