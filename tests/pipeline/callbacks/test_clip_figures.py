"""What CLIP's figures show, on odd data too, and the alarm of a loss that stays at chance."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import pytest
import torch
from matplotlib.figure import Figure

from lit_models.losses.contrastive import chance
from pipeline import clip_figures, figures
from pipeline.callbacks.clip_figures import different, examples, first_captions
from pipeline.callbacks.collapse import CollapseAlarm
from pipeline.clip_figures import RIGHT, WRONG, ranked
from tests.lit_models.clip_ranks import tiny
from tests.reading import TINY_CLIP, records

PLACE = "pipeline.callbacks"


def drawn(figure: Figure, path: Path) -> Figure:
    figures.save(figure, path / "figure.png")
    assert matplotlib.image.imread(path / "figure.png")[..., :3].std() > 0.01
    return figure


def test_what_a_query_finds() -> None:
    row = ranked(torch.tensor([0.1, 0.9, torch.nan, 0.5]), torch.tensor([True, False, True, False]), 7, 3)
    assert (row.query, row.places, row.right) == (7, [1, 3, 0], [False, False, True])
    assert row.scores == pytest.approx([0.9, 0.5, 0.1])


def test_half_of_the_examples_are_found_and_half_are_not() -> None:
    candidates = torch.eye(8)
    right = torch.eye(8, dtype=torch.bool)
    right[[1, 3, 5, 6]] = right[[1, 3, 5, 6]].roll(1, 1)  # four that are wrong
    assert [row.query for row in examples(torch.eye(8), candidates, right, 4)] == [0, 2, 1, 3]
    assert [row.query for row in examples(torch.eye(8), candidates, torch.eye(8, dtype=torch.bool), 4)] == [0, 1, 2, 3]
    assert [row.query for row in examples(torch.eye(8), candidates, right[:, [1, 2, 3, 4, 5, 6, 7, 0]].roll(4, 1), 4)][
        0
    ] in range(8)


def test_first_captions_and_different_ones() -> None:
    rows = {"index": torch.tensor([0, 1, 2]), "pairs": torch.tensor([[0, 4], [0, 2], [1, 4], [2, 0], [2, 9]])}
    assert first_captions(rows).tolist() == [4, 4, 0]
    assert different(torch.tensor([4, 4, 0, 3, 0]), 2).tolist() == [0, 2] and len(different(torch.tensor([1, 1]), 5)) == 1


def test_the_similarity_matrix(tmp_path: Path) -> None:
    cosines = torch.eye(4).roll(1, 1) * 0.5
    cosines[0] = torch.tensor([0.9, 0.1, 0, 0])
    captions = ["a $1$ bill", "x" * 300, "credit card", "home"]
    figure = drawn(clip_figures.similarity_matrix(torch.rand(4, 3, 8, 12), captions, cosines), tmp_path)
    ax = figure.axes[0]
    assert torch.equal(torch.tensor(ax.images[0].get_array()), cosines) and "1 of 4 its own" in ax.get_title()
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == [r"a \$1\$ bill", "x" * 23 + "…"]
    for odd in (torch.zeros(1, 1), torch.full((4, 4), torch.nan)):
        drawn(clip_figures.similarity_matrix(torch.rand(len(odd), 3, 8, 8), captions[: len(odd)], odd), tmp_path)


def test_the_retrieval_table(tmp_path: Path) -> None:
    scores, right = torch.tensor([0.5, 0.7, 0.1, 0.2, 0.3, 0.4]), torch.tensor([True, False, False, False, False, False])
    rows = [ranked(scores, right, query, 5) for query in range(3)]
    pictures = dict(enumerate(torch.rand(6, 3, 8, 8)))
    captions = dict(enumerate(["a very long caption with $ signs " * 9, "b", "c", "d", "e", "f"]))
    figure = drawn(clip_figures.retrieval_table(pictures, captions, rows, rows, "title"), tmp_path)
    frames = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.get_title() for ax in frames] == ["0.70", "0.50", "0.40", "0.30", "0.20"] * 3
    colours = [next(iter(ax.spines.values())).get_edgecolor()[:3] for ax in frames[:2]]
    assert colours[0][0] > colours[0][1] and colours[1][1] > colours[1][0]  # red, green
    texts = [text for ax in figure.axes for text in ax.texts if text.get_text().startswith("0.")]
    assert [text.get_color() for text in texts[:3]] == [WRONG, RIGHT, WRONG] and texts[0].get_text() == "0.70  b"
    drawn(clip_figures.retrieval_table(pictures, captions, [], rows[:1], "title"), tmp_path)


def test_bars_and_map(tmp_path: Path) -> None:
    ax = drawn(clip_figures.zero_shot_bars(["font", ""], [0.5, 0.25], [10, 1000], [4, 8]), tmp_path).axes[0]
    assert [bar.get_width() for bar in ax.patches] == [0.5, 0.25]
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "font\n10 images, 4 classes",
        "all\n1,000 images, 8 classes",
    ]
    assert ax.lines[0].get_xdata().tolist() == [0.25, 0.125]
    figure = drawn(clip_figures.joint_map(torch.randn(9, 2), torch.randn(9, 2), [0.5, 0.2], 0.8, num_lines=4), tmp_path)
    assert "9 pairs" in figure.axes[0].get_title() and "0.80 apart" in figure.axes[0].get_title()
    assert len(figure.axes[0].lines) == 4


NAMES = ("similarity", "retrieval_val", "zero_shot", "joint_map")


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_figures_of_a_run(precision: str, inside: Any, tmp_path: Path) -> None:
    options = ["--trainer.callbacks", f"[{PLACE}.clip_figures.CLIPFigures,{PLACE}.collapse.CollapseAlarm]"]
    options += [f"--trainer.precision={precision}", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]
    code, _, last = inside("fit", *TINY_CLIP, *options, "--run_dir", tmp_path / "run")
    assert code == 0, last
    for name in NAMES:
        assert matplotlib.image.imread(tmp_path / f"run/figures/{name}.png")[..., :3].std() > 0.01
    if precision == "32-true":
        code, _, last = inside("test", "--run_dir", tmp_path / "run")
        assert code == 0, last
        for name in ("retrieval_test", "zero_shot_test"):
            assert (tmp_path / f"run/figures/{name}.png").exists()


def test_a_callback_says_what_it_is_for(inside: Any, small: list[str], tmp_path: Path) -> None:
    for name in ("clip_figures.CLIPFigures", "collapse.CollapseAlarm"):
        options = ["--trainer.logger=false", "--trainer.callbacks", f"[{PLACE}.{name}]", "--fresh"]
        code, _, last = inside("fit", *small, *options, "--run_dir", tmp_path / "run")
        assert code != 0 and f"{name.split('.')[1]} is for a LitCLIP, and the model is a LitGPT" in last


def step(alarm: CollapseAlarm, loss: float, number: int, kind: str = "softmax") -> None:
    module = tiny(kind)
    module._last = {"loss": loss, "lr": 0.0, "grad_norm": 0.0}
    trainer: Any = SimpleNamespace(
        global_step=number, log_every_n_steps=10, accumulate_grad_batches=1, max_steps=1000, is_global_zero=True, loggers=[],
        datamodule=SimpleNamespace(batch_size=64),
    )  # fmt: skip
    alarm.on_train_batch_end(trainer, module, None, None, number - 1)


def test_the_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    alarm = CollapseAlarm(patience=50)
    for number in range(1, 45):
        step(alarm, math.log(64), number)
    assert not capsys.readouterr().out and not alarm.warned
    again = CollapseAlarm(patience=50)
    again.load_state_dict(alarm.state_dict())
    for number in (50, 60):
        step(again, math.log(64), number)
    assert capsys.readouterr().out.count("alarm: after 50 steps the loss is 4.16, and features that say nothing have 4.16") == 1
    learned = CollapseAlarm(patience=50)
    step(learned, 3.9, 10)
    for number in (50, 60):
        step(learned, math.log(64), number)
    assert learned.learned and not capsys.readouterr().out
    step(CollapseAlarm(patience=50), chance(64, sigmoid=True), 50, "sigmoid")
    assert "alarm" in capsys.readouterr().out


def test_the_alarm_reaches_wandb(inside: Any, tmp_path: Path) -> None:
    options = ["--trainer.callbacks.class_path", f"{PLACE}.collapse.CollapseAlarm", "--trainer.callbacks.init_args.patience=2"]
    options += ["--model.init_args.optimizer.init_args.lr=0", "--model.init_args.optimizer.init_args.adamw_lr=0"]
    shorter = [option for option in TINY_CLIP if not option.startswith("--trainer.callbacks")]
    code, said, last = inside("fit", *shorter, *options, "--run_dir", tmp_path / "run")
    assert code == 0 and said.count("alarm: after 2 steps") == 1, last
    assert any("alert" in record for record in records(tmp_path / "run"))
