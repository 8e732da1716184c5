"""Classes of sentences and of pairs of sentences, with a BERT."""

from typing import Any

from torch import Tensor

from datamodules.batch import SequenceBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.language import token_cross_entropy
from lit_models.metrics.confusion import confusion_matrix, f1_scores
from lit_models.nn.bert import BERTClassifier


class LitBERTClassifier(LitBase):
    """Mean cross-entropy of the sequences' classes, in nats.

    Evaluation gives accuracy, macro_f1 and, of two classes, f1, which is that of the second.

    Source: Devlin et al. 2019, section 4.1.

    Args:
        classes: their names in the order of their numbers; the runner links them to the data's.
    """

    unit = "tokens"
    counted = "sequence"
    net: BERTClassifier

    def __init__(self, net: BERTClassifier, *args: Any, classes: list[str] | None = None, **options: Any) -> None:
        super().__init__(net, *args, **options)
        self.classes = classes

    def step(self, batch: SequenceBatch) -> Loss:
        logits, labels = self._logits(batch), batch["labels"]
        total, count = token_cross_entropy(logits, labels)
        if self.training:
            return Loss(total, count)
        predictions = logits.argmax(-1)
        confusion = confusion_matrix(predictions, labels, logits.shape[-1])
        return Loss(total, count, {"accuracy": ((predictions == labels).sum(), count)}, {"confusion": confusion})

    def units(self, batch: SequenceBatch) -> int:
        return batch["num_tokens"]

    def flops_per_unit(self) -> float:
        return self.net.flops_per_token

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        return f1_scores(self.epoch_counts["confusion"]) if "confusion" in self.epoch_counts else {}

    def predict_step(self, batch: SequenceBatch, batch_idx: int) -> dict[str, Tensor]:
        """The likeliest class of each sample and its probability: index, prediction, probability, label, each (B,)."""
        probability, prediction = self._logits(batch).float().softmax(-1).max(-1)
        return {"index": batch["index"], "label": batch["labels"], "prediction": prediction, "probability": probability}

    def _logits(self, batch: SequenceBatch) -> Tensor:
        return self.net(batch["input_ids"], batch["segment_ids"], batch["attention_mask"])
