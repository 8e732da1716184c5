"""Classes of words, with a BERT."""

from typing import Any

import torch
from torch import Tensor

from datamodules.batch import SequenceBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.language import token_cross_entropy
from lit_models.metrics.confusion import confusion_matrix, f1_scores
from lit_models.metrics.spans import count_spans, is_bio, span_scores
from lit_models.nn.bert import BERTTagger


class LitBERTTagger(LitBase):
    """Mean cross-entropy of the words' classes, in nats; a word is classified at its first token.

    Evaluation gives accuracy over words, macro_f1 over classes and, where the classes are BIO labels, precision, recall and F1
    of the spans.

    Source: Devlin et al. 2019, section 5.3.

    Args:
        classes: their names in the order of their numbers; the runner links them to the data's.
    """

    unit = "tokens"
    counted = "word"
    net: BERTTagger

    def __init__(self, net: BERTTagger, *args: Any, classes: list[str] | None = None, **options: Any) -> None:
        super().__init__(net, *args, **options)
        self.classes = classes

    def step(self, batch: SequenceBatch) -> Loss:
        logits, labels = self._logits(batch), batch["labels"]
        total, count = token_cross_entropy(logits, labels)
        if self.training:
            return Loss(total, count)
        predictions = logits.argmax(-1)
        counts = {"confusion": confusion_matrix(predictions, labels, logits.shape[-1])}
        if self.classes and is_bio(self.classes):
            counts["spans"] = self._span_counts(predictions, labels, batch["word_starts"])
        return Loss(total, count, {"accuracy": ((predictions == labels).sum(), count)}, counts)

    def _span_counts(self, predictions: Tensor, labels: Tensor, word_starts: Tensor) -> Tensor:
        """(3,) spans found, predicted and true."""
        names = self.classes or []
        total = torch.zeros(3, dtype=torch.int64)
        for row, truth, words in zip(predictions.cpu(), labels.cpu(), word_starts.cpu(), strict=True):
            known = words & (truth >= 0)
            total += torch.tensor(count_spans(*([names[i] for i in ids[known].tolist()] for ids in (row, truth))))
        return total

    def units(self, batch: SequenceBatch) -> int:
        return batch["num_tokens"]

    def flops_per_unit(self) -> float:
        return self.net.flops_per_token

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        counts = self.epoch_counts
        scores = {"macro_f1": f1_scores(counts["confusion"]).get("macro_f1", 0.0)} if "confusion" in counts else {}
        return {**scores, **(span_scores(*counts["spans"].tolist()) if "spans" in counts else {})}

    def predict_step(self, batch: SequenceBatch, batch_idx: int) -> dict[str, Tensor]:
        """The likeliest class of each word and its probability: index, place, prediction, probability, label, each (words,)."""
        probability, prediction = self._logits(batch).float().softmax(-1).max(-1)
        words = batch["word_starts"]
        rows, place = words.nonzero(as_tuple=True)
        return {
            "index": batch["index"][rows],
            "place": place,
            "label": batch["labels"][words],
            "prediction": prediction[words],
            "probability": probability[words],
        }

    def _logits(self, batch: SequenceBatch) -> Tensor:
        return self.net(batch["input_ids"], batch["segment_ids"], batch["attention_mask"])
