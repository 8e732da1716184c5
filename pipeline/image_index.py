"""Features of image files, kept between commands: only new and changed files are computed."""

import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from rich.progress import track
from torch import Tensor

from datamodules.files import write_atomic
from datamodules.image_cache import EncodedImages, NormalisedImages
from datamodules.image_decoding import DECODING
from datamodules.sources.image_base import file_states
from datamodules.sources.image_folder import ImageFiles
from datamodules.token_cache import default_cache_dir
from lit_models.nn.clip import CLIP
from pipeline.errors import BadInput
from pipeline.trained import Trained

FORMAT = 2  # raise it with every change of the file, or of which features are whose
MANY = 300  # images whose progress is shown


def image_features(trained: Trained[CLIP], images: str | list[str], batch_size: int) -> tuple[list[str], Float[Tensor, "N E"]]:
    """The files, absolute and sorted, and their features, on the CPU.

    Args:
        images: files, folders or globs, as ImageFiles reads them.

    Raises:
        BadInput: batch_size is below 1.
        FileNotFoundError: there is no image.
        ValueError: an image is broken.
    """
    if batch_size < 1:
        raise BadInput(f"batch_size is {batch_size}; it must be at least 1")
    files = sorted(str(Path(file).absolute()) for file in ImageFiles(images).files())
    states = file_states(os.path.realpath(file) for file in files)  # an image is the same by whatever link it is named
    index = default_cache_dir() / "image_index" / f"{_key(trained)}.npz"
    known = _read(index)
    new = [i for i, state in enumerate(states) if state not in known]
    if new:
        computed = _compute(trained, [files[i] for i in new], batch_size)
        changed = {states[i][0] for i in new}
        known = {state: row for state, row in known.items() if state[0] not in changed}
        known |= {states[i]: row for i, row in zip(new, computed, strict=True)}
        _write(index, known)
    print(f"{len(files)} images: {len(new)} computed now, {len(files) - len(new)} known from before")
    return files, torch.from_numpy(np.stack([known[state] for state in states]))


@torch.inference_mode()
def _compute(trained: Trained[CLIP], files: Sequence[str], batch_size: int) -> Float[np.ndarray, "N E"]:
    """`files` are sorted, as ImageFiles gives them back: rows are told apart by their place alone."""
    size, mean, std = (trained.assets[name] for name in ("image_size", "mean", "std"))
    images = NormalisedImages(EncodedImages(ImageFiles(list(files)), "test"), tuple(size), mean, std, 0, None)
    device = trained.net.logit_scale.device
    parts = np.array_split(np.arange(len(files)), -(-len(files) // batch_size))
    shown = track(parts, "images", transient=True) if len(files) > MANY else parts
    return np.concatenate([trained.net.encode_image(images(0, p, p).to(device)).float().cpu().numpy() for p in shown])


def _key(trained: Trained[CLIP]) -> str:
    """Whatever changes features: the checkpoint, which holds how images are prepared too, and how files are read."""
    with trained.path.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(repr((FORMAT, DECODING, weights)).encode()).hexdigest()[:32]


State = tuple[str, int, int]


def _read(path: Path) -> dict[State, np.ndarray]:
    """(path, size, time of change) -> features; nothing where the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            columns = [kept[name].tolist() for name in ("paths", "sizes", "times")]
            return dict(zip(zip(*columns, strict=True), kept["features"], strict=True))
    except Exception:  # whatever a torn file makes numpy say: it is computed anew
        return {}


def _write(path: Path, known: dict[State, np.ndarray]) -> None:
    paths, sizes, times = zip(*known, strict=True)
    arrays: dict[str, Any] = {"paths": np.array(paths), "sizes": np.array(sizes), "times": np.array(times)}
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays, features=np.stack(list(known.values())))
    write_atomic(path, lambda file: file.write(content.getbuffer()))
