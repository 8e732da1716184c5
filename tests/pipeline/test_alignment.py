"""PPO through the runner: killed it goes on to the bit, and two processes have the rewards of one."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.reading import ROOT, read_csv, run_pipeline

pytestmark = pytest.mark.slow
SMALL = ["--trainer.accelerator=cpu", "--trainer.logger=false"]
PPO = [
    "fit", "--config", "configs/alignment/enumerable.yaml", *SMALL, "--trainer.max_steps=6", "--trainer.val_check_interval=3",
    "--trainer.log_every_n_steps=1", "--checkpoint.every_n_steps=1", "--data.init_args.batch_size=64",
    "--model.init_args.update.minibatch_size=24", "--model.init_args.update.kl_target=3",
    "--model.init_args.update.stop_kl", "null", "--model.init_args.update.value_clip=null",
]  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A finished run, and the command without its run folder."""
    folder = tmp_path_factory.mktemp("ppo")
    sft = ["fit", "--config", "configs/alignment/enumerable_sft.yaml", *SMALL, "--trainer.max_steps=40"]
    assert run_pipeline(*sft, "--run_dir", folder / "sft").returncode == 0
    command = [*PPO, "--model.init_args.init_from", str(folder / "sft")]
    ran = run_pipeline(*command, "--run_dir", folder / "whole")
    assert ran.returncode == 0, ran.stderr
    return folder, command


def test_d12_a_step_is_a_rollout(runs: tuple[Path, list[str]]) -> None:
    folder, _ = runs
    rows = [row for row in read_csv(folder / "whole/metrics.csv") if row["train/score"]]
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    checkpoint = torch.load(folder / "whole/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 6 and float(rows[0]["train/num_updates"]) == 12  # 4 epochs of 3 minibatches
    assert all(float(row["train/first_log_ratio"]) <= 1e-5 for row in rows) and float(rows[0]["train/kl"]) == 0
    steps = {float(state["step"]) for state in checkpoint["optimizer_states"][0]["state"].values()}
    assert steps == {6 * 12.0}
    rates = [float(row["optim/lr"]) for row in rows]
    assert rates[0] < rates[1] and rates[1:] == sorted(rates[1:], reverse=True)  # warm-up of 2, then down to 0


def test_an_option_that_is_null_is_null_two_classes_deep(runs: tuple[Path, list[str]]) -> None:
    update = yaml.safe_load((runs[0] / "whole/config.yaml").read_text())["model"]["init_args"]["update"]
    assert update["stop_kl"] is None and update["value_clip"] is None and update["kl_target"] == 3


def test_killed_anywhere_it_ends_with_the_same_weights(runs: tuple[Path, list[str]]) -> None:
    folder, command = runs
    words = [sys.executable, "-m", "pipeline", *command, "--run_dir", str(folder / "cut")]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, deadline = folder / "cut/metrics.csv", time.monotonic() + 120
    while (not path.exists() or len(path.read_text().splitlines()) < 4) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ran = run_pipeline(*command, "--run_dir", folder / "cut")
    assert ran.returncode == 0 and "continuing" in ran.stdout, ran.stderr
    states = [torch.load(folder / run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in ("whole", "cut")]
    assert states[0].keys() == states[1].keys() and all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    rows: list[Any] = [
        [(row["step"], row["train/score"], row["val/score"]) for row in read_csv(folder / run / "metrics.csv")]
        for run in ("whole", "cut")
    ]
    assert rows[0] == rows[1]


def test_two_processes_have_the_rewards_and_the_update_of_one(runs: tuple[Path, list[str]]) -> None:
    folder, command = runs
    two = ["--config", "configs/trainer/ddp.yaml", "--trainer.devices=2", "--data.init_args.micro_batch_size=16"]
    ran = run_pipeline(*command, *two, "--run_dir", folder / "two")
    assert ran.returncode == 0, ran.stderr
    ones, twos = (read_csv(folder / run / "metrics.csv") for run in ("whole", "two"))
    assert len(ones) == len(twos)
    for one, other in zip(ones, twos, strict=True):
        for name in ("train/score", "train/kl", "train/policy_loss", "train/value_loss", "val/score", "val/kl"):
            assert bool(one[name]) == bool(other[name])
            if one[name]:
                assert float(other[name]) == pytest.approx(float(one[name]), rel=1e-4, abs=1e-6)
