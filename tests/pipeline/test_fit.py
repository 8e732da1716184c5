"""A run from the first step to the last line: its files, its rows, its W&B run, its config."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
import yaml

from pipeline.tracking import artifacts_used
from tests.reading import SMALL, history, read_csv, records, run_pipeline, train_rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text: Path) -> tuple[Path, str]:
    """The folder of a finished small run, and what it printed."""
    run_dir = tmp_path_factory.mktemp("runs") / "small"
    ran = run_pipeline("fit", *SMALL, "--data.init_args.source.init_args.paths", text, "--run_dir", run_dir)
    assert ran.returncode == 0, ran.stderr
    return run_dir, ran.stdout


@pytest.fixture
def done(finished: tuple[Path, str]) -> Path:
    return finished[0]


def test_a_run_leaves_its_files_and_says_what_next(finished: tuple[Path, str]) -> None:
    done, out = finished
    for name in ("config.yaml", "metrics.csv", "results.json", "checkpoints/last.ckpt", "checkpoints/best.ckpt"):
        assert (done / name).is_file(), name
    assert "nats per token" in out and "val/bits_per_byte" in out
    assert str(done) in out and "wandb sync" in out and "generate --run_dir" in out


def test_rows_count_optimizer_steps(done: Path) -> None:
    rows = read_csv(done / "metrics.csv")
    assert [int(r["step"]) for r in rows if r["train/loss"]] == list(range(1, 13))
    assert [int(r["step"]) for r in rows if r["val/loss"]] == [5, 10, 12]
    assert {"optim/lr", "optim/grad_norm", "perf/tokens_per_second", "perf/mfu", "perf/data_wait"} <= set(rows[0])
    assert {"val/bits_per_byte", "val/perplexity"} <= set(rows[0])
    assert float(rows[0]["optim/lr"]) == pytest.approx(3e-3 / 100)  # the rate of the first update: warm-up 100


def test_results_hold_the_outcome(done: Path) -> None:
    results = json.loads((done / "results.json").read_text())
    rows = [r for r in read_csv(done / "metrics.csv") if r["val/loss"]]
    assert results["steps"] == 12 and results["tokens"] == 12 * 8 * 16 and results["seconds"] > 0
    assert results["last"]["val/loss"] == float(rows[-1]["val/loss"])
    assert results["best"]["val/loss"] == min(float(r["val/loss"]) for r in rows)
    assert results["versions"]["torch"] == torch.__version__.split("+")[0]
    assert results["command"].startswith("python -m pipeline")


def test_w02_wandb_has_every_row_at_its_optimizer_step(done: Path) -> None:
    rows = history(done)
    assert all("trainer/global_step" in row for row in rows)
    csv_rows = read_csv(done / "metrics.csv")
    for name in ("train/loss", "val/loss", "optim/lr", "val/perplexity"):
        there = {row["trainer/global_step"]: row[name] for row in rows if name in row}
        assert there == {int(r["step"]): pytest.approx(float(r[name])) for r in csv_rows if r[name]}


def test_c05_the_whole_config_is_on_the_run_from_the_start(done: Path) -> None:
    runs = [r["run"] for r in records(done) if r["type"] == "run"]
    configs = [r["config"] for r in records(done) if r["type"] == "config"] + [r.get("config", {}) for r in runs]
    update: dict[str, Any] = {}
    for config in reversed(configs):
        update |= config.get("update", {})
    saved = yaml.safe_load((done / "config.yaml").read_text())
    assert update["trainer"]["max_steps"] == 12 and update["seed_everything"] == 0
    for key, value in saved.items():
        assert update[key] == value, key
    assert saved["trainer"]["max_epochs"] is None  # nulls are kept


def test_c06_a_checkpoint_loads_without_the_command_line(done: Path, text: Path) -> None:
    from lit_models.gpt import LitGPT

    vocab_size = len(set(text.read_text()[: int(20_000 * 0.9)]))
    module = LitGPT.load_from_checkpoint(done / "checkpoints/best.ckpt", weights_only=True, map_location="cpu")
    assert module.net.token_embedding.num_embeddings == vocab_size
    again: dict[str, Any] = {"hyper_parameters": dict(module.hparams)}
    module.on_save_checkpoint(again)  # saved once more, it is still whole
    assert again["hyper_parameters"]["net"]["vocab_size"] == vocab_size and again["assets"]["tokenizer"]
    saved = yaml.safe_load((done / "config.yaml").read_text())
    assert saved["model"]["init_args"]["net"]["vocab_size"] == vocab_size


def test_c06_the_saved_config_gives_the_same_run_bit_for_bit(done: Path, inside: Any, tmp_path: Path) -> None:
    code, _, last = inside("fit", "--config", done / "config.yaml", "--run_dir", tmp_path / "again", "--trainer.max_steps", 2)
    assert code == 0, last
    assert train_rows(tmp_path / "again") == train_rows(done)[:2]


def test_k03_checkpoints_hold_plain_types_only(done: Path) -> None:
    checkpoint = torch.load(done / "checkpoints/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 12 and "tokenizer" in checkpoint["assets"]
    assert not any("_orig_mod" in name for name in checkpoint["state_dict"])


def test_k09_nothing_left_to_train_is_said(done: Path, small: list[str], inside: Any) -> None:
    before = (done / "checkpoints/best.ckpt").stat().st_mtime_ns
    code, out, _ = inside("fit", *small, "--run_dir", done)
    assert code == 0 and "nothing left to train" in out
    assert (done / "checkpoints/best.ckpt").stat().st_mtime_ns == before


def test_validate_test_and_predict_need_the_run_folder_only(done: Path, inside: Any) -> None:
    code, out, last = inside("validate", "--run_dir", done)
    assert code == 0, last
    results = json.loads((done / "results.json").read_text())
    assert results["validate"]["val/loss"] == pytest.approx(results["best"]["val/loss"], abs=1e-12)
    code, _, last = inside("test", "--run_dir", done)
    assert code == 2 and "no test split" in last


def test_predictions_sum_to_the_validation_loss(done: Path, text: Path, inside: Any, tmp_path: Path) -> None:
    characters = text.read_text()
    (tmp_path / "test.txt").write_text(characters[:3_001])
    extra = ["--data.init_args.source.init_args.test_paths", tmp_path / "test.txt"]
    for form in ("csv", "parquet"):
        code, _, last = inside("predict", "--config", done / "config.yaml", "--run_dir", done, "--format", form, *extra)
        assert code == 0, last
    rows = read_csv(done / "predictions.csv")
    assert sum(int(r["tokens"]) for r in rows) == 3_000 and [int(r["index"]) for r in rows] == list(range(188))
    code, _, last = inside("test", "--config", done / "config.yaml", "--run_dir", done, *extra)
    assert code == 0, last
    loss = json.loads((done / "results.json").read_text())["test"]["test/loss"]
    assert sum(float(r["nats"]) for r in rows) / 3_000 == pytest.approx(loss, rel=1e-5)


def test_c03_own_callbacks_survive_a_list_of_the_users(small: list[str], inside: Any, tmp_path: Path) -> None:
    extra = ["--trainer.callbacks+=lightning.pytorch.callbacks.EarlyStopping", "--trainer.callbacks.monitor=val/loss"]
    code, _, last = inside("fit", *small, *extra, "--run_dir", tmp_path / "run", "--trainer.max_steps", 3)
    assert code == 0, last
    callbacks = torch.load(tmp_path / "run/checkpoints/last.ckpt", weights_only=True)["callbacks"]
    assert {name.split("{")[0] for name in callbacks} >= {"Checkpoints", "Tracker", "EarlyStopping"}
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())["trainer"]["callbacks"]
    assert [c["class_path"] for c in saved] == ["lightning.pytorch.callbacks.EarlyStopping"]


@pytest.mark.parametrize("micro", [8, 4, 2])
def test_w02_accumulation_changes_neither_axis_nor_loss(
    small: list[str], inside: Any, tmp_path: Path, done: Path, micro: int
) -> None:
    code, _, last = inside("fit", *small, "--run_dir", tmp_path / "run", "--data.init_args.micro_batch_size", micro)
    assert code == 0, last
    rows, reference = train_rows(tmp_path / "run"), train_rows(done)
    assert [s for s, _ in rows] == [s for s, _ in reference]
    assert [v for _, v in rows] == pytest.approx([v for _, v in reference], rel=1e-6)


def test_epochs_and_fractions_become_steps(small: list[str], inside: Any, tmp_path: Path) -> None:
    length = ["--trainer.max_steps", -1, "--trainer.max_epochs", 2, "--trainer.limit_train_batches", 4]
    code, _, last = inside("fit", *small, *length, "--trainer.val_check_interval", 0.5, "--run_dir", tmp_path / "run")
    assert code == 0, last
    rows = read_csv(tmp_path / "run/metrics.csv")
    assert [int(r["step"]) for r in rows if r["train/loss"]] == list(range(1, 9))
    assert [int(r["step"]) for r in rows if r["val/loss"]] == [2, 4, 6, 8]
    assert float(rows[-2]["train/epoch"]) == 2.0


def test_wandb_can_be_left_out(small: list[str], inside: Any, tmp_path: Path) -> None:
    options = ["--trainer.logger", "false", "--trainer.max_steps", 2]
    code, out, last = inside("fit", *small, *options, "--run_dir", tmp_path / "run")
    assert code == 0, last
    assert not (tmp_path / "run/wandb").exists() and (tmp_path / "run/metrics.csv").exists() and "W&B" not in out


def test_artifacts_when_asked_for(small: list[str], inside: Any, tmp_path: Path) -> None:
    code, _, last = inside("fit", *small, "--run_dir", tmp_path / "run", "--wandb.artifacts", "true", "--trainer.max_steps", 2)
    assert code == 0, last
    artifacts = [r["artifact"] for r in records(tmp_path / "run") if r["type"] == "artifact"]
    assert sorted(sorted(a["aliases"]) for a in artifacts if a["type"] == "model") == [["best", "latest"], ["last", "latest"]]


def test_a_service_inherited_from_a_parent_is_not_used(text: Path, tmp_path: Path) -> None:
    options = ["--data.init_args.source.init_args.paths", text, "--trainer.max_steps", 1, "--run_dir", tmp_path / "run"]
    ran = run_pipeline("fit", *SMALL, *options, WANDB_SERVICE="3-1-unix-/nowhere.sock")
    assert ran.returncode == 0, ran.stderr
    assert records(tmp_path / "run")


def test_options_go_over_every_config_wherever_they_stand(small: list[str], inside: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("trainer: {log_every_n_steps: 7, gradient_clip_val: 0.5}\nrun_dir: elsewhere\n")
    options = ["--run_dir", tmp_path / "run", *small, f"--config={other}"]  # small sets log_every_n_steps to 1
    code, out, last = inside("fit", *options, "--print_config")
    assert code == 0, last
    config = yaml.safe_load(out)
    assert config["trainer"]["log_every_n_steps"] == 1 and config["run_dir"] == str(tmp_path / "run")
    assert config["trainer"]["gradient_clip_val"] == 0.5  # later files over earlier ones


def test_a_run_names_the_checkpoint_it_starts_from_as_that_runs_artifact(done: Path, tmp_path: Path) -> None:
    config = {"model": {"init_args": {"init_from": str(done), "reward": "pipeline.gold.vader"}}}
    (used,) = artifacts_used(config)
    assert used.name.split(":")[0] == f"{(done / 'wandb/run_id').read_text()}-best" and used.type == "model"
    again = wandb.Artifact("another", type="model")
    again.add_file(str(done / "checkpoints/best.ckpt"))
    assert used.digest == again.digest  # the version that the run itself logged
    for init_args in ({}, {"init_from": None}, {"init_from": str(tmp_path / "none")}):
        assert artifacts_used({"model": {"init_args": init_args}}) == []
