"""What PPO makes of a rollout: the numbers of its update."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Update:
    """What a rollout is made into.

    Args:
        advantage: gae with a value for each token, or from the scores of a prompt's group_size responses: grpo, rloo.
        group_size: responses to each prompt.
        epochs: passes over each rollout.
        minibatch_size: responses of an optimizer step, over all devices; null for all.
        clip: of the ratio.
        value_clip: of values; null for none.
        value_coef: weight of the value loss.
        entropy_coef: weight of the entropy that is added to the objective.
        gamma, lam: discount, and the lambda of GAE.
        kl_coef: weight of the KL to the reference in the reward of each token (gae), or of the whole response.
        kl_target: nats per response that kl_coef is adapted to; null keeps it.
        kl_horizon: responses in which kl_coef may change by a factor of about e.
        stop_kl: KL of the rollout's policy to the new one, in nats per token, at which a rollout's updates end; null for never.
        missing_eos_penalty: what a response without an end token loses.
        whiten: bring advantages to mean 0 and standard deviation 1 over a rollout's tokens.
        max_grad_norm: gradients are clipped to; null for none.
    """

    advantage: Literal["gae", "grpo", "rloo"] = "gae"
    group_size: int = 1
    epochs: int = 4
    minibatch_size: int | None = None
    clip: float = 0.2
    value_clip: float | None = 0.2
    value_coef: float = 0.1
    entropy_coef: float = 0.0
    gamma: float = 1.0
    lam: float = 0.95
    kl_coef: float = 0.05
    kl_target: float | None = None
    kl_horizon: int = 10_000
    stop_kl: float | None = None
    missing_eos_penalty: float = 0.0
    whiten: bool = True
    max_grad_norm: float | None = 1.0

    def check(self) -> None:  # not at construction: the parser of configs would bury the message
        """Raises ValueError where a number is out of its range."""
        for name in ("group_size", "epochs", "kl_horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is below 1")
        if self.minibatch_size is not None and self.minibatch_size < 1:
            raise ValueError(f"minibatch_size {self.minibatch_size} is below 1")
        for name in ("value_coef", "entropy_coef", "kl_coef", "missing_eos_penalty"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)} is negative")
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1]")
        for name in ("clip", "value_clip", "kl_target", "stop_kl", "max_grad_norm"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise ValueError(f"{name} {value} is not above 0")
        if self.advantage != "gae" and self.group_size < 2:
            raise ValueError(f"advantage {self.advantage} compares responses to one prompt: group_size must be at least 2")
