"""What the figures of CLIP show."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from lit_models.clip import LitCLIP
from lit_models.nn.clip import CLIP
from pipeline import clip_figures, figures
from pipeline.callbacks.clip_figures import JointMap, RetrievalTable, SimilarityMatrix, ZeroShotBars
from pipeline.callbacks.clip_rows import SplitFeatures, encoded
from pipeline.clip_figures import Bar, ranked
from tests.reading import TINY_CLIP, history

CALLBACKS = ["SimilarityMatrix", "RetrievalTable", "ZeroShotBars", "JointMap"]
ALL = "[" + ",".join(f"pipeline.callbacks.clip_figures.{name}" for name in CALLBACKS) + "]"
OPTIONS = [*TINY_CLIP, "--trainer.max_steps=2", "--trainer.val_check_interval=2", "--trainer.limit_val_batches=3"]
AFTER_FIT = ("similarity", "retrieval_val", "zero_shot_val", "zero_shot", "joint_map")


def features(num_images: int = 12, num_groups: int = 3, num_captions: int = 10, dim: int = 16) -> SplitFeatures:
    """Image i has caption i; those beyond the last caption have that one. The first half of the captions are classes."""
    own = torch.arange(num_images).clamp(max=num_captions - 1)
    texts = torch.nn.functional.normalize(torch.randn(num_captions, dim), dim=-1)
    rows = {
        "images": texts[own], "texts": texts, "index": torch.arange(num_images) + 5, "captions": torch.arange(num_captions) + 7,
        "pairs": torch.stack((torch.arange(num_images) + 5, own + 7), 1), "groups": torch.arange(num_images) % num_groups,
        "is_class": torch.arange(num_captions) < (num_captions + 1) // 2,
    }  # fmt: skip
    found = SplitFeatures.of(rows, "validation")
    assert found is not None
    return found


def with_features(found: SplitFeatures, **new: torch.Tensor) -> SplitFeatures:
    made = SplitFeatures.of(found.rows | new, found.split)
    assert made is not None
    return made


# ---- the figures --------------------------------------------------------------------------------------------------------


def test_the_similarity_matrix_shows_pictures_captions_values_and_what_is_right() -> None:
    cosines = torch.tensor([[0.9, 0.1, 0.2], [0.3, -0.8, 0.4], [0.0, 0.7, 0.5]])
    pictures = torch.rand(3, 3, 8, 16)
    figure = clip_figures.similarity_matrix(pictures, ["a cat", "2 $", "x" * 300], cosines, torch.eye(3).bool())
    ax = figure.axes[0]
    matrix, *shown = ax.images
    np.testing.assert_allclose(matrix.get_array(), cosines)
    np.testing.assert_allclose([image.get_array() for image in shown], pictures.movedim(1, -1).numpy())
    assert [(image.get_extent()[0] + image.get_extent()[1]) / 2 for image in shown] == pytest.approx([0, 1, 2])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a cat", r"2 \$", "x" * 25 + "…"]
    centres = [(patch.get_x() + patch.get_width() / 2, patch.get_y() + patch.get_height() / 2) for patch in ax.patches]
    assert np.array(centres).ravel().tolist() == pytest.approx([0, 0, 1, 1, 2, 2])
    assert [text.get_text() for text in ax.texts] == [f"{value:.2f}" for value in cosines.flatten().tolist()]
    assert [text.get_position() for text in ax.texts if text.get_weight() == "bold"] == [(0, 0), (1, 2), (2, 2)]
    assert "2 of 3 right" in figure.get_suptitle()


def test_similarities_that_differ_by_rounding_have_one_colour() -> None:
    cosines = 1 + 1e-6 * torch.randn(5, 5)
    image = clip_figures.similarity_matrix(torch.rand(5, 3, 4, 4), ["one"] * 5, cosines, torch.eye(5).bool()).axes[0].images[0]
    colours = image.to_rgba(image.get_array())
    assert np.ptp(colours, axis=(0, 1)).max() < 0.02


def test_a_large_similarity_matrix_has_no_numbers() -> None:
    figure = clip_figures.similarity_matrix(torch.rand(30, 3, 4, 4), ["one"] * 30, torch.rand(30, 30), torch.eye(30).bool())
    assert not figure.axes[0].texts and "bold" not in figure.get_suptitle()


def test_ranked_has_the_best_first_and_the_first_right_one() -> None:
    scores = torch.tensor([0.1, float("nan"), 0.9, 0.5, 0.9])
    found = ranked(scores, torch.tensor([True, False, False, False, False]), 3, 4)
    assert (found.query, found.places, found.right, found.rank) == (3, [2, 4, 3, 0], [False, False, False, True], 4)
    assert found.scores == pytest.approx([0.9, 0.9, 0.5, 0.1])
    assert ranked(scores, torch.ones(5).bool(), 0, 9).places[-1] == 1  # not a number is the lowest


def test_the_retrieval_table_frames_what_is_right_in_green() -> None:
    pictures, captions = {i: torch.full((3, 4, 4), i / 10) for i in range(6)}, {i: f"caption {i}" for i in range(6)}
    scores, right = torch.tensor([0.1, 0.2, 0.5, 0.3, 0.0, 0.4]), torch.arange(6) == 5
    found = ranked(scores, right, 1, 3)
    figure = clip_figures.retrieval_table(pictures, captions, [found], [found], [5], "heading")
    query, *shown, empty, picture, lines = figure.axes
    assert [text.get_text() for text in query.texts] == ["caption 1", "first right: 2"] and not empty.images
    assert [round(10 * ax.images[0].get_array()[0, 0, 0]) for ax in (*shown, picture)] == [2, 5, 3, 1]
    assert [ax.get_title() for ax in shown] == ["0.50", "0.40", "0.30"]
    colours = ["tab:red", "tab:green", "tab:red"]
    assert [ax.spines["top"].get_edgecolor() for ax in shown] == [to_rgba(colour) for colour in colours]
    assert [text.get_text() for text in lines.texts[:3]] == ["0.50  caption 2", "0.40  caption 5", "0.30  caption 3"]
    assert [text.get_color() for text in lines.texts] == [*colours, "gray"]
    assert lines.texts[3].get_text() == "first right: 2  caption 5"


def test_the_bars_show_accuracy_chance_and_sizes() -> None:
    bars = [Bar("a $", "validation", 0.25, 0.1, 1200, 10), Bar("", "test", 0.75, 0.5, 20, 2)]
    figure = clip_figures.zero_shot_bars(bars)
    ax = figure.axes[0]
    assert [patch.get_width() for patch in ax.patches] == [0.25, 0.75]
    assert ax.patches[0].get_facecolor() != ax.patches[1].get_facecolor()
    assert list(ax.lines[0].get_xdata()) == [0.1, 0.5]
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["a \\$\n1,200 images, 10 classes", "all\n20 images, 2 classes"]
    assert [text.get_text() for text in ax.texts] == ["25.0% (chance 10.0%)", "75.0% (chance 50.0%)"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["validation", "test", "chance"]


def test_the_joint_map_joins_partners() -> None:
    images, texts = torch.randn(90, 2), torch.randn(90, 2)
    figure = clip_figures.joint_map(images, texts, [0.5, 0.25], 0.625)
    ax = figure.axes[0]
    np.testing.assert_allclose([c.get_offsets() for c in ax.collections], torch.stack((images, texts)), rtol=1e-6)
    expected = torch.stack((images, texts), 1)[::3]
    np.testing.assert_allclose([line.get_xydata() for line in ax.lines], expected, rtol=1e-6)
    assert len(ax.lines) == 30 and "gap 0.62" in ax.get_title()
    assert [text.get_text() for text in figure.legends[0].texts] == ["a pair", "images", "texts"]


def assert_inside_and_apart(figure: Figure, parts: list[Any]) -> None:
    figure.dpi = 120  # as in the file: letters do not grow evenly
    boxes = [part.get_window_extent().padded(-1) for part in parts]  # a pixel is rounding
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    width, height = figure.bbox.size
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height for box in boxes)


LONG = "a caption of $3$ and some more wide words " * 8


@pytest.mark.parametrize("size", [(8, 8), (8, 24), (24, 8)])
def test_nothing_overlaps_or_is_cut_off(size: tuple[int, int], tmp_path: Path) -> None:
    for count in (16, 2):
        figure = clip_figures.similarity_matrix(
            torch.rand(count, 3, *size), [LONG] * count, torch.rand(count, count), torch.eye(count).bool()
        )
        figures.save(figure, tmp_path / "similarity.png")  # what lays it out
        ax, scale = figure.axes
        shown = [*ax.get_yticklabels(), figure._suptitle, *ax.images[1:], scale.yaxis.label]
        assert_inside_and_apart(figure, shown)
        assert_inside_and_apart(figure, list(ax.texts))
    pictures, captions = dict(enumerate(torch.rand(16, 3, *size))), {i: LONG for i in range(16)}
    found = [ranked(torch.randn(16), torch.arange(16) == 3, i, 5) for i in range(6)]
    figure = clip_figures.retrieval_table(pictures, captions, found, found, [3] * 6, "h" * 80)
    figures.save(figure, tmp_path / "retrieval.png")
    assert_inside_and_apart(figure, [*(part for ax in figure.axes for part in (*ax.texts, *ax.images)), figure._suptitle])
    figure = clip_figures.zero_shot_bars([Bar(LONG, "validation", 0.7, 0.69, 1_000_000, 10_000)] * 3)
    figures.save(figure, tmp_path / "bars.png")
    ax = figure.axes[0]
    assert_inside_and_apart(figure, [*ax.get_yticklabels(), *ax.texts, figure.legends[0], ax.xaxis.label])


# ---- what they are drawn from -------------------------------------------------------------------------------------------


def test_the_pairs_of_the_matrix_have_different_captions_of_mixed_groups() -> None:
    found = features(300, 3, 40)
    chosen = found.fixed_pairs(16)
    assert len(chosen) == 16 and torch.equal(chosen, found.fixed_pairs(16))
    assert len(set(found.first[chosen].tolist())) == 16
    assert np.bincount(found.rows["groups"][chosen]).min() >= 5
    assert len(features(12, 3, 10).fixed_pairs(16)) == 10 and len(features(12, 1, 1).fixed_pairs(16)) == 1


@pytest.mark.parametrize("by_text", [True, False])
def test_half_of_the_examples_are_found_and_they_are_of_all_groups(by_text: bool) -> None:
    found = features(60, 3, 60)
    images = found.images.clone()
    images[30:] *= -1
    found = with_features(found, images=images)
    examples = found.examples(by_text, 6, 5)
    assert [row.right[0] for row in examples] == [True] * 3 + [False] * 3
    assert all((row.rank == 1) == row.right[0] and len(row.places) == 5 for row in examples)
    groups = found.rows["groups"][[row.query for row in examples]].tolist()  # image i and caption i are a pair
    assert sorted(groups[:3]) == sorted(groups[3:]) == [0, 1, 2]
    queries, candidates = (found.texts, found.images) if by_text else (found.images, found.texts)
    for row in examples:
        scores = candidates @ queries[row.query]
        assert row.scores == pytest.approx(scores.sort(descending=True).values[:5].tolist())
    assert [row.right[0] for row in features(60, 3, 60).examples(by_text, 6, 5)] == [True] * 6
    assert len(features(4, 1, 4).examples(by_text, 6, 5)) == 4


def test_the_bars_are_the_accuracies_that_are_logged() -> None:
    net = CLIP(8, 10, 1, patch_size=4, projection_dim=16, image_num_layers=1, image_num_heads=1, image_embed_dim=8,
               text_num_layers=1, text_num_heads=1, text_embed_dim=8)  # fmt: skip
    module = LitCLIP(net, lambda params: torch.optim.SGD(params, 0.1), groups=["a", "b", "c", "empty"])
    found = features(30, 3, 20)
    module.epoch_rows = found.rows | {"images": found.images + 0.6 * torch.randn(30, 16)}
    found = with_features(found, **module.epoch_rows)
    logged = module.derived_metrics({})
    bars = found.bars(module.groups)
    assert [bar.group for bar in bars] == ["a", "b", "c"]
    assert all(bar.accuracy == logged[f"zero_shot_{bar.group}"] for bar in bars) and 0 < bars[0].accuracy < 1
    assert [(bar.num_images, bar.num_classes, bar.chance) for bar in bars] == [(4, 4, 0.25), (3, 3, 1 / 3), (3, 3, 1 / 3)]


ODD = {
    "one group, three pairs": lambda f: features(3, 1, 3),
    "one pair": lambda f: features(1, 1, 1),
    "one caption for everything": lambda f: features(20, 2, 1),
    "collapsed": lambda f: with_features(f, images=torch.ones(12, 16), texts=torch.ones(10, 16)),
    "not a number": lambda f: with_features(f, images=f.images * math.nan, texts=f.texts * math.nan),
    "infinite": lambda f: with_features(f, images=f.images * math.inf),
    "one dimension": lambda f: features(12, 3, 10, 1),
    "nothing known": lambda f: with_features(f, is_class=torch.zeros(10).bool()),
    "half precision": lambda f: with_features(f, images=f.images.bfloat16(), texts=f.texts.bfloat16()),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_data_have_figures_all_the_same(kind: str, tmp_path: Path) -> None:
    found = ODD[kind](features())
    (tmp_path / "config.yaml").touch()
    dataset = SimpleNamespace(
        images=lambda epoch, index, _: torch.rand(len(index), 3, 8, 8), caption=lambda number: f"${number} \n $_" + "x" * 300
    )
    data = SimpleNamespace(mean=[0.5] * 3, std=[0.5] * 3, dataset=lambda split: dataset, splits=["train", "validation"])
    trainer: Any = SimpleNamespace(
        datamodule=data, default_root_dir=str(tmp_path), is_global_zero=True, sanity_checking=False, loggers=[], global_step=1
    )
    module = LitCLIP.__new__(LitCLIP)
    torch.nn.Module.__init__(module)
    module.epoch_rows, module.groups = found.rows, ["a", "b", "c"]
    for callback in (SimilarityMatrix(), RetrievalTable(), ZeroShotBars(), JointMap()):
        callback.on_validation_end(trainer, module)
        callback.on_train_end(trainer, module)
    written = {path.stem for path in (tmp_path / "figures").iterdir()}
    without = {"zero_shot", "zero_shot_val"} if kind in ("one pair", "one caption for everything", "nothing known") else set()
    assert written == set(AFTER_FIT) - without


def test_features_are_in_full_precision_and_captions_in_one_line() -> None:
    found = ODD["half precision"](features())
    assert found.images.dtype == found.texts.dtype == torch.float32
    data: Any = SimpleNamespace(dataset=lambda split: SimpleNamespace(caption=lambda number: f" a\n{number} "))
    assert found.captions(data, torch.tensor([2, 0])) == ["a 9", "a 7"]


def test_nothing_evaluated_is_no_figure() -> None:
    assert SplitFeatures.of({}, "validation") is None


# ---- through the runner -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_figures_of_a_run(precision: str, inside: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compared = []

    def compare(self: Any, trainer: Any, module: Any) -> None:
        made = encoded(trainer, module, "validation")
        assert made is not None and made.rows.keys() == module.epoch_rows.keys()
        assert all(torch.equal(made.rows[name], module.epoch_rows[name]) for name in made.rows)
        compared.append(len(made.images))

    monkeypatch.setattr(SimilarityMatrix, "on_train_end", compare)
    options = ["--trainer.callbacks", ALL, f"--trainer.precision={precision}", "--run_dir", tmp_path / "run"]
    code, _, last = inside("fit", *OPTIONS, *options)
    assert code == 0, last
    assert compared == [300]
    for name in AFTER_FIT:
        assert matplotlib.image.imread(tmp_path / f"run/figures/{name}.png")[..., :3].std() > 0.01
    heights = [
        matplotlib.image.imread(tmp_path / f"run/figures/{name}.png").shape[0] for name in ("zero_shot_val", "zero_shot")
    ]
    assert heights[0] < heights[1]  # it has the groups of the test split, too
    keys = {key for row in history(tmp_path / "run") for key in row}
    named = ("val/similarity", "val/retrieval", "val/zero_shot_groups", "zero_shot", "joint_map")
    assert {f"{name}.filenames" for name in named} <= keys
    code, _, last = inside("test", "--run_dir", tmp_path / "run")
    assert code == 0, last
    for name in ("retrieval_test", "zero_shot_test"):
        assert matplotlib.image.imread(tmp_path / f"run/figures/{name}.png")[..., :3].std() > 0.01
    elsewhere = ["--run_dir", tmp_path / "elsewhere", "--ckpt_path", tmp_path / "run/checkpoints/last.ckpt"]
    code, out, last = inside("test", "--config", tmp_path / "run/config.yaml", *elsewhere)
    assert code == 0 and "nothing was written" in out and not (tmp_path / "elsewhere").exists(), last


@pytest.mark.parametrize("name", [f"clip_figures.{name}" for name in CALLBACKS] + ["collapse.CollapseAlarm"])
def test_they_are_for_clip_alone(name: str, inside: Any, small: list[str], tmp_path: Path) -> None:
    options = ["--trainer.callbacks", f"[pipeline.callbacks.{name}]", "--trainer.logger=false", "--run_dir", tmp_path / "run"]
    code, _, last = inside("fit", *small, *options)
    assert code == 1 and f"{name.split('.')[1]} is for LitCLIP on ImageTextDataModule, and the model is LitGPT" in last


@pytest.mark.parametrize("kind", [SimilarityMatrix, JointMap, RetrievalTable])
def test_at_least_one_is_shown(kind: Any) -> None:
    with pytest.raises(ValueError, match="is 0; it must be at least 1"):
        kind(0)
