"""Contrastive losses against plain loops and numbers by hand."""

import math

import pytest
import torch

from lit_models.losses.contrastive import chance, contrast, sigmoid_contrast

NO_EQUALS = torch.zeros(3, 3, dtype=torch.bool)


def test_by_hand() -> None:
    """exp of the logits is 1 2 5 / 3 3 2 / 4 1 4; own columns are 2, 0, 1."""
    logits = torch.tensor([[1.0, 2, 5], [3, 3, 2], [4, 1, 4]], dtype=torch.float64).log()
    total, right = contrast(logits, torch.tensor([2, 0, 1]), NO_EQUALS)
    assert float(total) == pytest.approx(math.log(8 / 5) + math.log(8 / 3) + math.log(9 / 1))
    assert int(right) == 2  # of row 1 the first of two equal ones
    equal = NO_EQUALS.clone()
    equal[2, 0] = True  # as right as column 1: compared with column 2 alone, each
    total, right = contrast(logits, torch.tensor([2, 0, 1]), equal)
    assert float(total) == pytest.approx(math.log(8 / 5) + math.log(8 / 3) + (math.log(5 / 1) + math.log(8 / 4)) / 2)
    assert int(right) == 3
    total, _ = sigmoid_contrast(logits, torch.tensor([2, 0, 1]), equal)
    wrong = [1, 2, 3, 2, 4]  # exp(x): -log sigmoid(-x) = log(1 + e^x)
    right_ones = math.log(1 + 1 / 5) + math.log(1 + 1 / 3) + (math.log(1 + 1 / 1) + math.log(1 + 1 / 4)) / 2
    assert float(total) == pytest.approx(sum(math.log(1 + e) for e in wrong) + right_ones)


def by_loops(logits: torch.Tensor, own: torch.Tensor, equal: torch.Tensor, sigmoid: bool) -> torch.Tensor:
    total = logits.new_zeros(())
    for i, row in enumerate(logits):
        right = [j for j in range(len(row)) if equal[i, j] or j == own[i]]
        wrong = [j for j in range(len(row)) if j not in right]
        for j in right:
            if sigmoid:
                total = total - row[j].sigmoid().log() / len(right)
            else:
                total = total - (row[j].exp() / (row[j].exp() + sum(row[k].exp() for k in wrong))).log() / len(right)
        if sigmoid:
            total = total - sum((1 - row[j].sigmoid()).log() for j in wrong)
    return total


@pytest.mark.parametrize("sigmoid", [False, True])
def test_values_and_gradients_are_those_of_plain_loops(sigmoid: bool) -> None:
    own, equal = torch.tensor([4, 0, 2, 6]), torch.rand(4, 7) < 0.3
    results = []
    for function in (sigmoid_contrast if sigmoid else contrast, lambda *args: (by_loops(*args, sigmoid), 0)):
        logits = (3 * torch.randn(4, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))).requires_grad_()
        total, _ = function(logits, own, equal)
        total.backward()
        results.append((total.detach(), logits.grad))
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_all_equal_is_loss_0_with_no_gradient() -> None:
    logits = torch.randn(4, 4, requires_grad=True)
    total, right = contrast(logits, torch.arange(4), torch.ones(4, 4, dtype=torch.bool))
    total.backward()
    assert float(total.detach()) == 0 and int(right) == 4 and logits.grad is not None and not logits.grad.any()


def test_large_logits_stay_finite() -> None:
    for size in (1e4, -1e4):
        logits = size * torch.eye(3).requires_grad_()
        for function in (contrast, sigmoid_contrast):
            total, _ = function(logits, torch.arange(3), NO_EQUALS)
            assert total.isfinite() and torch.autograd.grad(total, logits)[0].isfinite().all()


@pytest.mark.parametrize("num_pairs", [2, 5, 256])
def test_chance_is_the_loss_of_features_that_say_nothing(num_pairs: int) -> None:
    own, equal = torch.arange(num_pairs), torch.zeros(num_pairs, num_pairs, dtype=torch.bool)
    logits = torch.full((num_pairs, num_pairs), 0.7, dtype=torch.float64)
    assert float(contrast(logits, own, equal)[0] / num_pairs) == pytest.approx(chance(num_pairs, sigmoid=False))
    assert chance(num_pairs, sigmoid=False) == pytest.approx(math.log(num_pairs))
    biases = torch.linspace(-12, 3, 30001, dtype=torch.float64)
    losses = torch.nn.functional.softplus(-biases) + (num_pairs - 1) * torch.nn.functional.softplus(biases)
    assert chance(num_pairs, sigmoid=True) == pytest.approx(float(losses.min()), rel=1e-6)
