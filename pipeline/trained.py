"""What a checkpoint carries of a trained model, for the commands that need nothing else."""

from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from datamodules.tokenizers.base import Tokenizer, load_tokenizer
from pipeline import checkpoint_io
from pipeline.errors import BadInput

N = TypeVar("N", bound=nn.Module)


class Trained(NamedTuple, Generic[N]):
    """A network, ready for inference, its tokenizer, and all that its checkpoint (at `path`) carries of the data."""

    net: N
    tokenizer: Tokenizer
    assets: dict[str, Any]
    path: Path


def load_trained(
    network: type[N], objective: str | tuple[str, ...], run_dir: str | None, ckpt_path: str, device: str = "auto"
) -> Trained[N]:
    """
    Args:
        network: its class.
        objective: the class that it was trained with, by its dotted path, or several.
        run_dir: run folder of the model.
        ckpt_path: best, last or a file; with a file run_dir is not needed.
        device: auto, cpu, cuda, ...

    Raises:
        BadInput: there is no such checkpoint, or it is one of another kind of model.
    """
    if run_dir is None and ckpt_path in ("best", "last"):
        raise BadInput("give --run_dir, or a checkpoint file as --ckpt_path")
    path = checkpoint_io.find(run_dir or ".", ckpt_path)
    checkpoint = checkpoint_io.read(path)
    hparams, assets = checkpoint.get("hyper_parameters", {}), checkpoint.get("assets", {})
    wanted = (objective,) if isinstance(objective, str) else objective
    if hparams.get("_class_path", wanted[0]) not in wanted or "net" not in hparams or "tokenizer" not in assets:
        found = hparams.get("_class_path", "another model")
        raise BadInput(f"{path} is a checkpoint of {found}, where one of {' or '.join(wanted)} is needed")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    net = network(**hparams["net"])
    state = {name: value for name, value in checkpoint["state_dict"].items() if name.startswith("net.")}  # no reference's
    net.load_state_dict({name.removeprefix("net."): value for name, value in state.items()})
    return Trained(net.eval().to(device), load_tokenizer(assets["tokenizer"]), assets, path)
