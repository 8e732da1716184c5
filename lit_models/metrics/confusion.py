"""The confusion matrix, and what follows from it."""

from jaxtyping import Int
from torch import Tensor
from torchmetrics.functional.classification import multiclass_confusion_matrix


def confusion_matrix(
    predictions: Int[Tensor, "*batch"], labels: Int[Tensor, "*batch"], num_classes: int, *, ignore_index: int = -100
) -> Int[Tensor, "C C"]:
    """How often each class (row) was taken for each (column); where the label is ignore_index nothing is counted."""
    return multiclass_confusion_matrix(
        predictions.flatten(), labels.flatten(), num_classes, ignore_index=ignore_index, validate_args=False
    )


def f1_scores(confusion: Int[Tensor, "C C"]) -> dict[str, float]:
    """macro_f1, the mean of 2 TP / (2 TP + FP + FN) over the classes that occur; of two classes also f1, that of the second.

    A class occurs where it is a label or was predicted, as in scikit-learn's f1_score.
    """
    correct = confusion.diag().double()
    occurrences = (confusion.sum(0) + confusion.sum(1)).double()
    scores = 2 * correct / occurrences.clamp(min=1)
    occurring = scores[occurrences > 0]
    if not occurring.numel():
        return {}
    macro = {"macro_f1": float(occurring.mean())}
    return {**macro, "f1": float(scores[1])} if len(confusion) == 2 else macro
