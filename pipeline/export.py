"""`export`: one self-contained file with the weights of a checkpoint, without the state of training."""

import sys
from pathlib import Path

import torch
from jsonargparse import auto_cli

from datamodules.files import write_atomic
from pipeline import checkpoint_io
from pipeline.errors import BadInput

KEPT = ("state_dict", "hyper_parameters", "assets", "global_step", "pytorch-lightning_version")


def export(out: str, run_dir: str | None = None, ckpt_path: str = "best") -> None:
    """Writes a checkpoint that generate, predict and the like, init_from and load_from_checkpoint take: no optimizer state, the
    average where the run kept one, and one file where the run's checkpoints are sharded.

    Args:
        out: the file, such as gpt.ckpt.
        run_dir: run folder of the model.
        ckpt_path: best, last or a checkpoint; with a path run_dir is not needed.

    Raises:
        BadInput: there is no such checkpoint, or `out` is a folder.
    """
    if run_dir is None and ckpt_path in ("best", "last"):
        raise BadInput("give --run_dir, or a checkpoint as --ckpt_path")
    if Path(out).is_dir():
        raise BadInput(f"--out {out} is a folder; it names the file to write, such as {Path(out) / 'model.ckpt'}")
    path = checkpoint_io.find(run_dir or ".", ckpt_path)
    checkpoint = checkpoint_io.read(path)
    kept = {key: checkpoint[key] for key in KEPT if key in checkpoint}
    kept["state_dict"] = {name: value.clone() for name, value in kept["state_dict"].items()}  # of a shared storage, no more
    write_atomic(Path(out), lambda file: torch.save(kept, file))
    size = Path(out).stat().st_size / 1e6
    print(f"{out}: {len(kept['state_dict'])} tensors of {path}, step {kept['global_step']}, {size:.1f} MB")


def main(argv: list[str]) -> int:
    sys.argv[0] = "python -m pipeline export"
    auto_cli(export, args=argv[1:], as_positional=False)
    return 0
