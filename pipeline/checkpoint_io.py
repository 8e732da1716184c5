"""Reading and writing checkpoint files so that a kill, a full disk or a torn file never costs the last good one."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

from datamodules.files import write_atomic
from pipeline import sharded
from pipeline.errors import BadInput, RunFailed


class AtomicCheckpointIO(CheckpointIO):
    """Writes beside the target, syncs, renames. Reads with weights_only=True, always."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        path = Path(path)
        if path.is_dir():  # the run was sharded before
            os.rename(path, sharded.old_name(path))
        try:
            write_atomic(path, lambda file: torch.save(checkpoint, file))
        except (OSError, RuntimeError) as error:  # torch wraps what the disk says in a RuntimeError
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__cause__ or cause.__context__
            said = cause.strerror if isinstance(cause, OSError) else " ".join(str(error).split())
            raise RunFailed(f"cannot write {path}: {said}; the last good checkpoint is untouched") from None
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        sharded.remove(sharded.old_name(path))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        if sharded.is_sharded(path):
            return sharded.read(Path(path), whole=True)
        return torch.load(path, map_location=map_location or "cpu", weights_only=True)

    def remove_checkpoint(self, path: Any) -> None:
        sharded.remove(Path(path))


def read(path: str | Path, *, whole: bool = True) -> dict[str, Any]:
    """A checkpoint of this runner; a sharded one with its tensors `whole`, or as `pipeline.sharded.Pieces`.

    Raises:
        BadInput: there is no such file, it is torn, or it is something else.
    """
    path = Path(path)
    if not path.is_file() and not sharded.is_sharded(path):
        raise BadInput(f"no checkpoint at {path}")
    try:
        if path.is_dir():
            checkpoint = sharded.read(path, whole=whole)
        else:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)  # reads what is looked at
    except Exception as error:
        raise BadInput(f"{path} is not a readable checkpoint: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(checkpoint, Mapping) or "state_dict" not in checkpoint or "global_step" not in checkpoint:
        raise BadInput(f"{path} is not a checkpoint of this runner: it has no state_dict and global_step")
    return dict(checkpoint)


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest readable checkpoint of a run, or None where there is none at all. Says which ones it had to pass over.

    Raises:
        BadInput: there are checkpoints, and none can be read.
    """
    found, torn = [], []
    for path in (folder / "last.ckpt", folder / "best.ckpt"):
        if not path.exists() and sharded.old_name(path).exists():  # a kill came between two renames
            os.rename(sharded.old_name(path), path)
        if path.exists():
            try:
                found.append((path, read(path, whole=False)))
            except BadInput as error:
                torn.append(str(error))
                print(f"{error}: passed over")
    if torn and not found:
        raise BadInput(f"no checkpoint in {folder} can be read; start anew with --fresh")
    return max(found, key=lambda item: item[1]["global_step"], default=None)


def find(run_dir: str | Path, which: str = "best") -> Path:
    """`best`, `last` or the path of a checkpoint file.

    Raises:
        BadInput: it is not there.
    """
    if which not in ("best", "last"):
        if not Path(which).is_file() and not sharded.is_sharded(which):
            raise BadInput(f"no checkpoint at {which}; ckpt_path is best, last or a file")
        return Path(which)
    folder = Path(run_dir) / "checkpoints"
    for name in dict.fromkeys((which, "last")):
        if (folder / f"{name}.ckpt").exists():
            return folder / f"{name}.ckpt"
    raise BadInput(f"no checkpoint in {folder}; train first: python -m pipeline fit --config ... --run_dir {run_dir}")
