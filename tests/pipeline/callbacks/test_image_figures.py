"""What the figures of image classifiers show."""

import numpy as np
import pytest
import torch

from lit_models.nn.vit import ViT
from pipeline import image_figures
from pipeline.callbacks.vit_figures import filters, mean_distances, of_different_classes, on_patches, rollout, similarities

SIZES = {"patch_size": 4, "num_layers": 3, "num_heads": 2, "embed_dim": 16}


def test_rollout_multiplies_the_layers_with_their_residual_paths():
    torch.manual_seed(0)
    maps = torch.rand(3, 2, 4, 5, 5).softmax(-1)
    made = rollout(maps)
    torch.testing.assert_close(made.sum(-1), torch.ones(2, 5))
    first, second, third = (0.5 * (maps[i, 1].mean(0) + torch.eye(5)) for i in range(3))
    torch.testing.assert_close(made[1], third @ second @ first)
    assert torch.equal(rollout(torch.eye(4).expand(3, 1, 2, 4, 4)), torch.eye(4)[None])


def test_distances_of_known_attention():
    num_patches, place = 6, torch.tensor([(i, j) for i in range(2) for j in range(3)]).float()
    uniform = torch.full((1, 1, 1, 7, 7), 1 / 7)
    expected = 4 * torch.cdist(place, place).sum() / num_patches**2
    torch.testing.assert_close(mean_distances(uniform, (2, 3), 4), expected.view(1, 1))  # the class token does not count
    itself = torch.eye(num_patches).expand(2, 3, 1, num_patches, num_patches)
    assert torch.equal(mean_distances(itself, (2, 3), 4), torch.zeros(2, 1))
    right = torch.eye(num_patches).roll(1, dims=1).expand(1, 1, 1, num_patches, num_patches)
    expected = 4 * (4 * 1 + 2 * 5**0.5) / 6  # to the next in the row, at a row's end to the start of the other
    torch.testing.assert_close(mean_distances(right, (2, 3), 4), torch.tensor([[expected]]))


def test_where_the_class_token_looks():
    weights = torch.zeros(1, 7, 7)
    weights[0, 0, 1:] = torch.arange(6.0)
    assert on_patches(weights, (2, 3))[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    mean = torch.rand(1, 6, 6)
    torch.testing.assert_close(on_patches(mean, (2, 3)).flatten(), mean[0].mean(0))


def test_similarities_are_1_with_themselves():
    made = similarities(torch.randn(1, 3, 4, 8))
    torch.testing.assert_close(made.flatten(2).flatten(0, 1).diagonal(), torch.ones(12))
    assert made.abs().max() <= 1 + 1e-6 and made[0, 1, 2, 3] == pytest.approx(made[2, 3, 0, 1].item())


def test_images_of_different_classes_come_first():
    assert of_different_classes(np.array([5, 5, 2, 5, 2, 7]), 5).tolist() == [0, 2, 5, 1, 4]


@pytest.mark.parametrize(("stem", "size", "word"), [("patch", (4, 4), "principal"), ("conv", (3, 3), "first convolution")])
def test_filters(stem, size, word):
    kernels, heading = filters(ViT(16, 3, stem=stem, **SIZES))
    assert kernels.shape[1:] == (3, *size) and word in heading


def axes_of(figure):
    return [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]


def test_mistakes_are_shown_with_their_titles_and_none_with_a_heading():
    figure = image_figures.picture_grid(torch.rand(7, 3, 4, 4), [f"picture {i}" for i in range(7)], "worst")
    assert [ax.get_title() for ax in figure.axes][:8] == [f"picture {i}" for i in range(7)] + [""]
    assert image_figures.picture_grid(torch.empty(0, 3, 1, 1), [], "0 of 5 wrong").get_suptitle() == "0 of 5 wrong"


def test_the_calibration_curve_has_a_bar_of_the_accuracy_for_each_bin():
    bins = torch.zeros(3, 4, dtype=torch.long)
    bins[:, 3] = torch.tensor([10, 7, 9 * 2**30])
    upper, lower = axes_of(image_figures.reliability(bins))
    assert [bar.get_height() for bar in upper.patches] == [0, 0, 0, 0.7]
    assert [bar.get_height() for bar in lower.patches] == [0, 0, 0, 1.0]
    assert "0.200" in upper.get_title()  # |0.7 - 0.9|


def test_a_large_grid_of_positions_is_thinned():
    assert len(axes_of(image_figures.similarity_grid(similarities(torch.randn(1, 7, 7, 4))))) == 49
    assert len(axes_of(image_figures.similarity_grid(similarities(torch.randn(1, 32, 20, 4))))) == 16 * 10
