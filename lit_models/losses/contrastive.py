"""Losses of pairs against all other combinations of a batch, and the features of all ranks with their gradient."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F


def contrast(
    logits: Float[Tensor, "B N"], own: Int[Tensor, "B"], equal: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Sum over rows of the cross-entropy of the own column in nats, and in how many rows it has the highest logit.

    equal: True where a column's caption or image is the row's own: it is no negative and left out of the row.

    Source: Radford et al. 2021 (CLIP), figure 3, one direction.
    """
    logits = _without_equals(logits, own, equal)
    return F.cross_entropy(logits, own, reduction="sum"), (logits.argmax(1) == own).sum()


def sigmoid_contrast(
    logits: Float[Tensor, "B N"], own: Int[Tensor, "B"], equal: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, ""], Int[Tensor, ""]]:
    """Sum over rows and columns of the cross-entropy of "they are a pair" in nats, and the rows whose own logit is highest.

    equal: as in `contrast`.

    Source: Zhai et al. 2023 (SigLIP), equation in section 3.2.
    """
    logits = _without_equals(logits, own, equal)
    sign = torch.full_like(logits, -1.0).scatter_(1, own[:, None], 1.0)
    return -F.logsigmoid(sign * logits).sum(), (logits.argmax(1) == own).sum()


def _without_equals(logits: Tensor, own: Tensor, equal: Tensor) -> Tensor:
    others = equal.scatter(1, own[:, None], False)
    return logits.masked_fill(others, torch.finfo(logits.dtype).min)


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
