"""The loss is a sum of nats and a count, of labels that stand where they are predicted."""

import math

import pytest
import torch

from lit_models.losses.language import token_cross_entropy


def by_hand(logits, labels, smoothing=0.0):
    """Sum over labels that count, token by token."""
    total = 0.0
    for row, label in zip(logits.flatten(0, -2).tolist(), labels.flatten().tolist(), strict=True):
        if label == -100:
            continue
        log_norm = math.log(sum(math.exp(v) for v in row))
        logp = [v - log_norm for v in row]
        total -= (1 - smoothing) * logp[label] + smoothing * sum(logp) / len(row)
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)])
def test_sum_and_count(shape, smoothing):
    logits, labels = torch.randn(*shape, 7), torch.randint(7, shape)
    labels.view(-1)[1] = -100
    total, count = token_cross_entropy(logits, labels, label_smoothing=smoothing)
    assert total.item() == pytest.approx(by_hand(logits, labels, smoothing), rel=1e-5)
    assert count.item() == labels.numel() - 1 and count.dtype == torch.int64 and count.ndim == 0


def test_o05_labels_are_not_shifted_again():
    ids = torch.randint(9, (2, 6))
    logits = torch.randn(2, 5, 9)
    total, _ = token_cross_entropy(logits, ids[:, 1:])
    assert total.item() == pytest.approx(by_hand(logits, ids[:, 1:]), rel=1e-5)
    for wrong in (by_hand(logits, ids[:, :-1]), by_hand(logits[:, :-1], ids[:, 2:])):
        assert abs(total.item() - wrong) > 1e-2


def test_o05_rows_do_not_touch_each_other():
    logits, labels = torch.randn(2, 5, 9, requires_grad=True), torch.randint(8, (2, 5))
    (grad,) = torch.autograd.grad(token_cross_entropy(logits, labels)[0], logits)
    labels[1] += 1
    (changed,) = torch.autograd.grad(token_cross_entropy(logits, labels)[0], logits)
    assert torch.equal(grad[0], changed[0]) and not torch.equal(grad[1], changed[1])


def test_no_label_gives_a_zero_with_a_graph():
    logits = torch.randn(2, 3, 7, requires_grad=True)
    total, count = token_cross_entropy(logits, torch.full((2, 3), -100), label_smoothing=0.1)
    total.backward()
    assert total.item() == 0 and count.item() == 0 and logits.grad.abs().max() == 0


def test_another_ignore_index():
    logits, labels = torch.randn(4, 7), torch.tensor([0, 3, 0, 5])
    total, count = token_cross_entropy(logits, labels, ignore_index=0)
    assert total.item() == pytest.approx(by_hand(logits[[1, 3]], labels[[1, 3]]), rel=1e-5) and count.item() == 2


@pytest.mark.parametrize("dtype,expected", [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)])
def test_low_precision_logits_are_summed_in_float32(dtype, expected):
    logits, labels = torch.randn(4096, 7).to(dtype), torch.randint(7, (4096,))
    total, _ = token_cross_entropy(logits, labels)
    assert total.dtype == expected and total.item() == pytest.approx(by_hand(logits, labels), rel=1e-5)


def test_shapes_must_fit():
    with pytest.raises((ValueError, TypeError)):  # TypeError where shapes in signatures are checked
        token_cross_entropy(torch.randn(2, 3, 7), torch.zeros(3, 2, dtype=torch.long))
