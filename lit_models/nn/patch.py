"""Images as grids of tokens: patches or a stack of convolutions, and positions on the plane."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.position import sinusoidal

MAX_GROUP_SIZE = 16
"""Channels that share a group norm's statistics: Wu & He 2018, table 3."""


def check_image_size(size: tuple[int, int], patch_size: int) -> None:
    """Raises ValueError unless height and width are multiples of patch_size."""
    height, width = size
    if height % patch_size or width % patch_size:
        shown = f"{height}" if height == width else f"{height} x {width} (height x width)"
        raise ValueError(f"image_size {shown} is not a multiple of patch_size {patch_size}")


class PatchEmbedding(nn.Conv2d):
    """Cuts an image into squares and maps each to a token: a convolution whose stride is its kernel.

    Source: Dosovitskiy et al. 2021, equation 1; initial weights as torchvision's: those of a linear layer.

    Raises:
        ValueError: in forward, for an image whose height or width is no multiple of patch_size.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, bias: bool = True):
        self.patch_size = patch_size
        super().__init__(in_channels, embed_dim, patch_size, stride=patch_size, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=math.sqrt(1 / self.weight[0].numel()))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        check_image_size((images.shape[2], images.shape[3]), self.patch_size)
        # With channels last the tokens come out in order. Forward and backward on one core, 64 images, 28 to 32 pixels, patches
        # of 4: 0.6 to 0.8 of the time otherwise, and 0.75 to 0.9 of that of patches gathered for a linear layer.
        return super().forward(images.contiguous(memory_format=torch.channels_last)).movedim(1, -1)

    def num_products(self, h: int, w: int) -> int:
        """Multiplications in forward for an image that becomes h x w tokens."""
        return self.weight.numel() * h * w


class ConvStem(nn.Sequential):
    """The hybrid's way from image to tokens: 3x3 convolutions of stride 2 with widths that double, then one of 1x1.

    Source: Xiao et al. 2021 (Early convolutions help transformers see better), section 4. Departs: group norm instead of
    batch norm, as in the hybrid of Dosovitskiy et al. 2021, so that a sample's tokens do not depend on its batch.

    Raises:
        ValueError: patch_size is not a power of two of at least 2, embed_dim not a multiple of patch_size / 2; in forward,
            an image's height or width is no multiple of patch_size.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, bias: bool = True):
        super().__init__()
        if patch_size < 2 or patch_size & (patch_size - 1):
            raise ValueError(f"patch_size {patch_size} is not a power of two of at least 2, as a stem of convolutions needs")
        if embed_dim % (patch_size // 2):
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of {patch_size // 2}, half of patch_size {patch_size}")
        self.patch_size = patch_size
        width = embed_dim // (patch_size // 2)
        while width <= embed_dim:
            conv = nn.Conv2d(in_channels, width, 3, stride=2, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            self.extend((conv, nn.GroupNorm(width // math.gcd(width, MAX_GROUP_SIZE), width), nn.ReLU()))
            in_channels, width = width, 2 * width
        self.append(PatchEmbedding(embed_dim, embed_dim, 1, bias=bias))

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        check_image_size((images.shape[2], images.shape[3]), self.patch_size)
        # Channels last: 0.7 of the time, 64 images of 32 pixels on one core.
        return super().forward(images.contiguous(memory_format=torch.channels_last))

    def num_products(self, h: int, w: int) -> int:
        """Multiplications in forward for an image that becomes h x w tokens."""
        *convs, last = (layer.weight.numel() for layer in self if isinstance(layer, nn.Conv2d))
        return h * w * (last + sum(size * 4**i for i, size in enumerate(reversed(convs))))


def resize_positions(grid: Float[Tensor, "1 h w D"], size: tuple[int, int]) -> Float[Tensor, "1 new_h new_w D"]:
    """Positions of a grid of another size over the same image, bicubic, smoothed when there are fewer; the same size is left.

    Source: Dosovitskiy et al. 2021, section 3.2.
    """
    if tuple(grid.shape[1:3]) == size:
        return grid
    planes = grid.movedim(-1, 1).to(torch.promote_types(grid.dtype, torch.float32))  # half precision is not implemented
    return F.interpolate(planes, size, mode="bicubic", antialias=True).movedim(1, -1).to(grid.dtype)


def sinusoidal_2d(h: int, w: int, embed_dim: int) -> Float[Tensor, "h w D"]:
    """`sinusoidal` of the row on the first half of the channels, of the column on the second.

    Raises: ValueError when embed_dim is not a multiple of 4.
    Source: Chen et al. 2021 (MoCo v3), appendix A.
    """
    if embed_dim % 4:
        raise ValueError(f"embed_dim {embed_dim} is not a multiple of 4, as sinusoids of two axes need")
    rows, columns = (sinusoidal(torch.arange(n), embed_dim // 2) for n in (h, w))
    return torch.cat((rows[:, None].expand(-1, w, -1), columns[None].expand(h, -1, -1)), dim=-1)
