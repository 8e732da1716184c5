"""A reward model: which of two responses to a prompt people prefer."""

from typing import Any

import torch
from torch import Tensor

from datamodules.batch import PreferenceBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.preference import bradley_terry, calibration
from lit_models.nn.gpt import GPT


class LitReward(LitBase):
    """Bradley-Terry loss of the scores of two responses, each read at its last real token, in nats per pair.

    Gives accuracy (a tie is wrong), margin (chosen minus rejected) and score, the mean of both; evaluation also the
    calibration error: how far the share of pairs ordered right is from their predicted probability, over 10 bins.

    Source: Christiano et al. 2017, section 2.2.3; Stiennon et al. 2020, section 3.4.

    Args:
        centring: weight of the squared sum of both scores; it keeps scores about 0 and changes no order.

    Raises:
        ValueError: the network has no scalar head, or centring is negative.
    """

    unit = "pairs"
    counted = "pair"
    net: GPT

    def __init__(self, net: GPT, *args: Any, centring: float = 0.01, **options: Any) -> None:
        if net.scalar_head is None:
            raise ValueError("a reward model needs a network with a scalar head: model.init_args.net.scalar_head true")
        if centring < 0:
            raise ValueError(f"centring {centring} is negative")
        super().__init__(net, *args, **options)
        self.centring = centring

    def step(self, batch: PreferenceBatch) -> Loss:
        scores = self.net.scores(batch["input_ids"], batch["lengths"])
        chosen, rejected = scores.chunk(2)
        total, right = bradley_terry(chosen, rejected, centring=self.centring)
        count = torch.full((), len(chosen), device=scores.device)
        margin = (chosen - rejected).detach()
        metrics = {"accuracy": (right, count), "margin": (margin.sum(), count), "score": (scores.detach().sum(), 2 * count)}
        return Loss(total, count, metrics, {} if self.training else {"calibration": calibration(margin)})

    def units(self, batch: PreferenceBatch) -> int:
        return batch["num_pairs"]

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        if "calibration" not in self.epoch_counts:
            return {}
        count, right, likely = self.epoch_counts["calibration"]
        return {"calibration_error": float((right - likely).abs().sum() / count.sum())}

    def predict_step(self, batch: PreferenceBatch, batch_idx: int) -> dict[str, Tensor]:
        """index, and the scores of both responses, each (B,)."""
        chosen, rejected = self.net.scores(batch["input_ids"], batch["lengths"]).float().chunk(2)
        return {"index": batch["index"], "chosen": chosen, "rejected": rejected}
