"""Killed anywhere and started again with the same command, a run ends as if it had never stopped."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.reading import ROOT, SMALL, history, read_csv, records, run_pipeline, train_rows

DROPOUT = ["--model.init_args.net.dropout", "0.1"]


def start(*args: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline", *map(str, args)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(run_dir: Path, step: int, process: subprocess.Popen[str]) -> None:
    """Until metrics.csv has a row of `step`."""
    for _ in range(6000):
        metrics = run_dir / "metrics.csv"
        if metrics.exists() and any(line.startswith(f"{step},") for line in metrics.read_text().splitlines()):
            return
        if process.poll() is not None:
            raise AssertionError(process.communicate())
        time.sleep(0.01)
    raise AssertionError(f"step {step} never came")


def weights(run_dir: Path) -> dict[str, torch.Tensor]:
    return torch.load(run_dir / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def assert_same_run(one: Path, other: Path) -> None:
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    rows = [read_csv(d / "metrics.csv") for d in (one, other)]
    for name in ("train/loss", "val/loss", "optim/lr", "optim/grad_norm", "val/bits_per_byte"):
        first, second = ([(r["step"], r[name]) for r in part if r[name]] for part in rows)
        assert first == second, name


@pytest.fixture(scope="module")
def command(text: Path) -> list[str]:
    long = ["--trainer.max_steps", "150", "--trainer.val_check_interval", "20", "--checkpoint.every_n_steps", "7"]
    return ["fit", *SMALL, "--data.init_args.source.init_args.paths", str(text), *DROPOUT, *long]


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing stopped."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    ran = run_pipeline(*command, "--run_dir", run_dir)
    assert ran.returncode == 0, ran.stderr
    return run_dir


@pytest.mark.slow
def test_k05_killed_again_and_again(command: list[str], whole: Path, tmp_path: Path) -> None:
    """Six SIGKILLs at random moments (seed 0), between start-up and the end; always a readable checkpoint."""
    draw, run_dir = random.Random(0), tmp_path / "killed"
    for step in sorted(draw.sample(range(8, 140), 6)):
        process = start(*command, "--run_dir", run_dir)
        wait_for_step(run_dir, step, process)
        time.sleep(draw.random() * 0.05)
        process.kill()
        process.communicate()
        for path in (run_dir / "checkpoints").glob("*.ckpt"):
            torch.load(path, weights_only=True)
    ran = run_pipeline(*command, "--run_dir", run_dir)
    assert ran.returncode == 0, ran.stderr
    assert "continuing" in ran.stdout
    assert_same_run(whole, run_dir)
    assert not list((run_dir / "checkpoints").glob(".*"))


@pytest.mark.slow
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR1, 143)])
def test_an_orderly_stop_saves_and_goes_on(command: list[str], whole: Path, tmp_path: Path, signum: int, code: int) -> None:
    run_dir = tmp_path / "stopped"
    process = start(*command, "--run_dir", run_dir)
    wait_for_step(run_dir, 30, process)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert signal.Signals(signum).name in err.strip().splitlines()[-1] and "Traceback" not in err
    step = torch.load(run_dir / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    assert step >= 30 and train_rows(run_dir)[-1][0] == step  # saved where it stopped, not at the interval before
    ran = run_pipeline(*command, "--run_dir", run_dir)
    assert ran.returncode == 0 and f"from step {step}" in ran.stdout, ran.stderr
    assert_same_run(whole, run_dir)


@pytest.mark.slow
def test_w05_the_wandb_run_goes_on_without_gaps(command: list[str], whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "killed"
    process = start(*command, "--run_dir", run_dir)
    wait_for_step(run_dir, 61, process)
    process.kill()
    process.communicate()
    ran = run_pipeline(*command, "--run_dir", run_dir)
    assert ran.returncode == 0, ran.stderr
    assert len({r["run"]["run_id"] for r in records(run_dir) if r["type"] == "run"}) == 1
    assert len(list((run_dir / "wandb").glob("offline-run-*"))) == 2
    for name in ("train/loss", "val/loss"):
        seen: dict[int, set[float]] = {}
        for row in history(run_dir):
            if name in row:
                seen.setdefault(row["trainer/global_step"], set()).add(row[name])
        rows = {int(r["step"]): float(r[name]) for r in read_csv(whole / "metrics.csv") if r[name]}
        assert all(len(values) == 1 for values in seen.values())  # a row may come twice, never with another value
        assert {step: values.pop() for step, values in seen.items()} == pytest.approx(rows)


def test_metrics_are_cut_back_to_the_checkpoint(small: list[str], inside: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 6)[0] == 0
    with open(run_dir / "metrics.csv", "a") as f:
        f.write("7,1.0\n8,1")  # what a kill leaves: rows after the checkpoint, the last one torn
    code, out, last = inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 9)
    assert code == 0, last
    assert "changed: trainer.max_steps: 6 -> 9" in out
    assert Counter(step for step, _ in train_rows(run_dir)) == Counter(range(1, 10))


def test_k05_a_torn_checkpoint_is_passed_over(small: list[str], inside: Any, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert inside("fit", *small, "--run_dir", whole)[0] == 0
    assert inside("fit", *small, "--run_dir", torn, "--trainer.max_steps", 10)[0] == 0
    last = torn / "checkpoints/last.ckpt"
    last.write_bytes(last.read_bytes()[:-1000])
    code, out, err = inside("fit", *small, "--run_dir", torn)
    assert code == 0, err
    assert "last.ckpt is not a readable checkpoint" in out and "(best.ckpt)" in out
    assert_same_run(whole, torn)
    for path in (torn / "checkpoints").iterdir():
        path.write_bytes(b"")
    code, _, err = inside("fit", *small, "--run_dir", torn, "--trainer.max_steps", 20)
    assert code == 2 and "--fresh" in err


def test_a_changed_config_is_refused_or_shown(small: list[str], inside: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 4)[0] == 0
    changed = [*small, "--model.init_args.optimizer.init_args.lr", "0.5", "--trainer.max_steps", "6"]
    before = (run_dir / "config.yaml").read_bytes()
    code, _, err = inside("fit", *changed, "--run_dir", run_dir)
    assert code == 2 and "optimizer.init_args.lr: 0.003 -> 0.5" in err and "--allow_changes" in err
    assert (run_dir / "config.yaml").read_bytes() == before
    code, out, err = inside("fit", *changed, "--run_dir", run_dir, "--allow_changes")
    assert code == 0 and "0.003 -> 0.5" in out, err
    rates = [float(r["optim/lr"]) for r in read_csv(run_dir / "metrics.csv") if r["optim/lr"]]
    assert rates == pytest.approx([0.003 * s / 100 for s in (1, 2, 3, 4)] + [0.5 * s / 100 for s in (5, 6)])
    saved = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert saved["model"]["init_args"]["optimizer"]["init_args"]["lr"] == 0.5
    configs = [r["config"] for r in records(run_dir) if r["type"] == "config"]
    assert any("0.5" in str(c) for c in configs) or "0.5" in str(records(run_dir))  # W&B shows the new value


def test_fresh_starts_anew_and_strangers_are_left_alone(small: list[str], inside: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 4)[0] == 0
    first = (run_dir / "wandb/run_id").read_text()
    code, out, _ = inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 2, "--fresh")
    assert code == 0 and "continuing" not in out
    assert [s for s, _ in train_rows(run_dir)] == [1, 2] and (run_dir / "wandb/run_id").read_text() != first
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for fresh in ([], ["--fresh"]):
        code, _, err = inside("fit", *small, "--run_dir", tmp_path / "mine", *fresh)
        assert code == 2 and "holds other files" in err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_the_best_score_is_remembered(small: list[str], inside: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 10)[0] == 0
    saved = torch.load(run_dir / "checkpoints/best.ckpt", weights_only=True)
    wrecked = [*small, "--trainer.max_steps", "12", "--model.init_args.optimizer.init_args.lr", "100.0", "--allow_changes"]
    assert inside("fit", *wrecked, "--run_dir", run_dir)[0] == 0
    after = torch.load(run_dir / "checkpoints/best.ckpt", weights_only=True)
    assert after["global_step"] == saved["global_step"] == 10
