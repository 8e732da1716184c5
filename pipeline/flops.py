"""What the machine can do: the yardstick for model FLOPs utilisation (MFU)."""

import time

import torch

from lit_models.nn.linear import linear


@torch.no_grad()
def peak_flops(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.5) -> float:
    """Floating-point operations per second of a large square matrix product, by the networks' own routine: the best try."""
    size = 1024 if device.type == "cpu" else 8192
    a, b = (torch.randn(size, size, device=device, generator=_generator(device)).to(dtype) for _ in range(2))
    linear(a, b)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        _wait(device)
        start = time.perf_counter()
        linear(a, b)
        _wait(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def precision_dtype(precision: str) -> torch.dtype:
    """The type that products run in under a trainer's precision, such as bf16-mixed."""
    return torch.bfloat16 if "bf16" in precision else torch.float16 if "16" in precision else torch.float32


def _generator(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)  # leaves the run's own random stream alone


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
