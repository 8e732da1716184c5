"""The expected calibration error, beside torchmetrics' and by hand."""

import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from lit_models.metrics.calibration import UNIT, calibration_bins, calibration_error


def test_equals_torchmetrics() -> None:
    torch.manual_seed(0)
    logits, labels = 3 * torch.randn(500, 7).double(), torch.randint(7, (500,))
    expected = multiclass_calibration_error(logits.softmax(-1), labels, 7, n_bins=15, norm="l1")
    assert calibration_error(calibration_bins(logits, labels)) == pytest.approx(float(expected), abs=1e-7)


def test_by_hand() -> None:
    logits = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.55, 0.45], [0.7, 0.3]]).log()
    bins = calibration_bins(
        logits, torch.tensor([0, 1, 0, -100]), num_bins=2
    )  # all sure by more than 1/2; the last has no label
    assert bins[:2].tolist() == [[0, 3], [0, 2]]
    assert bins[2, 1].item() == pytest.approx((0.9 + 0.8 + 0.55) * UNIT, rel=1e-7)
    assert calibration_error(bins) == pytest.approx(abs(2 - 2.25) / 3, rel=1e-6)


def test_batches_add_up_exactly() -> None:
    torch.manual_seed(1)
    logits, labels = torch.randn(64, 4), torch.randint(4, (64,))
    parts = [calibration_bins(a, b) for a, b in zip(logits.split(9), labels.split(9), strict=True)]
    assert torch.equal(sum(reversed(parts)), calibration_bins(logits, labels))


def test_certainty_is_in_the_last_bin() -> None:
    bins = calibration_bins(torch.tensor([[100.0, -100.0]]), torch.tensor([1]))
    assert bins[0].tolist() == [0] * 14 + [1] and calibration_error(bins) == 1.0
