"""MuonAdamW: Muon for matrices and AdamW for everything else, as one optimizer."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.adamw import adamw

KINDS = ("matrix", "embedding", "vector")
FUSED_DEVICES = ("cpu", "cuda", "mps")


def orthogonalize(
    matrix: Float[Tensor, "rows columns"], *, num_steps: int = 5, eps: float = 1e-7
) -> Float[Tensor, "rows columns"]:
    """`matrix` with its singular vectors kept and its singular values brought near 1.

    (After 5 steps to 0.68 to 1.21, where they were above 0.003 of the matrix's Frobenius norm.)

    The Newton-Schulz iteration x <- a x + b (x xᵀ) x + c (x xᵀ)² x, which maps each singular value s to
    a s + b s³ + c s⁵. In bfloat16 on a GPU, in the matrix's own precision elsewhere (on CPUs bfloat16 is the slower).

    Source: Jordan et al., "Muon", https://kellerjordan.github.io/posts/muon/.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16() if matrix.is_cuda else matrix
    wide = x.shape[0] <= x.shape[1]
    x = x if wide else x.mT
    x = x / x.norm().clamp(min=eps)  # Frobenius norm 1: no singular value above 1
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.mT).to(matrix.dtype)


class MuonAdamW(torch.optim.Optimizer):
    """Muon on groups of kind "matrix", AdamW (fused where the device has it) on "embedding" and "vector".

    Takes the groups of `param_groups`. Every group has its own `lr`, so one schedule scales them all; the state is
    plain tensors and resumes to the bit. `torch.optim.Muon` cannot serve inside: it refuses convolution kernels, which
    are flattened to (out, in * height * width) here, and is bound to bfloat16.

    - `lr`: Muon's, times sqrt(max(1, rows / columns)) for each matrix. `adamw_lr`, `betas`, `eps`: AdamW's.
    - `momentum`: of Muon, in Nesterov's form. `ns_steps`: Newton-Schulz iterations.
    - `weight_decay`: decoupled, of both; a group's own value (0 for vectors) goes first.

    Raises ValueError for a group without a known `kind`, or a number out of its range.

    Source: Jordan et al., "Muon" and its defaults at https://github.com/KellerJordan/Muon; Loshchilov and Hutter,
    arXiv:1711.05101, Algorithm 2. Momentum is an average, (1 - momentum) * gradient coming in, as in both Muon codes.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        ns_steps: int = 5,
        adamw_lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        at_least_0 = {"lr": lr, "adamw_lr": adamw_lr, "eps": eps, "weight_decay": weight_decay, "ns_steps": ns_steps}
        for name, value in at_least_0.items():
            if not value >= 0:
                raise ValueError(f"{name} {value} is negative")
        for name, value in {"momentum": momentum, "betas[0]": betas[0], "betas[1]": betas[1]}.items():
            if not 0 <= value < 1:
                raise ValueError(f"{name} {value} is not in [0, 1)")
        self._muon = {"lr": lr, "momentum": momentum, "ns_steps": ns_steps}
        self._adamw = {"lr": adamw_lr, "betas": tuple(betas), "eps": eps}
        super().__init__(params, {"weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with the defaults of its kind. Raises ValueError where `kind` is missing or unknown."""
        kind = param_group.get("kind")
        if kind not in KINDS:
            raise ValueError(f"group {len(self.param_groups)} has kind {kind!r}, not one of {KINDS}: use param_groups()")
        super().add_param_group((self._muon if kind == "matrix" else self._adamw) | param_group)
        group = self.param_groups[-1]
        if kind != "matrix":
            fused = all(p.device.type in FUSED_DEVICES and p.is_floating_point() for p in group["params"])
            group.setdefault("fused", fused)
        elif any(p.dim() < 2 for p in group["params"]):
            self.param_groups.pop()
            raise ValueError(f"group {len(self.param_groups)} of kind 'matrix' has a parameter with fewer than 2 axes")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            if group["kind"] == "matrix":
                self._muon_step(group, params, grads)
            elif params:
                self._adamw_step(group, params, grads)
        return loss

    def _muon_step(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        for p, grad in zip(params, grads, strict=True):
            state = self.state[p]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(p)
            average = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
            update = grad.lerp(average, group["momentum"]).flatten(1)
            scale = math.sqrt(max(1, update.shape[0] / update.shape[1]))
            update = orthogonalize(update, num_steps=group["ns_steps"]).view(p.shape)
            p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)

    def _adamw_step(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                device = p.device if group["fused"] else "cpu"
                self.state[p] |= {
                    "step": torch.zeros((), dtype=torch.float32, device=device),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
        state = [self.state[p] for p in params]
        adamw(
            params,
            grads,
            [s["exp_avg"] for s in state],
            [s["exp_avg_sq"] for s in state],
            [],  # AMSGrad's maxima
            [s["step"] for s in state],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
