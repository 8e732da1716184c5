"""An image classifier as a user goes: fit, test, figures, predict a folder; and what is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
import yaml
from PIL import Image

from tests.reading import run_pipeline

SMALL = [
    "--model.init_args.net.num_layers=2", "--model.init_args.net.num_heads=2", "--model.init_args.net.embed_dim=16",
    "--data.init_args.batch_size=20", "--trainer.accelerator=cpu", "--trainer.max_steps=4", "--trainer.val_check_interval=2",
]  # fmt: skip
FIGURES = ("attention_distance", "calibration_val", "class_attention", "confusion_val", "mistakes_val", "patch_filters")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "vit"
    ran = run_pipeline("fit", "--config", "configs/vit.yaml", *SMALL, "--run_dir", run)
    assert ran.returncode == 0, ran.stderr
    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of several kinds and sizes, in folders."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, mode, size in (("a.png", "L", (28, 28)), ("b.jpg", "RGB", (40, 30)), ("more/c.png", "RGBA", (20, 50))):
        shape = (size[1], size[0], *({"L": (), "RGB": (3,), "RGBA": (4,)}[mode]))
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / name)
    return folder


def test_the_links_took_effect_and_figures_are_there(trained: Path) -> None:
    config = yaml.safe_load((trained / "config.yaml").read_text())
    net = config["model"]["init_args"]["net"]
    assert net["image_size"] == 28 and net["num_classes"] == 10
    assets = torch.load(trained / "checkpoints/best.ckpt", weights_only=True)["assets"]
    assert assets["classes"] == [str(i) for i in range(10)] and assets["image_size"] == [28, 28]
    figures = {path.stem for path in (trained / "figures").iterdir()}
    assert {*FIGURES, "position_similarity"} <= figures
    last = json.loads((trained / "results.json").read_text())["last"]
    assert last["val/calibration_error"] > 0 and 0 <= last["train/accuracy"] <= 1


def test_test_and_predict(inside: Any, trained: Path, pictures: Path) -> None:
    code, _, last = inside("test", "--run_dir", trained)
    assert code == 0, last
    results = json.loads((trained / "results.json").read_text())
    assert 0 <= results["test"]["test/accuracy"] <= 1 and (trained / "figures/mistakes_test.png").is_file()
    code, _, last = inside("predict", "--run_dir", trained, "--images", pictures)
    assert code == 0, last
    with open(trained / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["input"] for row in rows] == [str(pictures / name) for name in ("a.png", "b.jpg", "more/c.png")]
    assert all(row["prediction"] in set("0123456789") and 0.1 <= float(row["probability"]) <= 1 for row in rows)
    assert inside("predict", f"--images={pictures}/more", "--run_dir", trained, "--format", "parquet")[0] == 0
    table = pyarrow.parquet.read_table(trained / "predictions.parquet").to_pylist()
    assert len(table) == 1 and table[0]["prediction"] == rows[2]["prediction"]
    assert table[0]["probability"] == pytest.approx(float(rows[2]["probability"]), rel=1e-5)


def test_predict_without_images_takes_the_test_split(inside: Any, trained: Path) -> None:
    assert inside("predict", "--run_dir", trained)[0] == 0
    with open(trained / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1000 and set(rows[0]) == {"index", "input", "prediction", "probability", "label"}


def test_what_cannot_be_is_refused(inside: Any, trained: Path, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def last_line(*options: Any, config: str = "vit", command: str = "fit") -> str:
        code, _, last = inside(command, "--config", f"configs/{config}.yaml", *SMALL, "--run_dir", run, *options)
        assert code == 2 and not run.exists(), last
        return last

    assert "image_size 30 is not a multiple of patch_size 4" in last_line("--data.init_args.image_size=30")
    assert "did you mean flip?" in last_line("--data.init_args.augmentation.flipp=true")
    assert "erasing 3.0 is no probability" in last_line("--data.init_args.augmentation.erasing=3")
    folder = "--data.init_args.source.class_path=datamodules.sources.image_folder.ImageFolder"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert str(empty) in last_line(folder, f"--data.init_args.source.init_args.train={empty}")
    for name in "ab":
        (empty / name).mkdir()
        for i in range(30):
            Image.new("L", (28, 28), i).save(empty / name / f"{i}.png")
    (empty / "b" / "7.png").write_bytes(b"no picture")
    assert "7.png" in last_line(folder, f"--data.init_args.source.init_args.train={empty}")
    workers = ["--data.init_args.memory_limit_gb=0", "--data.init_args.num_workers=1", "--trainer.max_steps=40"]
    code, _, last = inside(
        "fit", "--config", "configs/vit.yaml", *SMALL, *workers, "--run_dir", tmp_path / "met", folder,
        f"--data.init_args.source.init_args.train={empty}",
    )  # fmt: skip
    assert code == 1 and last.startswith(f"error: the run failed: {empty / 'b' / '7.png'}"), last
    (empty / "b" / "7.png").unlink()
    other = [folder, f"--data.init_args.source.init_args.train={empty}", f"--model.init_args.init_from={trained}"]
    assert "replace_head" in last_line(*other)
    code, out, last = inside(
        "fit", "--config", "configs/vit.yaml", *SMALL, "--run_dir", run, *other, "--model.init_args.replace_head=true"
    )
    assert code == 0 and "new: head" in out, last
    code, _, last = inside("predict", "--run_dir", trained, "--images", tmp_path / "nowhere")
    assert code == 2 and "nowhere" in last
    assert inside("predict", "--run_dir", trained, "--images")[0] == 2


def test_images_are_decoded_in_workers_beside_wandb(tmp_path: Path) -> None:
    """The second run finds the labels in the cache: nothing has opened the source before the workers do."""
    for name in ("first", "second"):
        options = ["--data.init_args.num_workers=2", "--data.init_args.memory_limit_gb=0", "--trainer.callbacks=[]"]
        ran = run_pipeline("fit", "--config", "configs/vit.yaml", *SMALL, *options, "--run_dir", tmp_path / name)
        assert ran.returncode == 0, ran.stderr
