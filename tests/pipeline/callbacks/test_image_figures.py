"""What the figures of image classifiers show."""

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image

from datamodules.images import ImageDataModule
from datamodules.sources.image_folder import ImageFolder
from lit_models.nn.vit import ViT
from pipeline import figures, image_figures
from pipeline.callbacks.mistakes import WorstMistakes, evaluate, mistakes
from pipeline.callbacks.vit_figures import filters, mean_distances, of_different_classes, on_patches, rollout, similarities

SIZES = {"patch_size": 4, "num_layers": 3, "num_heads": 2, "embed_dim": 16}
SMALL = [
    "--model.init_args.net.num_layers=2", "--model.init_args.net.num_heads=2", "--model.init_args.net.embed_dim=16",
    "--data.init_args.batch_size=20", "--trainer.accelerator=cpu", "--trainer.max_steps=2", "--trainer.limit_val_batches=2",
    "--trainer.logger=false",
]  # fmt: skip
GREYS = {"dark": (10, 100, 200, 252), "light": (5, 60, 140, 240)}


@pytest.fixture
def greys(tmp_path: Path) -> ImageDataModule:
    """Images of one grey each; to a network that goes by brightness four of eight are wrong."""
    for split in ("train", "validation"):
        for name, levels in GREYS.items():
            (tmp_path / split / name).mkdir(parents=True)
            for level in levels:
                Image.new("L", (6, 4), level).save(tmp_path / split / name / f"{level + (split == 'train'):03}.png")
    source = ImageFolder(str(tmp_path / "train"), str(tmp_path / "validation"))
    data = ImageDataModule(source, 2, (4, 6), eval_batch_size=3, cache_dir=str(tmp_path / "cache"))
    data.prepare()
    data.trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    data.trainer.datamodule = data
    return data


class Brightness(torch.nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        light = images.mean((1, 2, 3))
        return torch.stack((-light, light), dim=1)


def test_the_worst_mistakes_come_first(greys: ImageDataModule) -> None:
    columns = evaluate(greys.trainer, Brightness(), "validation", torch.device("cpu"))
    figure = WorstMistakes(3)._figure(greys, "validation", *columns)
    assert figure is not None and figure.get_suptitle() == "4 of 8 validation images wrong: the 3 with the highest loss"
    shown = [(ax.get_title(), round(255 * ax.images[0].get_array()[0, 0, 0])) for ax in figure.axes]
    sure = [f"{1 / (1 + np.exp(-2 * abs(2 * level / 255 - 1))):.0%}" for level in (252, 5, 200)]
    truth = [("dark", "light", 252), ("light", "dark", 5), ("dark", "light", 200)]
    assert shown == [(f"{a} taken for\n{b} ({p})", level) for (a, b, level), p in zip(truth, sure, strict=True)]
    right = columns[1]
    figure = WorstMistakes(3)._figure(greys, "validation", columns[0], right, right, columns[3])
    assert figure is not None and figure.get_suptitle() == "0 of 8 validation images wrong" and not figure.axes
    unlabelled = torch.full_like(right, -100)
    assert WorstMistakes(3)._figure(greys, "validation", columns[0], unlabelled, columns[2], columns[3]) is None


def test_mistakes_are_looked_for_where_the_trainer_evaluates(greys: ImageDataModule) -> None:
    greys.limits = {"validation": 2}
    assert len(evaluate(greys.trainer, Brightness(), "validation", torch.device("cpu"))[0]) == 6


def test_images_without_a_label_are_no_mistakes() -> None:
    losses, labels = torch.tensor([0.1, 3, 0, 2, 5, 3]), torch.tensor([0, 1, -100, 2, 1, 0])
    assert mistakes(losses, labels, torch.tensor([0, 0, 1, 1, 0, 1])).tolist() == [4, 1, 5, 3]
    assert not len(mistakes(losses, labels, labels))


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


def test_the_first_component_is_the_direction_in_which_filters_vary_most():
    net = ViT(16, 3, **SIZES)
    directions = torch.linalg.qr(torch.randn(48, 2)).Q.T
    with torch.no_grad():
        net.stem.weight.copy_((torch.randn(16, 2) * torch.tensor([3.0, 1.0]) @ directions + 5).view(16, 3, 4, 4))
    flat = net.stem.weight.detach().flatten(1)
    _, vectors = torch.linalg.eigh(torch.cov(flat.T.double()))
    kernels, _ = filters(net)
    assert len(kernels) == 15  # 16 filters about their mean
    torch.testing.assert_close((kernels[0].flatten().double() @ vectors[:, -1]).abs(), torch.ones((), dtype=torch.float64))
    assert (kernels.flatten(1).amax(1) == kernels.flatten(1).abs().amax(1)).all()


def test_a_head_that_looks_at_the_class_token_alone_has_a_distance():
    assert mean_distances(torch.eye(7)[:1].expand(1, 1, 1, 7, 7), (2, 3), 4).tolist() == [[0]]


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


@pytest.mark.parametrize("size", [(8, 8), (8, 24), (24, 8)])
def test_titles_do_not_overlap(size: tuple[int, int], tmp_path: Path) -> None:
    name = image_figures.short("a class of $1$ and a long name")
    assert name == r"a class of \$1\$ an…"
    titles = [f"{name} taken for\n{name} (100%)"] * 8
    figure = image_figures.picture_grid(torch.rand(8, 3, *size), titles, "8 of 9 wrong")
    figures.save(figure, tmp_path / "mistakes.png")  # what lays it out
    boxes = [ax.title.get_window_extent() for ax in figure.axes[:8]] + [figure._suptitle.get_window_extent()]
    boxes += [ax.images[0].get_window_extent() for ax in figure.axes[:8]]
    boxes = [box.padded(-1) for box in boxes]  # a pixel is rounding
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_figures_of_a_mean_pooled_hybrid_in_half_precision(inside: Any, tmp_path: Path) -> None:
    net = ["--model.init_args.net.pool=mean", "--model.init_args.net.stem=conv", "--trainer.precision=bf16-true"]
    code, _, last = inside("fit", "--config", "configs/vit.yaml", *SMALL, *net, "--run_dir", tmp_path / "run")
    assert code == 0, last
    names = ("calibration_val", "mistakes_val", "class_attention", "position_similarity", "attention_distance", "patch_filters")
    for name in names:
        assert matplotlib.image.imread(tmp_path / f"run/figures/{name}.png")[..., :3].std() > 0.01
    options = ["--run_dir", tmp_path / "elsewhere", "--ckpt_path", tmp_path / "run/checkpoints/last.ckpt"]
    code, out, last = inside("test", "--config", tmp_path / "run/config.yaml", *options)
    assert code == 0 and "nothing was written" in out and not (tmp_path / "elsewhere").exists(), last


def test_a_callback_says_what_it_cannot_do(inside: Any, small: list[str], tmp_path: Path) -> None:
    def last_line(*options: Any) -> str:
        code, _, last = inside("fit", *options, "--trainer.logger=false", "--run_dir", tmp_path / "run", "--fresh")
        assert code == 1
        return last

    place = "pipeline.callbacks"
    resnet = ["--config", "configs/resnet.yaml", "--trainer.accelerator=cpu"]
    assert "ViTFigures is for a ViT" in last_line(*resnet, "--trainer.callbacks", [f"{place}.vit_figures.ViTFigures"])
    for name, module in {"WorstMistakes": "mistakes", "CalibrationCurve": "calibration"}.items():
        assert f"{name} is for" in last_line(*small, "--trainer.callbacks", [f"{place}.{module}.{name}"])
