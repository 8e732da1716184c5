"""CLIP through the runner: metrics, the table of predictions, processes, resume, and what is refused."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reading import TINY_CLIP as TINY
from tests.reading import read_csv, run_pipeline, train_rows


@pytest.fixture
def run(clip_run: Path) -> Path:
    return clip_run


def test_what_is_logged(run: Path) -> None:
    rows = read_csv(run / "metrics.csv")
    training = [row for row in rows if row["train/loss"]]
    for name in ("image_to_text_loss", "text_to_image_loss", "image_to_text_accuracy", "text_to_image_accuracy", "logit_scale"):
        assert all(float(row[f"train/{name}"]) >= 0 for row in training)
    both = [(float(row["train/image_to_text_loss"]) + float(row["train/text_to_image_loss"])) / 2 for row in training]
    assert both == pytest.approx([float(row["train/loss"]) for row in training])
    assert 13 < float(training[0]["train/logit_scale"]) < 15
    (last,) = (row for row in rows if row["val/loss"] and row["step"] == "6")
    ways = [f"{way}_recall_at_{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10, "10_new")]
    for name in (*ways, "zero_shot_elusive", "zero_shot_seen"):
        assert 0 <= float(last[f"val/{name}"]) <= 1
    assert float(last["val/text_to_image_recall_at_1"]) <= float(last["val/text_to_image_recall_at_10"])


def test_test_and_predict(run: Path, inside: Any) -> None:
    code, out, last = inside("test", "--run_dir", run)
    assert code == 0 and "test/zero_shot_fontawesome_brands" in out, last
    assert inside("predict", "--run_dir", run)[0] == 0
    table = read_csv(run / "predictions.csv")
    assert list(table[0]) == ["index", "input", "caption", "similarity"] and len(table) == 494 + 68
    assert table[-1]["input"].startswith("fontawesome_brands ") and all(-1 <= float(row["similarity"]) <= 1 for row in table)


@pytest.mark.slow
def test_processes_and_chunks_have_one_curve(run: Path, tmp_path: Path) -> None:
    two = ["--config", "configs/trainer/ddp.yaml", "--trainer.devices=2", "--data.init_args.micro_batch_size=4"]
    ran = run_pipeline("fit", *TINY, *two, "--run_dir", tmp_path / "two")
    assert ran.returncode == 0, ran.stderr
    ones, twos = train_rows(run), train_rows(tmp_path / "two")
    assert [v for _, v in twos] == pytest.approx([v for _, v in ones], rel=1e-6) and len(ones) == 6
    checkpoint = torch.load(tmp_path / "two/checkpoints/last.ckpt", weights_only=True)
    state = checkpoint["optimizer_states"][0]["state"]  # D05: DDP ran with find_unused_parameters off
    assert len(state) == len(checkpoint["state_dict"])


@pytest.mark.slow
def test_evaluation_is_the_same_on_any_number_of_ranks(run: Path, inside: Any) -> None:
    assert inside("validate", "--run_dir", run)[0] == 0
    alone = json.loads((run / "results.json").read_text())["validate"]
    for batch in (100, 1000):  # in the second case one rank has nothing
        options = ["--config", run / "config.yaml", "--data.init_args.eval_batch_size", batch]
        assert inside("validate", "--run_dir", run, *options)[0] == 0
        alone = json.loads((run / "results.json").read_text())["validate"]
        ran = run_pipeline("validate", "--run_dir", run, *options, "--trainer.strategy", "ddp", "--trainer.devices", 2)
        assert ran.returncode == 0, ran.stderr
        assert json.loads((run / "results.json").read_text())["validate"] == alone


def test_a_stopped_run_ends_with_the_same_weights(run: Path, inside: Any, tmp_path: Path) -> None:
    def stop() -> None:
        path = tmp_path / "cut/metrics.csv"
        while not path.exists() or len(path.read_text().splitlines()) < 4:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    code, _, _ = inside("fit", *TINY, "--run_dir", tmp_path / "cut")
    assert code in (0, 143)
    assert inside("fit", *TINY, "--run_dir", tmp_path / "cut")[0] == 0
    states = [
        torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for folder in (run, tmp_path / "cut")
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_sigmoid_loss_brings_its_bias(inside: Any, tmp_path: Path) -> None:
    code, _, last = inside("fit", *TINY, "--model.init_args.loss=sigmoid", "--run_dir", tmp_path / "run")
    assert code == 0, last
    state = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert float(state["net.logit_bias"]) == pytest.approx(-10, abs=0.5) and float(state["net.logit_bias"]) != -10


@pytest.mark.parametrize(
    "option,message",
    [
        ("--data.init_args.batch_size=1", "data.init_args.batch_size is 1; a pair is compared with others"),
        ("--data.init_args.source.init_args.validation=[]", "there are no validation fonts"),
        ("--model.init_args.loss=hinge", "hinge"),
        ("--data.init_args.templates=[icon]", "the template 'icon' must have one {}"),
        ("--model.init_args.net.logit_bias=true", "model.init_args.net.logit_bias"),
        ("--model.init_args.net.eos_id=7", "model.init_args.net.eos_id is 7"),
        ("--data.init_args.image_size=30", "image_size 30 is not a multiple of patch_size 8"),
    ],
)
def test_bad_input(option: str, message: str, inside: Any, tmp_path: Path) -> None:
    code, _, last = inside("fit", *TINY, option, "--run_dir", tmp_path / "run")
    assert code == 2 and message in last and not (tmp_path / "run").exists(), last


def test_a_monitor_that_cannot_come_is_refused_before_anything_runs(inside: Any, tmp_path: Path) -> None:
    for name in ("val/zero_shot_elusiv", "val/zero_shot_codicons", "val/recall"):
        code, _, last = inside("fit", *TINY, f"--checkpoint.monitor={name}", "--run_dir", tmp_path / "run")
        assert (
            code == 2 and f"checkpoint.monitor {name} is not a metric of this run" in last and not (tmp_path / "run").exists()
        )
        assert ("training knows two of its captions" in last) == ("zero_shot" in name)
    assert "did you mean val/" in last
