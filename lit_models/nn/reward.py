"""Where a policy's rewards come from: a frozen reward model, or any function of texts."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lit_models.nn.gpt import GPT

TextReward = Callable[[Sequence[str]], Any]
"""Texts (prompt and response) to as many scores."""


class ModelReward(nn.Module):
    """The scores of a reward model, which never trains."""

    needs_text = False

    def __init__(self, net: GPT) -> None:
        super().__init__()
        self.net = net.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "ModelReward":
        return super().train(False)

    def forward(self, input_ids: Int[Tensor, "B T"], lengths: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        with torch.no_grad():
            return self.net.scores(input_ids, lengths)


def load_reward_model(path: str | Path) -> tuple[GPT, dict[str, Any]]:
    """The network of a reward model's checkpoint, and what the checkpoint carries of its data.

    Raises:
        ValueError: it cannot be read, or is no checkpoint of a reward model.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a torn file or another kind of file makes torch say
        raise ValueError(f"reward: {path} is not a readable checkpoint: {' '.join(str(error).split())[:200]}") from None
    sizes = checkpoint.get("hyper_parameters", {}).get("net") or {}
    if not sizes.get("scalar_head"):
        raise ValueError(f"reward: {path} is no checkpoint of a reward model: its network has no scalar head")
    net = GPT(**sizes)
    net.load_state_dict({name.removeprefix("net."): value for name, value in checkpoint["state_dict"].items()})
    return net, checkpoint.get("assets", {})


def text_reward(path: str, what: str = "reward") -> TextReward:
    """A function by its dotted path.

    Raises:
        ValueError: there is no such module, or no such function in it; it says `what` the function was for.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{what} {path!r} is neither a run folder nor the dotted path of a function (module.function)")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{what} {path!r} is neither a run folder nor a function: {error}") from None
    if not callable(found):
        raise ValueError(f"{what} {path!r} is {found!r:.60}, where a function of texts was expected")
    return found


def scores_of(function: TextReward, name: str, texts: Sequence[str]) -> Float[Tensor, "B"]:
    """The scores of texts, checked.

    Raises:
        ValueError: the function fails, or gives another number of scores, or one that is no finite number (with its text).
    """
    try:
        given = function(list(texts))
    except Exception as error:  # it is the user's
        raise ValueError(f"{name} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
    try:
        scores = torch.as_tensor(given, dtype=torch.float32).flatten()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} gave {_short(given)}, where {len(texts)} numbers were expected") from None
    if len(scores) != len(texts):
        raise ValueError(f"{name} gave {len(scores)} scores for {len(texts)} texts")
    if not scores.isfinite().all():
        place = int((~scores.isfinite()).nonzero()[0])
        raise ValueError(f"{name} gave {float(scores[place])} for {_short(texts[place])}")
    return scores


def _short(value: Any) -> str:
    found = repr(value)
    return found if len(found) <= 80 else f"{found[:80]}..."
