"""Positions without parameters, from explicit position ids: sinusoidal and rotary."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def _angles(position_ids: Int[Tensor, "*batch T"], dim: int, base: float) -> Float[Tensor, "*batch T half"]:
    """Position times the frequencies base^(-2i/dim), i < dim/2, in float32."""
    if dim % 2:
        raise ValueError(f"dimension {dim} is odd, sine and cosine need pairs")
    exponents = torch.arange(0, dim, 2, device=position_ids.device, dtype=torch.float32) / dim
    return position_ids[..., None].float() * base**-exponents


def sinusoidal(position_ids: Int[Tensor, "*batch T"], embed_dim: int, *, base: float = 10_000.0) -> Float[Tensor, "*batch T D"]:
    """Sines on the even and cosines on the odd channels, to be added to embeddings.

    Raises: ValueError when embed_dim is odd.
    Source: Vaswani et al. 2017, section 3.5.
    """
    angles = _angles(position_ids, embed_dim, base)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def rotary(
    position_ids: Int[Tensor, "B T"], head_dim: int, *, base: float = 10_000.0
) -> tuple[Float[Tensor, "B 1 T half"], Float[Tensor, "B 1 T half"]]:
    """Cosine and sine for apply_rotary, one pair of rows per position; B may be 1.

    Raises: ValueError when head_dim is odd.
    Source: Su et al. 2021 (RoFormer), equation 34.
    """
    angles = _angles(position_ids, head_dim, base)[:, None]
    return angles.cos(), angles.sin()


def apply_rotary(
    x: Float[Tensor, "B H T K"], cos: Float[Tensor, "#B 1 T half"], sin: Float[Tensor, "#B 1 T half"]
) -> Float[Tensor, "B H T K"]:
    """Turns each pair of channels by its angle, so that q·k depends on the distance of positions alone.

    Source: Su et al. 2021, equation 34. Departs: channel i is paired with i + K/2 (as GPT-NeoX and LLaMA do), not
    with its neighbour, which is the same up to an order of channels.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)
