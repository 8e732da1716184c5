"""Weights from a checkpoint file: all of them, or an error."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn


def check_fits(module: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Raises ValueError with the first missing, unexpected or misshapen name, unless `state` fits `module` exactly."""
    own = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    given = {name: tuple(value.shape) for name, value in state.items()}
    for name in sorted(own.keys() | given.keys()):
        if own.get(name) != given.get(name):
            raise ValueError(
                f"{path} is a checkpoint of another model: {name} is {given.get(name, 'missing')} there,"
                f" {own.get(name, 'missing')} here"
            )


def find_checkpoint(path: str | Path, what: str = "init_from") -> Path:
    """A checkpoint file: `path` itself, or in a run folder the best one, or else the last; `what` it is for.

    Raises:
        FileNotFoundError: there is none.
    """
    path = Path(path)
    candidates = [path, path / "checkpoints" / "best.ckpt", path / "checkpoints" / "last.ckpt"]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
        if (candidate / "rank_00000.ckpt").is_file():
            raise FileNotFoundError(f"{what}: {candidate} is sharded: make one file of it with python -m pipeline export")
    raise FileNotFoundError(f"{what}: no checkpoint at {path}" + (", a folder without checkpoints" if path.is_dir() else ""))


def load_weights(
    module: nn.Module, path: str | Path, heads: Sequence[str] = (), *, prefix: str = "", replace: bool = True
) -> str:
    """Starts `module` from the weights of a checkpoint, and says in one line which were taken.

    Every name and shape must fit (a network's `adapt` may make them so), so that nothing is left at random, except below the
    prefixes `heads`: there what the checkpoint does not have stays as it is, and what `module` does not have is left; without
    `replace` that is an error too. Names of the checkpoint that do not begin with `prefix` are not looked at.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it cannot be read, or is the checkpoint of another model.
    """
    file = find_checkpoint(path)
    try:
        given: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
        given = {name: value for name, value in given.items() if name.startswith(prefix)}
    except Exception as error:  # whatever a torn file or another kind of file makes torch say
        raise ValueError(f"init_from: {file} is not a readable checkpoint: {' '.join(str(error).split())[:200]}") from None
    for name, part in module.named_modules():
        if hasattr(part, "adapt"):  # it can bring weights of another size to its own
            given = part.adapt(given, f"{name}." if name else "")
    own = module.state_dict()
    fits = {name for name, value in given.items() if name in own and own[name].shape == value.shape}
    free = {name for name in own.keys() | given.keys() if name.startswith(tuple(heads)) and name not in fits}
    if free and not replace:
        name = min(free)
        shapes = (tuple(state[name].shape) if name in state else "missing" for state in (given, own))
        raise ValueError(
            f"init_from {file}: {name.removeprefix('net.')} is {next(shapes)} there, {next(shapes)} here:"
            " model.init_args.replace_head true starts a new head"
        )
    taken = {name: value for name, value in given.items() if name not in free}
    check_fits(module, {**{name: own[name] for name in own.keys() & free}, **taken}, file)
    module.load_state_dict(taken, strict=False)
    parts = [f"init_from {file}: {len(taken)} tensors taken"]
    for what, names in (("new", own.keys() & free), ("left", (given.keys() - own.keys()) & free)):
        if names:
            parts.append(f"{what}: {', '.join(sorted({_head(name, heads) for name in names}))}")
    return "; ".join(parts)


def _head(name: str, heads: Sequence[str]) -> str:
    return next(prefix for prefix in heads if name.startswith(prefix)).removeprefix("net.").rstrip(".")
