"""Bad input ends early: exit code 2, one last line that names the fault, nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.reading import ROOT, run_pipeline

NET, DATA = "--model.init_args.net", "--data.init_args"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--trainer.max_step", "3"], ["trainer.max_step ", "max_steps"]),
        (["--model.init_args.lrr", "3"], ["lrr", "LitGPT"]),
        ([f"{NET}.num_layer", "3"], ["net.num_layer ", "num_layers", "GPT"]),
        (["--model.init_args.optimizer.class_path", "torch.optim.AdamWW"], ["AdamWW", "did you mean"]),
        (["--model.init_args.optimizer.init_args.lrr", "1"], ["lrr", "did you mean lr?"]),
        (["--model.class_path", "lit_models.gpt.LitGTP"], ["LitGTP", "LitGPT"]),
        (["--data.class_path", "datamodules.txt.TextDataModule"], ["datamodules.txt"]),
        ([f"{DATA}.batch_size", "0"], ["batch_size", "at least 1"]),
        ([f"{DATA}.batch_size", "many"], ["data.init_args.batch_size", "many", "int"]),
        ([f"{DATA}.micro_batch_size", "3"], ["batch_size 8", "micro_batch_size 3"]),
        ([f"{DATA}.batch_size", "100000"], ["100000", "samples"]),
        ([f"{NET}.num_heads", "3"], ["embed_dim 16", "num_heads 3"]),
        ([f"{NET}.dropout", "1.5"], ["dropout 1.5"]),
        ([f"{NET}.vocab_size", "5"], ["vocab_size is 5", "the data"]),
        ([f"{DATA}.max_seq_len", "999"], ["max_seq_len is 999", "16"]),
        ([f"{DATA}.tokenizer.class_path", "datamodules.tokenizers.bpe.BPETokenizer",
          f"{DATA}.tokenizer.init_args.vocab_size", "100"], ["100", "258"]),
        (["--trainer.accumulate_grad_batches", "4"], ["accumulate_grad_batches", "micro_batch_size"]),
        ([f"{DATA}.batch_size", "0"], ["error: data.init_args.batch_size is 0; it must be at least 1"]),
        (["--seed_everything", "-1"], ["seed_everything is -1"]),
        (["--seed_everything", "true"], ["seed_everything"]),
        (["--trainer.max_steps", "-1"], ["max_steps", "max_epochs"]),
        (["--trainer.val_check_interval", "0"], ["val_check_interval is 0"]),
        (["--trainer.precision", "17"], ["trainer.precision", "17"]),
        (["--trainer.logger", "wandb.WandbLoger"], ["trainer.logger"]),
        (["--checkpoint.every_n_steps", "0"], ["checkpoint.every_n_steps is 0"]),
        (["--checkpoint.mode", "least"], ["checkpoint.mode", "least"]),
        (["--model.init_args.init_from", "nowhere.ckpt"], ["nowhere.ckpt"]),
        (["--config", "configs/gtp.yaml"], ["configs/gtp.yaml", "configs/gpt.yaml"]),
    ],
)  # fmt: skip
def test_c01_the_last_line_names_the_fault(
    options: list[str], words: list[str], small: list[str], inside: Any, tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "bad"
    code, _, last = inside("fit", *small, *options, "--run_dir", run_dir)
    assert code == 2, last
    assert all(word in last for word in words) and "Does not validate" not in last, last
    assert last.startswith("error: ") and not run_dir.exists() and not run_dir.parent.exists()


@pytest.mark.parametrize(
    ("yaml_text", "words"),
    [
        ("model: {class_path: lit_models.gpt.LitGPT, init_args: {lrr: 3}}", ["lrr", "bad.yaml"]),
        ("trainer: {max_epoch: 3}", ["trainer.max_epoch ", "max_epochs", "bad.yaml"]),
        ("trainer: {logger: {class_path: lightning.pytorch.loggers.WandbLoger}}", ["WandbLoger", "bad.yaml"]),
        ("trainer: {strategy: [{class_path: x}]}", ["trainer.strategy", "bad.yaml"]),
        ("trainr: {}", ["trainr", "trainer", "bad.yaml"]),
        ("trainer: {max_steps: 3, max_steps: 4}", ["bad.yaml", "line 1", "max_steps", "twice"]),
        ("- a\n- b", ["bad.yaml", "list"]),
        ("a: [", ["bad.yaml", "YAML"]),
        ("data: 3", ["data", "3", "bad.yaml"]),
    ],
)
def test_c01_a_fault_in_a_file_names_the_file(
    yaml_text: str, words: list[str], small: list[str], inside: Any, tmp_path: Path
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml_text)
    code, _, last = inside("fit", *small, "--config", path, "--run_dir", tmp_path / "bad")
    assert code == 2 and all(word in last for word in words), last
    assert not (tmp_path / "bad").exists()


def test_c01_a_fault_in_data_names_the_file(small: list[str], inside: Any, tmp_path: Path) -> None:
    contents = {"empty.txt": b"", "short.txt": b"short", "latin.txt": "é".encode("latin-1") * 999, "none.txt": None}
    for name, content in contents.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        code, _, last = inside("fit", *small, f"{DATA}.source.init_args.paths", tmp_path / name, "--run_dir", tmp_path / "bad")
        assert code == 2 and name in last, last
    assert not (tmp_path / "bad").exists()


def test_a_process_prints_one_line_and_no_traceback(small: list[str], tmp_path: Path) -> None:
    ran = run_pipeline("fit", *small, f"{NET}.num_layer", "3", "--run_dir", tmp_path / "bad")
    assert ran.returncode == 2 and ran.stdout == "" and len(ran.stderr.strip().splitlines()) == 1


def test_a_missing_argument_is_named(inside: Any, tmp_path: Path) -> None:
    code, _, last = inside("fit", "--config", "configs/gpt_char.yaml", "--run_dir", tmp_path / "bad")
    assert code == 2 and "source.init_args.paths is missing" in last, last


def test_commands(inside: Any) -> None:
    assert inside("fti")[0] == 2
    assert "did you mean fit" in inside("fti")[2]
    code, out, _ = inside("--help")
    assert code == 0 and "generate" in out


def test_a_checkpoint_of_another_model(small: list[str], inside: Any, tmp_path: Path) -> None:
    assert inside("fit", *small, "--run_dir", tmp_path / "a", "--trainer.max_steps", 1)[0] == 0
    assert inside("fit", *small, f"{NET}.embed_dim", 32, "--run_dir", tmp_path / "b", "--trainer.max_steps", 1)[0] == 0
    other = tmp_path / "b/checkpoints/last.ckpt"
    code, _, last = inside("validate", "--run_dir", tmp_path / "a", "--ckpt_path", other)
    assert code == 2 and "another model" in last and "(16, 16)" in last and "(32, 32)" in last
    code, _, last = inside("fit", *small, "--run_dir", tmp_path / "c", "--model.init_args.init_from", other)
    assert code == 2 and "another model" in last and not (tmp_path / "c").exists()
    junk = tmp_path / "junk.ckpt"
    junk.write_bytes(b"junk")
    for command in (["validate", "--run_dir", tmp_path / "a"], ["generate", "--prompt", "x"]):
        code, _, last = inside(*command, "--ckpt_path", junk)
        assert code == 2 and "junk.ckpt" in last and len(last) < 400


def test_a_run_folder_that_is_not_there(inside: Any, tmp_path: Path) -> None:
    for command in (["validate"], ["predict"], ["generate", "--prompt", "x"]):
        code, _, last = inside(*command, "--run_dir", tmp_path / "nowhere")
        assert code == 2 and "nowhere" in last
    assert not (tmp_path / "nowhere").exists()


def test_a_monitor_that_is_no_metric_fails_the_run(small: list[str], inside: Any, tmp_path: Path) -> None:
    code, _, last = inside("fit", *small, "--checkpoint.monitor", "val/los", "--run_dir", tmp_path / "run")
    assert code == 1 and "val/los" in last and "val/loss" in last


def test_a_loss_that_is_no_number_leaves_the_last_good_checkpoint(small: list[str], inside: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert inside("fit", *small, "--run_dir", run_dir, "--trainer.max_steps", 4)[0] == 0
    good = (run_dir / "checkpoints/last.ckpt").read_bytes()
    wreck = ["--model.init_args.optimizer.init_args.lr", "1e30", "--trainer.gradient_clip_val", "null", "--allow_changes"]
    code, _, last = inside("fit", *small, *wreck, "--run_dir", run_dir)
    assert code == 1 and ("loss is" in last or "not finite" in last) and "last good checkpoint" in last, last
    assert (run_dir / "checkpoints/last.ckpt").read_bytes() == good


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_leaves_the_last_good_checkpoint(small: list[str], inside: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk]).returncode:
        pytest.skip("this machine mounts nothing")
    try:
        run_dir = disk / "run"
        assert inside("fit", *small, "--trainer.logger", "false", "--run_dir", run_dir, "--trainer.max_steps", 3)[0] == 0
        good = (run_dir / "checkpoints/last.ckpt").read_bytes()
        with open(disk / "ballast", "wb", buffering=0) as f:
            with pytest.raises(OSError):
                while True:
                    f.write(b"\0" * 4096)
            f.truncate(f.tell() - 32768)  # room for rows, not for a checkpoint
        code, _, last = inside("fit", *small, "--trainer.logger", "false", "--run_dir", run_dir)
        assert code == 1 and "No space left" in last and "last good checkpoint is untouched" in last, last
        assert (run_dir / "checkpoints/last.ckpt").read_bytes() == good
        assert not list((run_dir / "checkpoints").glob(".*"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_help_is_quick_and_imports_no_torch() -> None:
    code = "import sys; from pipeline.__main__ import main; main(['--help'])"
    code += "; assert not {'torch', 'lightning'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, timeout=20)


def test_print_config_is_the_config(inside: Any) -> None:
    code, out, _ = inside("fit", "--config", "configs/gpt.yaml", "--print_config")
    config = yaml.safe_load(out)
    assert code == 0 and config["model"]["init_args"]["net"]["embed_dim"] == 128 and config["trainer"]["devices"] == 1
