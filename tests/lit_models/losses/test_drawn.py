"""Log-probabilities and entropies of drawn tokens, and their gradients, equal the plain formula."""

import math

import pytest
import torch
from torch import Tensor

from lit_models.losses.drawn import ROWS, drawn_log_probs


def plain(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    table = logits.log_softmax(-1)
    possible = table > -torch.inf
    kept = torch.where(possible, table, 0.0)
    return table.gather(1, tokens[:, None]).squeeze(1), -(torch.where(possible, kept.exp(), 0.0) * kept).sum(-1)


@pytest.mark.parametrize("part", ["log_probs", "entropies", "both"])
@pytest.mark.parametrize("count", [1, ROWS, 2 * ROWS + 3])
def test_drawn_log_probs_are_the_plain_ones(part: str, count: int) -> None:
    logits = 3 * torch.randn(count, 11, dtype=torch.float64)
    logits[::3, 4:] = -math.inf
    tokens, weights = torch.randint(0, 4, (count,)), torch.randn(2, count, dtype=torch.float64)
    found = []
    for function in (plain, drawn_log_probs):
        leaf = logits.clone().requires_grad_()
        values = function(leaf, tokens)
        terms = [(weight * value).sum() for weight, value in zip(weights, values, strict=True)]
        {"log_probs": terms[0], "entropies": terms[1], "both": terms[0] + terms[1]}[part].backward()
        found.append((*(value.detach() for value in values), leaf.grad))
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-12)


def test_by_hand() -> None:
    log_probs, entropies = drawn_log_probs(
        torch.tensor([[0.0, 0.0, -math.inf], [2.0, -math.inf, -math.inf]]), torch.tensor([1, 0])
    )
    assert log_probs.tolist() == pytest.approx([-math.log(2), 0]) and entropies.tolist() == pytest.approx([math.log(2), 0])
    assert [len(value) for value in drawn_log_probs(torch.empty(0, 5), torch.empty(0, dtype=torch.long))] == [0, 0]
