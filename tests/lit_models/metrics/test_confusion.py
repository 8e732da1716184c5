"""The confusion matrix and its scores equal scikit-learn's."""

import pytest
import torch
from sklearn.metrics import confusion_matrix as reference
from sklearn.metrics import f1_score

from lit_models.metrics.confusion import confusion_matrix, f1_scores


@pytest.mark.parametrize("num_classes", [2, 3, 12])
def test_equals_scikit_learn(num_classes: int) -> None:
    labels = torch.randint(num_classes, (400,))
    predictions = torch.where(torch.rand(400) < 0.6, labels, torch.randint(num_classes, (400,)))
    found = confusion_matrix(predictions, labels, num_classes)
    assert found.tolist() == reference(labels, predictions, labels=range(num_classes)).tolist()
    assert f1_scores(found)["macro_f1"] == pytest.approx(f1_score(labels, predictions, average="macro"), abs=1e-12)
    if num_classes == 2:
        assert f1_scores(found)["f1"] == pytest.approx(f1_score(labels, predictions), abs=1e-12)


def test_ignored_labels_count_nowhere() -> None:
    labels, predictions = torch.tensor([[0, 1, -100], [-100, 2, 2]]), torch.tensor([[0, 2, 1], [0, 2, 1]])
    assert confusion_matrix(predictions, labels, 3).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 1]]


def test_classes_that_do_not_occur_are_left_out_of_the_mean() -> None:
    labels, predictions = torch.tensor([0, 0, 3, 3]), torch.tensor([0, 1, 3, 3])
    expected = f1_score(labels, predictions, average="macro")  # over 0, 1 and 3
    assert f1_scores(confusion_matrix(predictions, labels, 5))["macro_f1"] == pytest.approx(expected)
    for num_classes in (2, 3):
        assert f1_scores(torch.zeros(num_classes, num_classes, dtype=torch.int64)) == {}


def test_counts_add_up_over_batches() -> None:
    labels, predictions = torch.randint(3, (50,)), torch.randint(3, (50,))
    whole = confusion_matrix(predictions, labels, 3)
    parts = [confusion_matrix(p, y, 3) for p, y in zip(predictions.split(7), labels.split(7), strict=True)]
    assert torch.equal(whole, torch.stack(parts).sum(0))
