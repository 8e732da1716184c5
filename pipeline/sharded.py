"""A checkpoint in one file for each process: each writes what it holds of the sharded tensors, the first all the rest too.

The folder's rank_00000.ckpt is an ordinary checkpoint with its own pieces in the place of the sharded tensors, which `sharded`
names; a tensor is its pieces one behind the other along their first dimension, as torch's FSDP cuts them. All files load with
weights_only=True, and are mapped into memory, so that a process reads no more than it keeps.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from datamodules.files import write_atomic

FIRST = "rank_00000.ckpt"


class Pieces:
    """A sharded tensor, not yet read."""

    def __init__(self, pieces: list[Tensor]) -> None:
        self.pieces = pieces
        self.shape = torch.Size([sum(len(piece) for piece in pieces), *pieces[0].shape[1:]])

    def rows(self, first: int, last: int) -> Tensor:
        """Rows `first` up to `last`."""
        found, at = [], 0
        for piece in self.pieces:
            found.append(piece[max(0, first - at) : max(0, last - at)])
            at += len(piece)
        return torch.cat(found)

    def whole(self) -> Tensor:
        return torch.cat(self.pieces)


def is_sharded(path: str | Path) -> bool:
    return (Path(path) / FIRST).is_file()


def write(checkpoint: dict[str, Any], folder: Path, rank: int, world_size: int) -> None:
    """This rank's file of a checkpoint with DTensors in it. Every rank calls it, with the same tree."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [path for path, leaf in _leaves(checkpoint) if isinstance(leaf, DTensor)]
    if rank == 0:
        content = _mapped(checkpoint, lambda leaf: _local(leaf) if isinstance(leaf, DTensor) else leaf)
        content |= {"sharded": [list(path) for path in paths], "num_files": world_size}
    else:
        content = {"pieces": [_local(leaf) for _, leaf in _leaves(checkpoint) if isinstance(leaf, DTensor)]}
    write_atomic(folder / f"rank_{rank:05}.ckpt", lambda file: torch.save(content, file))


def read(folder: Path, *, whole: bool) -> dict[str, Any]:
    """The checkpoint, its sharded tensors `whole` or as Pieces.

    Raises:
        OSError, RuntimeError, ValueError: a file is missing or torn.
    """
    checkpoint, *others = _files(folder)
    for i, path in enumerate(checkpoint.pop("sharded")):
        *parents, last = path
        tree = checkpoint
        for key in parents:
            tree = tree[key]
        pieces = Pieces([tree[last], *(other["pieces"][i] for other in others)])
        tree[last] = pieces.whole() if whole else pieces
    return checkpoint


def _files(folder: Path) -> Iterator[dict[str, Any]]:
    first = torch.load(folder / FIRST, map_location="cpu", weights_only=True, mmap=True)
    num_files = first.pop("num_files")
    yield first
    for rank in range(1, num_files):
        yield torch.load(folder / f"rank_{rank:05}.ckpt", map_location="cpu", weights_only=True, mmap=True)


def put_in_place(beside: Path, path: Path) -> None:
    """Makes the folder `beside` the checkpoint `path`; a kill in between leaves the old one at `path` or at its `old_name`."""
    old = old_name(path)
    remove(old)
    if path.exists():
        os.rename(path, old)
    os.rename(beside, path)
    remove(old)


def old_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _local(tensor: DTensor) -> Tensor:
    return tensor.to_local().detach().cpu().clone()


def _leaves(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else None
    if items is None:
        yield path, tree
        return
    for key, value in items:
        yield from _leaves(value, (*path, key))


def _mapped(tree: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _mapped(value, function) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_mapped(value, function) for value in tree)
    return function(tree)
