"""Direct preference optimization: preferences without a reward model."""

import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from datamodules.batch import PreferenceBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.drawn import drawn_log_probs
from lit_models.losses.preference import direct_preference
from lit_models.nn.gpt import GPT


class LitDPO(LitBase):
    """DPO against the network that training starts from, in nats per pair.

    Gives accuracy (the implicit reward of the chosen response is higher) and both implicit rewards, beta log (p / p_ref).

    Source: Rafailov et al. 2023.

    Args:
        beta: strength of the pull to the reference.
        label_smoothing: share of preferences that are taken to be wrong.
        init_from: the run that is the start and the reference.

    Raises:
        ValueError: beta is not positive, or label_smoothing not in [0, 0.5).
    """

    unit = "pairs"
    counted = "pair"
    next_command = 'generate --run_dir {run_dir} --prompt "..."'
    net: GPT

    def __init__(self, net: GPT, *args: Any, beta: float = 0.1, label_smoothing: float = 0.0, **options: Any) -> None:
        if beta <= 0:
            raise ValueError(f"beta {beta} is not positive")
        if not 0 <= label_smoothing < 0.5:
            raise ValueError(f"label_smoothing {label_smoothing} is not in [0, 0.5)")
        super().__init__(net, *args, **options)
        self.beta, self.label_smoothing = beta, label_smoothing
        self.reference = copy.deepcopy(net).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "LitDPO":
        super().train(mode)
        self.reference.eval()
        return self

    def step(self, batch: PreferenceBatch) -> Loss:
        given = batch["input_ids"], batch["prompt_lengths"], batch["lengths"]
        chosen, rejected = response_log_probs(self.net, *given).chunk(2)
        with torch.no_grad():
            reference = response_log_probs(self.reference, *given).chunk(2)
        total, good, bad = direct_preference(chosen, rejected, *reference, beta=self.beta, label_smoothing=self.label_smoothing)
        count = torch.full((), len(chosen), device=chosen.device)
        metrics = {"accuracy": ((good > bad).sum(), count), "margin": ((good - bad).sum(), count)}
        metrics |= {"reward_chosen": (good.sum(), count), "reward_rejected": (bad.sum(), count)}
        return Loss(total, count, metrics)

    def units(self, batch: PreferenceBatch) -> int:
        return batch["num_pairs"]


def response_log_probs(
    net: GPT, input_ids: Int[Tensor, "B T"], prompt_lengths: Int[Tensor, "B"], lengths: Int[Tensor, "B"]
) -> Float[Tensor, "B"]:
    """Log-probability of each response, its end token included, given its prompt."""
    features = net.features(input_ids[:, :-1])
    place = torch.arange(1, input_ids.shape[1], device=input_ids.device)
    is_response = (place >= prompt_lengths[:, None]) & (place < lengths[:, None])  # (B, T - 1)
    logits = net.head(features[is_response]).float()  # the vocabulary head where it is needed
    tokens = input_ids[:, 1:][is_response]
    found, _ = drawn_log_probs(logits, tokens)
    rows = is_response.nonzero()[:, 0]
    return found.new_zeros(len(input_ids)).index_add(0, rows, found)
