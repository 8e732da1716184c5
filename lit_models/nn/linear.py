"""The affine map of every network, by the faster of two libraries on CPUs."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# torch gives float32 products to MKL, which leaves AMD's wider instructions unused; oneDNN, in every x86 build of torch, does
# not: forward and backward together it took 0.53 to 0.78 of the time on one core, at sizes like the shipped configs'.
_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class Linear(nn.Linear):
    """y = x W^T + b, as nn.Linear, whose parameters and initialisation it has."""

    def forward(self, x: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*batch I"], weight: Float[Tensor, "O I"], bias: Float[Tensor, "O"] | None = None
) -> Float[Tensor, "*batch O"]:
    """x W^T + b. Differentiable once in plain float32 on CPUs, any number of times elsewhere."""
    if x.dim() == 3 and x.shape[1] == 1 and not torch.is_grad_enabled():
        return F.linear(x, weight, bias)  # one position of each row, as in decoding: bringing the weights into order costs more
    plain = x.is_cpu and x.dtype is weight.dtype is torch.float32 and x.dim() > 1 and x.numel() > 0
    if not (_ONEDNN and plain) or torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return F.linear(x, weight, bias)
    return _OneDNN.apply(x, weight, bias)


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a b^T + bias, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")


class _OneDNN(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()  # of a slice of longer rows the product in backward takes up to 260 times as long
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)  # (N, O)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(grad, weight.t()) if needs_x else None,
            _product(rows.t(), x.flatten(0, -2).t()) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )
