"""Proximal policy optimization on responses: rewards, advantages, clipped losses. One row is a response, padded on the right.

`mask` is True at the tokens of the response (its end token included); what stands elsewhere has no effect and stays 0.
Losses are sums with their counts, so that minibatches, micro-batches and ranks can be put together exactly.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Float[Tensor, "B T"]
Mask = Bool[Tensor, "B T"]
Scalar = Float[Tensor, ""]


def masked_sum(values: Tokens, mask: Mask) -> Scalar:
    """Sum over the response's tokens; NaN and infinity elsewhere do not count."""
    return values.masked_fill(~mask, 0.0).sum()


def kl_estimates(log_probs: Tokens, reference: Tokens) -> tuple[Tokens, Tokens, Tokens]:
    """k1, k2 and k3 for tokens drawn from the policy: log p - log q, half its square, and q / p - 1 - log (q / p).

    All three are 0 where both agree; the means of k1 and k3 are KL(p, q), and k3 is never negative.

    Source: Schulman 2020, Approximating KL divergence, http://joschu.net/blog/kl-approx.html.
    """
    difference = log_probs - reference
    return difference, difference.square() / 2, torch.expm1(-difference) + difference


def exact_kl(log_probs: Float[Tensor, "*batch V"], reference: Float[Tensor, "*batch V"]) -> Float[Tensor, "*batch"]:
    """KL(p, q) of distributions over the vocabulary, in nats; a token that p never gives (-inf) adds nothing."""
    p = log_probs.exp()
    return torch.where(p > 0, p * (log_probs - reference), 0.0).sum(-1)


def token_rewards(scores: Float[Tensor, "B"], kl: Tokens, mask: Mask, kl_coef: float) -> Tokens:
    """- kl_coef times the KL at every token, and the score on the last one.

    Source: Ziegler et al. 2019, equation 2; Ouyang et al. 2022, equation 2.
    """
    last = last_token(mask)
    rewards = -kl_coef * kl.masked_fill(~mask, 0.0)
    rows = torch.arange(len(scores), device=scores.device)
    return rewards.index_put((rows, last), scores.to(rewards), accumulate=True).masked_fill(~mask, 0.0)


def last_token(mask: Mask) -> Int[Tensor, "B"]:
    """Where the last token of each response stands; 0 in an empty one."""
    place = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, place, 0).amax(1)


def generalized_advantages(rewards: Tokens, values: Tokens, mask: Mask, *, gamma: float, lam: float) -> tuple[Tokens, Tokens]:
    """Advantages, and returns = advantages + values. Nothing comes after a response's last token: its next value is 0.

    Source: Schulman et al. 2016 (GAE), equation 16.
    """
    rewards, values = rewards.masked_fill(~mask, 0.0), values.masked_fill(~mask, 0.0)
    advantages = torch.zeros_like(rewards)
    next_value, next_advantage = torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(mask[:, t], delta + gamma * lam * next_advantage, 0.0)
        next_value = values[:, t]
        advantages[:, t] = next_advantage
    return advantages, (advantages + values).masked_fill(~mask, 0.0)


def whitened(values: Tokens, mask: Mask, sums: Float[Tensor, "3"] | None = None) -> Tokens:
    """(x - mean) / std over the response's tokens, with the population's standard deviation; one token alone becomes 0.

    sums: `moments` of all ranks together, where there are several. Source: Huang et al. 2024, detail of advantage whitening.
    """
    count, total, squares = moments(values, mask) if sums is None else sums
    mean = total / count.clamp(min=1)
    variance = (squares / count.clamp(min=1) - mean.square()).clamp(min=0)
    return ((values.double() - mean) * (variance + 1e-8).rsqrt()).to(values.dtype).masked_fill(~mask, 0.0)


def moments(values: Tokens, mask: Mask) -> Float[Tensor, "3"]:
    """Count, sum and sum of squares over the response's tokens, in float64: they add up over ranks."""
    kept = values.double().masked_fill(~mask, 0.0)
    return torch.stack((mask.sum().double(), kept.sum(), kept.square().sum()))


def policy_loss(
    log_probs: Tokens, old: Tokens, advantages: Tokens, mask: Mask, *, clip: float
) -> tuple[Scalar, dict[str, Scalar]]:
    """Sum over tokens of max(-A r, -A clamp(r, 1 - clip, 1 + clip)), r = p / p_old; and sums of what is logged.

    Logged: clip_fraction (of tokens whose clipped term is the larger one), approx_kl (k3 of the old policy to the new one),
    ratio.

    Source: Schulman et al. 2017 (PPO), equation 7.
    """
    difference = (log_probs - old).masked_fill(~mask, 0.0)
    ratio = difference.exp()
    free, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip)
    with torch.no_grad():
        logged = {
            "clip_fraction": masked_sum((clipped > free).to(ratio), mask),
            "approx_kl": masked_sum(ratio - 1 - difference, mask),
            "ratio": masked_sum(ratio, mask),
        }
    return masked_sum(torch.maximum(free, clipped), mask), logged


def value_loss(
    values: Tokens, old: Tokens, returns: Tokens, mask: Mask, *, clip: float | None
) -> tuple[Scalar, dict[str, Scalar]]:
    """Half the sum over tokens of the larger squared error, of v or of v kept within clip of the rollout's value.

    Source: the released code of Ziegler et al. 2019; Huang et al. 2024, value loss clipping.
    """
    errors = (values - returns).square()
    if clip is None:
        return masked_sum(errors, mask) / 2, {"value_clip_fraction": masked_sum(torch.zeros_like(errors), mask)}
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    fraction = masked_sum((bounded > errors).to(errors), mask).detach()
    return masked_sum(torch.maximum(errors, bounded), mask) / 2, {"value_clip_fraction": fraction}


def explained_variance(values: Tokens, returns: Tokens, mask: Mask) -> Scalar:
    """1 - Var(returns - values) / Var(returns) over the response's tokens; 0 where returns do not vary."""
    count, total, squares = moments(returns, mask)
    spread = squares / count.clamp(min=1) - (total / count.clamp(min=1)).square()
    count, total, squares = moments(returns - values, mask)
    left = squares / count.clamp(min=1) - (total / count.clamp(min=1)).square()
    return torch.where(spread > 1e-12, 1 - left / spread.clamp(min=1e-12), 0.0)


def group_advantages(scores: Float[Tensor, "B"], group_size: int, kind: str) -> Float[Tensor, "B"]:
    """Advantages of whole responses, from groups of group_size neighbours that answer the same prompt.

    grpo: (score - mean) / std of the group (Shao et al. 2024, section 4.1.2; the population's, and 0 where all are equal).
    rloo: score minus the mean of the others (Ahmadian et al. 2024, equation 8).

    Raises:
        ValueError: the batch is no whole number of groups, a group has one response, or kind is another.
    """
    if group_size < 2 or len(scores) % group_size:
        raise ValueError(f"{len(scores)} responses are not groups of {group_size}, which must be at least 2")
    groups = scores.view(-1, group_size)
    centred = groups - groups.mean(1, keepdim=True)
    if kind == "rloo":
        return (centred * group_size / (group_size - 1)).flatten()
    if kind != "grpo":
        raise ValueError(f"group advantages {kind!r} are none of grpo, rloo")
    spread = centred.square().mean(1, keepdim=True).sqrt()
    return torch.where(spread > 1e-6, centred / spread.clamp(min=1e-6), 0.0).flatten()
