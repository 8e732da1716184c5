"""Figures hold what they are given, and nothing of it is cut off."""

from pathlib import Path

import matplotlib.image
import pytest
import torch

from pipeline import figures


def test_a_confusion_matrix_has_counts_and_shares_of_its_rows() -> None:
    figure = figures.confusion_grid(torch.tensor([[3, 1], [0, 2]]), ["low", "_$high$"])
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.texts] == ["3\n75%", "1\n25%", "0", "2\n100%"]
    assert ax.get_title() == "83.3% of 6 right"
    assert not figures.confusion_grid(torch.eye(21, dtype=torch.int64), [str(i) for i in range(21)]).axes[0].texts


@pytest.mark.parametrize("number", [1, 2, 12, 150])
def test_figures_of_any_number_of_classes_are_drawn_whole(number: int, tmp_path: Path) -> None:
    names = [f"_a class of ${i}$ with a long name" for i in range(number)]
    labels = [i % number for i in range(2 * number)]
    map_of = figures.scatter(torch.randn(2 * number, 2), [0.5, 0.25], labels, names)
    assert len(map_of.legends[0].get_texts()) == number
    for name, figure in {"map": map_of, "confusion": figures.confusion_grid(torch.eye(number), names)}.items():
        figures.save(figure, tmp_path / f"{name}.png")
        pixels = matplotlib.image.imread(tmp_path / f"{name}.png")[..., :3]
        assert pixels.std() > 0.01
        assert all((edge == 1).all() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))  # nothing is cut off
