"""Two processes on one machine give what one gives."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reading import SMALL, read_csv, records, run_pipeline, train_rows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same small run on one process, and on two with accumulation."""
    folder = tmp_path_factory.mktemp("runs")
    command = ["fit", *SMALL, "--data.init_args.source.init_args.paths", text, "--data.init_args.eval_batch_size", 50]
    ran = run_pipeline(*command, "--run_dir", folder / "one")
    assert ran.returncode == 0, ran.stderr
    two = ["--config", "configs/trainer/ddp.yaml", "--trainer.devices", 2, "--data.init_args.micro_batch_size", 2]
    ran = run_pipeline(*command, *two, "--run_dir", folder / "two")
    assert ran.returncode == 0, ran.stderr
    return folder / "one", folder / "two"


def test_one_curve(runs: tuple[Path, Path]) -> None:
    one, two = map(train_rows, runs)
    assert [s for s, _ in one] == [s for s, _ in two]
    assert [v for _, v in one] == pytest.approx([v for _, v in two], rel=1e-6)


def test_evaluation_counts_every_sample_once_on_any_number_of_ranks(runs: tuple[Path, Path], inside: Any) -> None:
    """1,999 predictions in 125 windows of 16: 3 batches of 50, so that the ranks have 2 and 1."""
    one, _ = runs
    assert inside("validate", "--run_dir", one)[0] == 0
    alone = json.loads((one / "results.json").read_text())["validate"]
    ran = run_pipeline("validate", "--run_dir", one, "--trainer.strategy", "ddp", "--trainer.devices", 2)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((one / "results.json").read_text())["validate"] == alone


def test_a_rank_may_have_nothing_to_evaluate(runs: tuple[Path, Path], inside: Any) -> None:
    """All 125 windows in one batch: the second rank has none."""
    one, _ = runs
    batch = ["--data.init_args.eval_batch_size", 500]
    assert inside("validate", "--run_dir", one, "--config", one / "config.yaml", *batch)[0] == 0
    alone = json.loads((one / "results.json").read_text())["validate"]
    two = ["--trainer.strategy", "ddp", "--trainer.devices", 2]
    ran = run_pipeline("validate", "--run_dir", one, "--config", one / "config.yaml", *batch, *two)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((one / "results.json").read_text())["validate"] == alone


def test_w01_one_wandb_run(runs: tuple[Path, Path]) -> None:
    _, two = runs
    assert len(list((two / "wandb").glob("offline-run-*"))) == 1
    assert len([r for r in records(two) if r["type"] == "run"]) >= 1
    rows = read_csv(two / "metrics.csv")
    assert [int(r["step"]) for r in rows if r["train/loss"]] == list(range(1, 13))  # no row of a second rank


def test_d05_every_parameter_has_a_gradient(runs: tuple[Path, Path]) -> None:
    """DDP ran with find_unused_parameters off; every weight has moved and has optimizer state."""
    checkpoint = torch.load(runs[1] / "checkpoints/last.ckpt", weights_only=True)
    state = checkpoint["optimizer_states"][0]["state"]
    assert len(state) == len(checkpoint["state_dict"])
    assert all(bool(s["exp_avg"].abs().sum() > 0) for s in state.values())


def test_a_run_goes_on_with_another_number_of_processes(
    runs: tuple[Path, Path], inside: Any, text: Path, tmp_path: Path
) -> None:
    one, two = runs
    command = ["fit", *SMALL, "--data.init_args.source.init_args.paths", text, "--data.init_args.eval_batch_size", 50]
    more = ["--trainer.max_steps", 16]
    code, out, last = inside(*command, *more, "--run_dir", two)
    assert code == 0 and "trainer.devices: 2 -> 1" in out, last
    assert inside(*command, *more, "--run_dir", one)[0] == 0
    assert [v for _, v in train_rows(one)] == pytest.approx([v for _, v in train_rows(two)], rel=1e-5)
    assert [s for s, _ in train_rows(two)] == list(range(1, 17))
