"""Random changes of training images, each draw a function of (seed, epoch, sample) alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import v2

from datamodules.draws import uniform

_ROW, _COLUMN, _FLIP, _CROP, _RAND_AUGMENT, _ERASING, _PARTNER, _KIND, _WEIGHT, _BOX_ROW, _BOX_COLUMN = range(30, 41)
_SCALE, _ASPECT, _ANGLE, _MOVE_X, _MOVE_Y, _STROKE, _STROKE_KIND = range(41, 48)
"""What a draw is for (datamodules.masking and pair_sampling have those below)."""

Keys = tuple[int, int, np.ndarray]
"""seed, epoch and the samples' numbers (B,)."""


@dataclass(frozen=True)
class Augmentation:
    """Which random changes, in this order: crop, flip, affine map, stroke, RandAugment, erasing, mixing.

    Args:
        crop_padding: pixels of black around an image before a crop of its own size; 0 for none.
        min_scale: smallest share of an image's area in a crop of random size and shape, which is resized; None for none.
        flip: mirror left and right with probability 1/2.
        affine: strength a of a random affine map: size and aspect ratio times e^u with u from -a to a, turned by up to a
            radians, moved by up to a times half the image, with black from outside; 0 for none.
        stroke: probability that bright lines become thicker or thinner by up to a pixel on each side.
        rand_augment: random operations for each image (Cubuk et al. 2020); 0 for none.
        rand_augment_magnitude: their strength, from 0 to 30.
        erasing: probability that a rectangle is erased (Zhong et al. 2020).
        mixup: parameter of the Beta distribution of the shares of two images in a mixed one (Zhang et al. 2018); 0 for none.
        cutmix: the same for the share of a box that is cut out of the other image (Yun et al. 2019).
    """

    crop_padding: int = 0
    min_scale: float | None = None
    flip: bool = False
    affine: float = 0.0
    stroke: float = 0.0
    rand_augment: int = 0
    rand_augment_magnitude: int = 9
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def check(self) -> None:  # not at construction: the parser of configs would bury the message
        """Raises ValueError where a number is out of its range."""
        for name in ("crop_padding", "affine", "rand_augment", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")
        if self.min_scale is not None and not 0 < self.min_scale <= 1:
            raise ValueError(f"min_scale {self.min_scale} is not in (0, 1]: it is a share of an image's area")
        if not 0 <= self.rand_augment_magnitude <= 30:
            raise ValueError(f"rand_augment_magnitude {self.rand_augment_magnitude} is not from 0 to 30")
        for name in ("stroke", "erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is no probability")

    @property
    def mixes(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def resized_crops(self, images: Sequence[np.ndarray], size: tuple[int, int], keys: Keys) -> UInt8[np.ndarray, "B H W 3"]:
        """Crops of images (h, w, 3) of any sizes, resized to (H, W)."""
        assert self.min_scale is not None
        crop = v2.RandomResizedCrop(size, scale=(self.min_scale, 1.0), antialias=True)
        channels_first = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
        return np.stack([made.permute(1, 2, 0).numpy() for made in _one_by_one(crop, channels_first, keys, _CROP)])

    def pixels(self, images: UInt8[np.ndarray, "B H W 3"], keys: Keys) -> UInt8[Tensor, "B 3 H W"]:
        """Crop, flip, affine map, stroke and RandAugment, in this order."""
        made = torch.from_numpy(self._cropped(images, keys))
        if self.flip:
            flipped = torch.from_numpy(uniform(*keys, _FLIP) < 0.5)
            made[flipped] = made[flipped].flip(-1)
        if self.affine:
            made = self._mapped(made, keys)
        if self.stroke:
            made = self._stroked(made, keys)
        if self.rand_augment:
            operations = v2.RandAugment(self.rand_augment, self.rand_augment_magnitude, num_magnitude_bins=31)
            made = torch.stack(list(_one_by_one(operations, made, keys, _RAND_AUGMENT)))
        return made

    def erased(self, images: Float[Tensor, "B 3 H W"], keys: Keys) -> Float[Tensor, "B 3 H W"]:
        """Rectangles of zeros, which is the mean colour of normalised images."""
        if not self.erasing:
            return images
        return torch.stack(list(_one_by_one(v2.RandomErasing(self.erasing), images, keys, _ERASING)))

    def _cropped(self, images: UInt8[np.ndarray, "B H W 3"], keys: Keys) -> UInt8[np.ndarray, "B 3 H W"]:
        if not self.crop_padding:
            return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        p, (height, width) = self.crop_padding, images.shape[1:3]
        padded = np.pad(images, ((0, 0), (p, p), (p, p), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))  # (B, rows, columns, 3, H, W)
        top, left = ((uniform(*keys, what) * (2 * p + 1)).astype(np.int64) for what in (_ROW, _COLUMN))
        return windows[np.arange(len(images)), top, left]

    def _mapped(self, images: UInt8[Tensor, "B 3 H W"], keys: Keys) -> UInt8[Tensor, "B 3 H W"]:
        scale, aspect, angle, x, y = (
            torch.from_numpy(self.affine * (2 * uniform(*keys, what) - 1)).float()
            for what in (_SCALE, _ASPECT, _ANGLE, _MOVE_X, _MOVE_Y)
        )
        ratio = images.shape[2] / images.shape[3]  # a turn in pixels, in coordinates from -1 to 1 on both axes
        wide, high = (-scale - aspect).exp(), (-scale + aspect).exp()  # from the new image to the old
        rows = (wide * angle.cos(), wide * angle.sin() * ratio, x), (-high * angle.sin() / ratio, high * angle.cos(), y)
        theta = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=1)  # (B, 2, 3)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        return F.grid_sample(images.float(), grid, align_corners=False).round_().to(torch.uint8)

    def _stroked(self, images: UInt8[Tensor, "B 3 H W"], keys: Keys) -> UInt8[Tensor, "B 3 H W"]:
        chosen = torch.from_numpy(uniform(*keys, _STROKE) < self.stroke)
        if not chosen.any():
            return images
        old = images[chosen].float()
        share = torch.from_numpy(2 * uniform(*keys, _STROKE_KIND)[chosen.numpy()] - 1).float().view(-1, 1, 1, 1)
        thick, thin = F.max_pool2d(old, 3, 1, 1), -F.max_pool2d(-old, 3, 1, 1)
        new = old + share.abs() * (torch.where(share > 0, thick, thin) - old)
        made = images.clone()
        made[chosen] = new.round_().to(torch.uint8)
        return made

    # ---- mixing -------------------------------------------------------------------------------------------------------

    def partners(self, keys: Keys, num_samples: int) -> Int[np.ndarray, "B"]:
        """For each sample another one, any but itself."""
        indices = keys[2]
        return (indices + 1 + (uniform(*keys, _PARTNER) * (num_samples - 1)).astype(np.int64)) % num_samples

    def mix(
        self, images: Float[Tensor, "B 3 H W"], others: Float[Tensor, "B 3 H W"], keys: Keys
    ) -> tuple[Float[Tensor, "B 3 H W"], Float[Tensor, "B"]]:
        """Mixed images, and the share that each keeps; where mixup and cutmix are both on, each image has one of them."""
        seed, epoch, indices = keys
        by_box = uniform(*keys, _KIND) < (0.5 if self.mixup and self.cutmix else float(self.cutmix > 0))
        parameter = np.where(by_box, self.cutmix, self.mixup)
        share = np.array(
            [np.random.default_rng((seed, epoch, i, _WEIGHT)).beta(a, a) for i, a in zip(indices, parameter, strict=True)]
        )
        height, width = images.shape[2:]
        inside, kept = boxes(share, uniform(*keys, _BOX_ROW), uniform(*keys, _BOX_COLUMN), height, width)
        own = np.where(by_box[:, None, None], ~inside, share[:, None, None])  # (B, H, W) share of each pixel
        weight = torch.from_numpy(own.astype(np.float32))[:, None]
        label_weight = torch.from_numpy(np.where(by_box, kept, share).astype(np.float32))
        return weight * images + (1 - weight) * others, label_weight


def boxes(
    share: Float[np.ndarray, "B"], row: Float[np.ndarray, "B"], column: Float[np.ndarray, "B"], height: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """(B, H, W) bool: a box of area 1 - share around (row, column) in [0, 1), as far as it lies in the image; (B,) the share
    that is left outside it.

    Source: Yun et al. 2019, equation 2; the true share as in torchvision's CutMix.
    """
    half = 0.5 * np.sqrt(1 - share)
    inside = np.ones((len(share), height, width), dtype=bool)
    for centre, length, axis in ((row, height, 1), (column, width, 2)):
        middle, reach = (centre * length).astype(np.int64), (half * length).astype(np.int64)
        place = np.arange(length)
        within = (place >= (middle - reach)[:, None]) & (place < (middle + reach)[:, None])
        inside &= np.expand_dims(within, 3 - axis)
    return inside, 1 - inside.mean((1, 2))


def _one_by_one(transform: v2.Transform, images: Sequence[Tensor] | Tensor, keys: Keys, purpose: int) -> Iterator[Tensor]:
    """`transform` of each image, with torch's random numbers from the sample's own seed."""
    seeds = (uniform(*keys, purpose) * 2**53).astype(np.int64)
    with _own_stream():
        for image, seed in zip(images, seeds.tolist(), strict=True):
            torch.default_generator.manual_seed(seed)
            yield transform(image)


@contextmanager
def _own_stream() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
