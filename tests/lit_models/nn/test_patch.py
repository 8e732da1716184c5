"""Tokens are where their patches are, positions follow the plane, and bad sizes are named."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lit_models.nn.patch import ConvStem, PatchEmbedding, resize_positions, sinusoidal_2d
from lit_models.nn.position import sinusoidal


def test_a_token_is_the_linear_map_of_its_patch() -> None:
    stem = PatchEmbedding(3, 10, 4).double()
    torch.nn.init.normal_(stem.bias)
    images = torch.randn(2, 3, 8, 12, dtype=torch.float64)
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4)  # (B, C, h, w, p, p)
    expected = torch.einsum("bchwij,dcij->bhwd", patches, stem.weight) + stem.bias
    torch.testing.assert_close(stem(images), expected, rtol=0, atol=1e-12)


def test_patch_weights_start_as_those_of_a_linear_layer() -> None:
    stem = PatchEmbedding(3, 500, 4)
    assert abs(stem.weight.std().item() * 48**0.5 - 1) < 0.03 and stem.bias.abs().max() == 0


@pytest.mark.parametrize("patch_size,widths", [(2, [16]), (4, [8, 16]), (16, [2, 4, 8, 16])])
def test_conv_stem_has_the_strides_and_widths_of_its_source(patch_size: int, widths: list[int]) -> None:
    stem = ConvStem(3, 16, patch_size)
    assert stem(torch.randn(2, 3, 2 * patch_size, 3 * patch_size)).shape == (2, 2, 3, 16)
    kernels = [tuple(layer.weight.shape) for layer in stem if isinstance(layer, torch.nn.Conv2d)]
    inputs = [3, *widths]
    assert kernels == [(wide, narrow, 3, 3) for narrow, wide in zip(inputs[:-1], widths, strict=True)] + [(16, 16, 1, 1)]


def test_conv_stem_treats_each_sample_alone_and_in_both_modes_alike() -> None:
    stem = ConvStem(3, 64, 4).double()
    images = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    images[1] *= 100
    together = stem(images)
    assert torch.allclose(together[:1], stem(images[:1]), rtol=0, atol=1e-10)
    assert torch.equal(together, stem.eval()(images))


@pytest.mark.parametrize("stem", [PatchEmbedding(3, 64, 8), ConvStem(3, 64, 8)], ids=["patch", "conv"])
def test_products_are_those_that_are_computed(stem: PatchEmbedding | ConvStem) -> None:
    with FlopCounterMode(display=False) as counter:
        stem(torch.randn(1, 3, 16, 24))
    assert 2 * stem.num_products(2, 3) == counter.get_total_flops()


@pytest.mark.parametrize("kind", [PatchEmbedding, ConvStem])
@pytest.mark.parametrize("size,said", [((10, 10), "10"), ((12, 10), "12 x 10 .height x width.")])
def test_an_image_that_patches_do_not_fill_is_refused(kind: type, size: tuple[int, int], said: str) -> None:
    with pytest.raises(ValueError, match=f"image_size {said} is not a multiple of patch_size 4"):
        kind(3, 8, 4)(torch.zeros(1, 3, *size))


@pytest.mark.parametrize("patch_size", [1, 6])
def test_conv_stem_needs_a_power_of_two(patch_size: int) -> None:
    with pytest.raises(ValueError, match=f"patch_size {patch_size} is not a power of two of at least 2"):
        ConvStem(3, 12, patch_size)


def test_conv_stem_needs_a_width_it_can_halve() -> None:
    with pytest.raises(ValueError, match="embed_dim 18 is not a multiple of 4, half of patch_size 8"):
        ConvStem(3, 18, 8)


def resized_by_pillow(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """Channel by channel."""
    planes = [Image.fromarray(plane).resize(size[::-1], Image.Resampling.BICUBIC) for plane in grid[0].movedim(-1, 0).numpy()]
    return torch.from_numpy(np.stack(planes, axis=-1))[None]


@pytest.mark.parametrize("old,new", [
    ((8, 8), (12, 12)), ((8, 8), (8, 16)), ((6, 10), (9, 4)), ((14, 14), (7, 7)), ((3, 5), (5, 3)),
])  # fmt: skip
def test_positions_are_resized_as_an_image_is(old: tuple[int, int], new: tuple[int, int]) -> None:
    grid = torch.randn(1, *old, 5)
    resized = resize_positions(grid, new)
    assert resized.shape == (1, *new, 5)
    torch.testing.assert_close(resized, resized_by_pillow(grid, new), rtol=0, atol=1e-5)
    torch.testing.assert_close(resize_positions(grid.bfloat16(), new), resized.bfloat16(), rtol=0, atol=0.05)


def test_positions_of_the_same_size_are_left_to_the_bit() -> None:
    grid = torch.randn(1, 6, 10, 5)
    assert torch.equal(resize_positions(grid, (6, 10)), grid)


def test_sinusoids_on_the_plane_shift_along_one_axis_only() -> None:
    waves = sinusoidal_2d(5, 7, 16)
    assert waves.shape == (5, 7, 16)
    for i, j in ((0, 0), (4, 2), (3, 6)):
        assert torch.equal(waves[i, j, :8], sinusoidal(torch.tensor([i]), 8)[0])
        assert torch.equal(waves[i, j, 8:], sinusoidal(torch.tensor([j]), 8)[0])
    near = torch.einsum("ijd,kld->ijkl", waves, waves)  # depends on the distance along each axis
    torch.testing.assert_close(near[0, 0, 2, 3], near[2, 3, 4, 6])
    assert abs(near[0, 0, 2, 3] - near[0, 0, 3, 2]) < 1e-5 and abs(near[0, 0, 2, 3] - near[0, 0, 2, 4]) > 0.1


def test_sinusoids_on_the_plane_need_four_channels_at_a_time() -> None:
    with pytest.raises(ValueError, match="embed_dim 6 is not a multiple of 4"):
        sinusoidal_2d(2, 2, 6)
