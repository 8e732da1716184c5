"""Losses of preferences against numbers by hand."""

import math

import pytest
import torch

from lit_models.losses.preference import bradley_terry, calibration, direct_preference


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def test_bradley_terry_by_hand() -> None:
    chosen, rejected = torch.tensor([2.0, 0.0, 1.0]).double(), torch.tensor([1.0, 0.5, 1.0]).double()
    total, right = bradley_terry(chosen, rejected)
    assert float(total) == pytest.approx(-log_sigmoid(1) - log_sigmoid(-0.5) - log_sigmoid(0)) and int(right) == 1
    centred, _ = bradley_terry(chosen, rejected, centring=0.1)
    assert float(centred - total) == pytest.approx(0.1 * (9 + 0.25 + 4))
    shifted, _ = bradley_terry(chosen + 7, rejected + 7)
    assert float(shifted) == pytest.approx(float(total))  # only differences count
    large, _ = bradley_terry(torch.tensor([1e4, -1e4]), torch.tensor([0.0, 0.0]))
    assert float(large) == pytest.approx(1e4)


def test_dpo_by_hand() -> None:
    given = [torch.tensor([value]).double() for value in (-3.0, -5.0, -4.0, -4.5)]
    total, good, bad = direct_preference(*given, beta=0.2)
    assert (float(good), float(bad)) == pytest.approx((0.2, -0.1))
    assert float(total) == pytest.approx(-log_sigmoid(0.2 * ((-3 + 4) - (-5 + 4.5))))
    smooth, _, _ = direct_preference(*given, beta=0.2, label_smoothing=0.1)
    assert float(smooth) == pytest.approx(-0.9 * log_sigmoid(0.3) - 0.1 * log_sigmoid(-0.3))


def test_dpo_at_the_reference_is_ln_2_and_pushes_the_two_apart() -> None:
    chosen, rejected = torch.zeros(4, requires_grad=True), torch.zeros(4, requires_grad=True)
    total, _, _ = direct_preference(chosen, rejected, torch.zeros(4), torch.zeros(4), beta=0.1)
    total.backward()
    assert float(total.detach()) == pytest.approx(4 * math.log(2))
    assert chosen.grad is not None and rejected.grad is not None
    assert chosen.grad.tolist() == pytest.approx([-0.05] * 4) and rejected.grad.tolist() == pytest.approx([0.05] * 4)


def test_calibration_adds_up() -> None:
    margins = torch.tensor([0.1, -0.1, 3.0, -3.0, 3.0])
    bins = calibration(margins, num_bins=5)
    assert bins[0].tolist() == [2, 0, 0, 0, 3] and bins[1].tolist() == [1, 0, 0, 0, 2]
    assert float(bins[2, 4]) == pytest.approx(3 / (1 + math.exp(-3)))
    torch.testing.assert_close(calibration(margins[:2], 5) + calibration(margins[2:], 5), bins)
    assert calibration(torch.tensor([1e3]), 5)[0].tolist() == [0, 0, 0, 0, 1]
