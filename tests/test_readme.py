"""Every command of the README runs, in its order, as it stands there; only the long ones are shortened."""

import re
import shlex
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from tests.pipeline.conftest import environment, inside, text  # noqa: F401 - fixtures
from tests.reading import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.split("  #")[0].strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
SHORT = [
    "--trainer.max_steps=4", "--trainer.val_check_interval=2", "--trainer.limit_val_batches=2",
    "--data.init_args.batch_size=8", "--model.init_args.net.num_layers=1", "--model.init_args.net.embed_dim=32",
]  # fmt: skip

WORDS = ["Peter B-PER", "is O", "in O", "Berlin B-LOC", ". O", ""] * 12
TABLES = {
    **{f"{name}.tsv": ["label\tsentence", *(f"{i % 2}\tfilm {i} is" for i in range(24))] for name in ("train", "dev", "test")},
    **{
        f"{name}.tsv": ["sentence_A\tsentence_B\tentailment_judgment", *(f"{name} {i}\tb {i}\tis {i % 2}" for i in range(24))]
        for name in ("sick", "trial")
    },
    **{f"{name}.txt": WORDS for name in ("train", "valid", "test")},
}  # fmt: skip
"""Files as the README's commands name them."""


def test_two_commands_set_everything_up() -> None:
    first, second = (line for line in COMMANDS if "pip install" in line)
    assert first.endswith("python -m pipeline fit --config configs/gpt.yaml")
    assert second in (ROOT / ".ci/run").read_text().splitlines()


def test_every_command_runs(inside: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "input.txt").write_text(text.read_text())
    for name, rows in TABLES.items():
        (tmp_path / name).write_text("\n".join(rows) + "\n")
    images = []
    for i in range(40):
        Image.new("RGB", (32, 32), (6 * i, 0, 255)).save(content := BytesIO(), "PNG")
        images.append({"image": {"bytes": content.getvalue(), "path": None}, "label": i % 2})
    for name in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(images), tmp_path / f"{name}.parquet")
    (tmp_path / "photos").mkdir()
    Image.new("L", (50, 40), 200).save(tmp_path / "photos" / "a.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", StringIO("the film\n"))  # for chat
    ran = []
    for line in COMMANDS:
        words = shlex.split(line)
        if "pipeline" not in words or words[words.index("pipeline") - 1] != "-m":
            continue
        words = words[words.index("pipeline") + 1 :]
        if "<" in line or "torchrun" in line or words[0] == "chain":  # tests/pipeline/test_chain.py runs one
            continue
        if words[0] == "fit":
            if re.search("gpu|gpt2_124m|ddp", line):
                words += ["--print_config"]
            elif "configs/clip.yaml" in line:
                words += [*SHORT[:4], "--data.init_args.eval_batch_size=64"]
            else:
                words += SHORT[: 4 if "resnet" in line else None]
        if words[0] == "bench":
            words += ["--steps", "4", "--block", "2", *SHORT[3:]]
        code, _, last = inside(*words)
        assert code == 0, (line, last)
        ran.append(words[0])
    names = {"fit", "generate", "validate", "test", "predict", "tokenize", "bench", "fill", "search", "classify", "chat"}
    assert names <= set(ran)


def test_every_config_is_named() -> None:
    for path in (ROOT / "configs").rglob("*.yaml"):
        assert path.name in README, path


def test_every_file_named_is_there() -> None:
    for name in re.findall(r"`((?:pipeline|datamodules|lit_models|configs|tests)/[\w/.*]+)`", README):
        assert list(ROOT.glob(name)), name
