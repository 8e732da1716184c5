"""BERT's pre-training: masked tokens, and whether the second sentence follows the first."""

import math
from typing import Any

import torch
from torch import Tensor

from datamodules.batch import MaskedBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.language import token_cross_entropy
from lit_models.nn.bert import BERT


class LitBERT(LitBase):
    """Mean cross-entropy of the masked tokens plus, where the network has `nsp`, that of next_sentence, in nats.

    next_sentence is 0 where the second sentence follows the first, 1 where it is from another document. The two means are over
    the whole optimizer step: since the gradient is divided by the number of predicted tokens, the second sum is first weighted
    with predicted tokens per pair, which the data know for the step.

    Source: Devlin et al. 2019, section 3.1 and appendix A.2.
    """

    unit = "tokens"
    counted = "masked token, plus nats per pair"
    next_command = 'fill --run_dir {run_dir} --text "He was born in [MASK] in the [MASK] century ."'
    net: BERT

    def __init__(self, net: BERT, *args: Any, **options: Any) -> None:
        super().__init__(net, *args, **options)

    def step(self, batch: MaskedBatch) -> Loss:
        mask = batch["attention_mask"]
        logits = self.net(batch["input_ids"], batch["segment_ids"], mask, batch["predicted"])
        labels = batch["labels"].flatten()[batch["predicted"]]
        total, count = token_cross_entropy(logits.mlm, labels)
        metrics = {"mlm_loss": (total.detach(), count)}
        if not self.training:
            metrics["mlm_accuracy"] = (logits.mlm.argmax(-1) == labels).sum(), count
        if logits.nsp is not None:
            follows = batch["next_sentence"]
            nsp, pairs = token_cross_entropy(logits.nsp, follows)
            metrics["nsp_loss"] = nsp.detach(), pairs
            if not self.training:
                metrics["nsp_accuracy"] = (logits.nsp.argmax(-1) == follows).sum(), pairs
            total = total + nsp * batch["predicted_per_pair"]
        metrics["padding"] = (~mask).sum(), torch.full((), mask.numel(), device=mask.device)
        return Loss(total, count, metrics)

    def units(self, batch: MaskedBatch) -> int:
        return batch["num_tokens"]

    def flops_per_unit(self) -> float:
        """Of the encoder, and of the head on the 15 % of the tokens that are predicted."""
        vocab_size, embed_dim = self.net.token_embedding.weight.shape
        return self.net.flops_per_token + 0.15 * 6 * (vocab_size + embed_dim) * embed_dim

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """The loss is the sum of both means (not the mean of sums that batches of evaluation would give)."""
        if "mlm_loss" not in metrics:
            return {}
        loss = metrics["mlm_loss"] + metrics.get("nsp_loss", 0.0)
        return {"loss": loss, "mlm_perplexity": math.exp(min(metrics["mlm_loss"], 700.0))}

    def predict_step(self, batch: MaskedBatch, batch_idx: int) -> dict[str, Tensor]:
        """Each predicted token: sample, place in it, its token, the likeliest one and that one's probability; (M,)."""
        logits = self.net(batch["input_ids"], batch["segment_ids"], batch["attention_mask"], batch["predicted"]).mlm
        probability, prediction = logits.float().softmax(-1).max(-1)
        row, place = batch["predicted"] // batch["labels"].shape[1], batch["predicted"] % batch["labels"].shape[1]
        return {
            "index": batch["index"][row],
            "place": place,
            "label": batch["labels"].flatten()[batch["predicted"]],
            "prediction": prediction,
            "probability": probability,
        }
