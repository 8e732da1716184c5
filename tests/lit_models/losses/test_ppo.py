"""Each detail of PPO against numbers by hand and a plain loop in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_models.losses.ppo import (
    exact_kl,
    explained_variance,
    generalized_advantages,
    group_advantages,
    kl_estimates,
    last_token,
    masked_sum,
    moments,
    policy_loss,
    token_rewards,
    value_loss,
    whitened,
)  # fmt: skip


def t(*rows: Any) -> Tensor:
    return torch.tensor(rows if isinstance(rows[0], list) else [list(rows)], dtype=torch.float64)


def m(*rows: Any) -> Tensor:
    return torch.tensor(rows if isinstance(rows[0], list) else [list(rows)], dtype=torch.bool)


def test_r03_kl_estimates_by_hand() -> None:
    k1, k2, k3 = kl_estimates(t(-1), t(-2))
    assert float(k1) == 1 and float(k2) == 0.5 and float(k3) == pytest.approx(0.36788, abs=1e-5)
    assert [float(k) for k in kl_estimates(t(-3), t(-3))] == [0, 0, 0]


def test_r03_estimates_have_the_exact_kl_as_their_mean_and_a_gradient_through_the_reference() -> None:
    logits, reference = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    p, q = logits.log_softmax(0), reference.log_softmax(0)
    exact = exact_kl(p, q)
    assert (
        float(exact) == pytest.approx(float(torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True))) and exact > 0
    )
    k1, k2, k3 = kl_estimates(p[None], q[None])
    assert float((p.exp() * k1[0]).sum()) == pytest.approx(float(exact)) == pytest.approx(float((p.exp() * k3[0]).sum()))
    assert (k3 >= 0).all() and (k2 >= 0).all()
    grads = []
    for other in (q, torch.zeros(3, dtype=torch.float64).log_softmax(0)):
        leaf = logits.clone().requires_grad_()
        exact_kl(leaf.log_softmax(0), other).backward()
        grads.append(leaf.grad)
    assert not torch.allclose(*grads)


def test_a_token_that_cannot_be_drawn_adds_nothing() -> None:
    assert float(exact_kl(t(0.0, -math.inf), t(math.log(0.5), math.log(0.5)))) == pytest.approx(math.log(2))


def test_rewards_are_the_kl_at_every_token_and_the_score_on_the_last() -> None:
    kl, mask = t([1, 2, 3, math.nan], [4, math.inf, 0, 0]), m([1, 1, 1, 0], [1, 0, 0, 0])
    rewards = token_rewards(torch.tensor([10.0, -1.0], dtype=torch.float64), kl, mask, 0.5)
    assert rewards.tolist() == [[-0.5, -1.0, 8.5, 0], [-3.0, 0, 0, 0]]
    assert last_token(mask).tolist() == [2, 0]
    shifted = token_rewards(
        torch.tensor([1.0, 1.0], dtype=torch.float64), t([0, 0, 0], [0, 0, 0]), m([0, 1, 1], [0, 1, 0]), 1.0
    )
    assert shifted.tolist() == [[0, 0, 1], [0, 1, 0]]


def plain_gae(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition: sum of (gamma lam)^l delta."""
    deltas = [r + gamma * (values[i + 1] if i + 1 < len(values) else 0.0) - values[i] for i, r in enumerate(rewards)]
    return [sum((gamma * lam) ** k * d for k, d in enumerate(deltas[i:])) for i in range(len(deltas))]


def test_advantages_by_hand() -> None:
    advantages, returns = generalized_advantages(t(0, 0, 1), t(0.5, 0.5, 0.5), m(1, 1, 1), gamma=1.0, lam=1.0)
    assert advantages.tolist() == [[0.5, 0.5, 0.5]] and returns.tolist() == [[1, 1, 1]]
    advantages, returns = generalized_advantages(t(0, 0, 1), t(0.5, 0.5, 0.5), m(1, 1, 1), gamma=0.9, lam=0.0)
    torch.testing.assert_close(advantages, t(-0.05, -0.05, 0.5))
    torch.testing.assert_close(returns, t(0.45, 0.45, 1.0))


def test_advantages_are_those_of_a_plain_loop_and_padding_does_not_count() -> None:
    lengths, width = [5, 1, 3], 6
    rewards, values = torch.randn(3, width, dtype=torch.float64), torch.randn(3, width, dtype=torch.float64)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    for gamma, lam in ((1.0, 0.95), (0.97, 0.9), (1.0, 0.0), (0.9, 1.0)):
        filled = [x.masked_fill(~mask, math.nan) for x in (rewards, values)]
        advantages, returns = generalized_advantages(*filled, mask, gamma=gamma, lam=lam)
        for i, n in enumerate(lengths):
            expected = plain_gae(rewards[i, :n].tolist(), values[i, :n].tolist(), gamma, lam)
            assert advantages[i, :n].tolist() == pytest.approx(expected, abs=1e-12)
            assert returns[i, :n].tolist() == pytest.approx((advantages[i, :n] + values[i, :n]).tolist(), abs=1e-12)
        assert not advantages[~mask].any() and not returns[~mask].any()


def test_r05_whitening_by_hand() -> None:
    made = whitened(t(1, 2, 3, 9, 9), m(1, 1, 1, 0, 0))
    torch.testing.assert_close(made, t(-1.2247, 0, 1.2247, 0, 0), rtol=0, atol=1e-4)
    assert whitened(t(5, 7), m(1, 0)).tolist() == [[0, 0]]
    assert not whitened(t(5, math.nan), m(0, 0)).any()


def test_whitening_over_ranks_is_that_of_the_whole() -> None:
    values, mask = torch.randn(6, 4, dtype=torch.float64), torch.rand(6, 4) < 0.7
    whole = whitened(values, mask)
    sums = moments(values[:2], mask[:2]) + moments(values[2:], mask[2:])
    torch.testing.assert_close(torch.cat([whitened(values[:2], mask[:2], sums), whitened(values[2:], mask[2:], sums)]), whole)


def test_the_policy_loss_by_hand() -> None:
    """Ratios 1.5, 0.5, 1 with clip 0.2: the worse of the free and the clipped term, never the better one."""
    old = t(0, 0, 0, 0)
    new = t(math.log(1.5), math.log(0.5), 0, math.nan)
    mask = m(1, 1, 1, 0)
    for sign, expected in ((1.0, [-1.2, -0.5, -1.0]), (-1.0, [1.5, 0.8, 1.0])):
        total, logged = policy_loss(new, old, t(1, 1, 1, 1) * sign, mask, clip=0.2)
        assert float(total) == pytest.approx(sum(expected))
        assert float(logged["clip_fraction"]) == 1  # the first, or of bad actions the second
        assert float(logged["ratio"]) == pytest.approx(3.0)
        assert float(logged["approx_kl"]) == pytest.approx(sum(r - 1 - math.log(r) for r in (1.5, 0.5, 1.0)))


def test_clipped_tokens_have_no_gradient_and_the_others_that_of_policy_gradient() -> None:
    new = t(math.log(1.5), math.log(1.1), 0.0).requires_grad_()
    policy_loss(new, t(0, 0, 0), t(1, 1, -2), m(1, 1, 1), clip=0.2)[0].backward()
    torch.testing.assert_close(new.grad, t(0, -1.1, 2))


def test_r01_at_the_first_minibatch_the_loss_is_minus_the_advantages() -> None:
    log_probs, advantages, mask = torch.randn(3, 5).double(), torch.randn(3, 5).double(), torch.rand(3, 5) < 0.6
    total, logged = policy_loss(log_probs, log_probs, advantages, mask, clip=0.2)
    assert float(total) == pytest.approx(-float(masked_sum(advantages, mask))) and float(logged["clip_fraction"]) == 0
    assert float(logged["approx_kl"]) == 0 and float(logged["ratio"]) == pytest.approx(float(mask.sum()))


def test_r06_the_value_loss_by_hand() -> None:
    for new, expected in ((2.0, 0.5), (0.9, 0.32)):
        total, logged = value_loss(t(new), t(0), t(1), m(1), clip=0.2)
        assert float(total) == pytest.approx(expected)
        assert float(logged["value_clip_fraction"]) == float(new == 0.9)
    for new in (2.0, 0.9, -3.0):
        for clip in (None, math.inf):
            assert float(value_loss(t(new, 9), t(0, 0), t(1, 1), m(1, 0), clip=clip)[0]) == pytest.approx((new - 1) ** 2 / 2)


def test_explained_variance() -> None:
    returns, mask = t(1, 2, 3, 99), m(1, 1, 1, 0)
    assert float(explained_variance(returns, returns, mask)) == 1
    assert float(explained_variance(t(2, 2, 2, 0), returns, mask)) == pytest.approx(0)
    assert float(explained_variance(t(3, 2, 1, 0), returns, mask)) == pytest.approx(-3)
    assert float(explained_variance(t(3, 2, 1, 0), t(2, 2, 2, 5), mask)) == 0


def test_group_advantages_by_hand() -> None:
    scores = torch.tensor([1.0, 2.0, 3.0, 5.0, 5.0, 5.0], dtype=torch.float64)
    assert group_advantages(scores, 3, "rloo").tolist() == pytest.approx([-1.5, 0, 1.5, 0, 0, 0])
    assert group_advantages(scores, 3, "grpo").tolist() == pytest.approx([-1.2247, 0, 1.2247, 0, 0, 0], abs=1e-4)
    for size, kind, message in (
        (4, "rloo", "6 responses are not groups of 4"),
        (1, "grpo", "at least 2"),
        (3, "ppo", "none of"),
    ):
        with pytest.raises(ValueError, match=message):
            group_advantages(scores, size, kind)
