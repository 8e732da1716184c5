"""Weights from a checkpoint file: all of them, or an error."""

from collections.abc import Mapping
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


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Starts `module` from the weights of a checkpoint. Every name and shape must fit: nothing is left at random.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it cannot be read, or is the checkpoint of another model.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"init_from: no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    except Exception as error:  # whatever a torn file or another kind of file makes torch say
        raise ValueError(f"init_from: {path} is not a readable checkpoint: {' '.join(str(error).split())[:200]}") from None
    check_fits(module, state, path)
    module.load_state_dict(state)
