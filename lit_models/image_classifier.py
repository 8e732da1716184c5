"""Classes of images, whatever the network."""

from typing import Any

import torch
from torch import Tensor, nn

from datamodules.batch import ImageBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.language import token_cross_entropy
from lit_models.metrics.calibration import calibration_bins, calibration_error
from lit_models.metrics.confusion import confusion_matrix, f1_scores

TOP = 5


class LitImageClassifier(LitBase):
    """Mean cross-entropy of the images' classes, in nats; of mixed images that of both classes by their shares.

    Training gives accuracy too, of mixed images by the class with the larger share.
    Evaluation (without label smoothing) gives accuracy over all images, macro_f1, the expected calibration error over 15 bins
    and, of more than 10 classes, top5_accuracy.

    Args:
        label_smoothing: share of each label that is spread over all classes, in training.
        classes: their names in the order of their numbers; the runner links them to the data's.
        replace_head: with init_from, start with a new head instead of the checkpoint's.

    Raises:
        ValueError: label_smoothing is not in [0, 1), or the checkpoint has another number of classes and replace_head is false.
    """

    unit = "images"
    counted = "image"

    def __init__(
        self, net: nn.Module, *args: Any, label_smoothing: float = 0.0, classes: list[str] | None = None,
        replace_head: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        if not 0.0 <= label_smoothing < 1.0:
            raise ValueError(f"label_smoothing {label_smoothing} is not in [0, 1)")
        super().__init__(net, *args, replace_head=replace_head, **options)  # type: ignore[misc]
        self.label_smoothing, self.classes = label_smoothing, classes

    def step(self, batch: ImageBatch) -> Loss:
        logits, labels = self.net(batch["images"]), batch["labels"]
        if self.training:
            return self._training_loss(logits, batch)
        total, count = token_cross_entropy(logits, labels)
        metrics = {"accuracy": ((logits.argmax(-1) == labels).sum(), count)}
        num_classes = logits.shape[-1]
        if num_classes > 2 * TOP:
            metrics["top5_accuracy"] = (logits.topk(TOP).indices == labels[:, None]).sum(), count
        confusion = confusion_matrix(logits.argmax(-1), labels, num_classes)
        return Loss(total, count, metrics, {"confusion": confusion, "calibration": calibration_bins(logits, labels)})

    def _training_loss(self, logits: Tensor, batch: ImageBatch) -> Loss:
        labels, smoothing = batch["labels"], self.label_smoothing
        if "other_labels" not in batch:
            total, count = token_cross_entropy(logits, labels, label_smoothing=smoothing)
            return Loss(total, count, {"accuracy": ((logits.argmax(-1) == labels).sum(), count)})
        loss = nn.CrossEntropyLoss(reduction="none", label_smoothing=smoothing)
        share, others, logits = batch["label_weight"], batch["other_labels"], logits.float()
        total = (share * loss(logits, labels) + (1 - share) * loss(logits, others)).sum()
        right = logits.argmax(-1) == labels.where(share >= 0.5, others)  # the class with the larger share
        count = torch.full((), len(labels), device=labels.device)
        return Loss(total, count, {"accuracy": (right.sum(), count)})

    def units(self, batch: ImageBatch) -> int:
        return batch["num_images"]

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        if "confusion" not in self.epoch_counts or not self.epoch_counts["confusion"].sum():
            return {}
        calibration = {"calibration_error": calibration_error(self.epoch_counts["calibration"])}
        return {**f1_scores(self.epoch_counts["confusion"]), **calibration}

    def predict_step(self, batch: ImageBatch, batch_idx: int) -> dict[str, Tensor]:
        """The likeliest class of each image and its probability: index, prediction, probability, label, each (B,)."""
        probability, prediction = self.net(batch["images"]).float().softmax(-1).max(-1)
        return {"index": batch["index"], "label": batch["labels"], "prediction": prediction, "probability": probability}
