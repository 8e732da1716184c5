"""When the alarm for a loss that stays at chance goes off."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_models.clip import LitCLIP
from lit_models.losses.contrastive import chance
from pipeline.callbacks.collapse import CollapseAlarm
from tests.reading import TINY_CLIP, records


def run(alarm: CollapseAlarm, losses: dict[int, float], loss: str = "softmax", **trainer: Any) -> None:
    """Steps from the first to the last of `losses`; every tenth is logged. A loss holds until the next one."""
    module = LitCLIP.__new__(LitCLIP)
    torch.nn.Module.__init__(module)
    module.loss = loss
    now = {"train/loss": math.nan}
    module.step_metrics = lambda: now
    for step in range(min(losses), max(losses) + 1):
        now["train/loss"] = losses.get(step, now["train/loss"])
        given = {"datamodule": SimpleNamespace(batch_size=256), "is_global_zero": True, "loggers": [], "max_steps": 1000}
        given |= {"accumulate_grad_batches": 1, "log_every_n_steps": 10, "global_step": step}
        at: Any = SimpleNamespace(**given | trainer)
        alarm.on_train_batch_end(at, module, None, None, step - 1)


def test_it_goes_off_once_after_its_patience(capsys: pytest.CaptureFixture[str]) -> None:
    alarm = CollapseAlarm(100)
    run(alarm, {1: math.log(256), 99: 5.5})
    assert capsys.readouterr().out == "" and not alarm.warned
    run(alarm, {100: 5.5, 200: 5.5})
    (line,) = capsys.readouterr().out.splitlines()
    assert "the loss has stayed at ln(256) = 5.55, that of chance, for 100 steps" in line and "captions" in line


def test_a_loss_that_was_below_once_is_no_alarm(capsys: pytest.CaptureFixture[str]) -> None:
    alarm = CollapseAlarm(100)
    run(alarm, {1: 5.55, 50: 0.94 * math.log(256), 51: 5.55, 400: 5.55})
    assert alarm.learned and not alarm.warned and capsys.readouterr().out == ""
    run(alarm := CollapseAlarm(100), {1: 0.96 * math.log(256), 400: 5.0})
    assert alarm.warned


def test_it_looks_at_logged_steps_alone() -> None:
    run(alarm := CollapseAlarm(100), {1: 5.55, 45: 1.0, 46: 5.55, 100: 5.55})
    assert alarm.warned


def test_chance_is_that_of_the_loss_and_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    expected = chance(256, True)
    assert 0.95 * expected > math.log(256)
    run(CollapseAlarm(100), {1: 0.96 * expected, 300: 0.96 * expected}, "sigmoid")
    assert f"at {expected:.2f}, that of chance" in capsys.readouterr().out
    run(CollapseAlarm(100), {1: 0.94 * expected, 300: 0.94 * expected}, "sigmoid")
    assert capsys.readouterr().out == ""


def test_other_ranks_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    run(alarm := CollapseAlarm(10), {1: 5.55, 100: 5.55}, is_global_zero=False)
    assert alarm.warned and capsys.readouterr().out == ""


@pytest.mark.parametrize("losses", [{1: 5.55, 200: 5.55}, {1: 5.0, 200: 5.55}])
def test_what_it_knows_survives_a_resume(losses: dict[int, float], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = CollapseAlarm(100), CollapseAlarm(100)
    run(first, losses)
    capsys.readouterr()
    second.load_state_dict(first.state_dict())
    run(second, {201: 5.55, 400: 5.55})
    assert capsys.readouterr().out == "" and (second.learned, second.warned) == (first.learned, first.warned)


def test_no_patience_is_refused() -> None:
    with pytest.raises(ValueError, match="patience is 0"):
        CollapseAlarm(0)


def test_in_a_run(inside: Any, tmp_path: Path) -> None:
    alarm = "[{class_path: pipeline.callbacks.collapse.CollapseAlarm, init_args: {patience: 3}}]"
    still = ["--model.init_args.optimizer.init_args.lr=0", "--model.init_args.optimizer.init_args.adamw_lr=0"]
    options = [*TINY_CLIP, *still, "--trainer.callbacks", alarm, "--run_dir", tmp_path / "run"]
    code, out, last = inside("fit", *options, "--trainer.max_steps=4")
    assert code == 0, last
    assert out.count("warning: the loss has stayed at ln(16) = 2.77, that of chance, for 3 steps") == 1
    kept = [record for record in records(tmp_path / "run") if record["type"] == "alert"]
    assert len(kept) == 1 and "ln(16)" in str(kept[0])
    code, out, last = inside("fit", *options, "--trainer.max_steps=6")
    assert code == 0 and "continuing" in out and "warning" not in out, last
