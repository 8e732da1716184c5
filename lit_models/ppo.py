"""Reinforcement learning from a reward: PPO, or with the same rollouts GRPO and RLOO."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from datamodules.batch import PromptBatch
from lit_models.losses import ppo
from lit_models.policy import Experience, LitPolicy


class LitPPO(LitPolicy):
    """One step is one rollout: responses to a batch of prompts, scored, and several optimizer steps on them.

    The details, with their sources (Z: Ziegler et al. 2019; S: Stiennon et al. 2020; O: Ouyang et al. 2022; H: Huang et al.
    2024, "The N+ implementation details of RLHF with PPO"):

    1. The policy starts from the SFT run, and so does the reference, which stays as it is (Z 2.2).
    2. The policy has no dropout, whatever SFT had (H, detail 12 of PPO: disabled, so that the first ratio is 1).
    3. Temperature, top-k and top-p belong to the policy: log-probabilities are those of what was drawn from.
    4. The score stands on the last token; without an end token it loses missing_eos_penalty (Z 3.1; S B.1; H, EOS trick).
    5. Each token's reward is - kl_coef (log p - log p_ref), the estimator k1, of the rollout's policy (Z 2; O equation 2).
    6. GAE with nothing after the last token (Schulman et al. 2016); whitened over the rollout's tokens (H, whitening).
    7. Clipped ratio, clipped values, entropy; each a mean over the minibatch's tokens (Schulman et al. 2017, equations 7, 9).
    8. Log-probabilities and values of the rollout are computed by the forward that trains, not by the one that draws.
    9. kl_coef is fixed, or follows kl_target with an error kept within 0.2 (Z 2.2).
    10. Minibatches are drawn from all ranks' responses; a gradient is the sum over all ranks by the number of tokens.

    Arguments and errors are those of LitPolicy.
    """

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:  # type: ignore[override]
        started = time.perf_counter()
        made = self.whitened(self.collect(batch))
        rolled = time.perf_counter()
        logged = self.learn(made, batch["micro_batch_size"])
        logged |= self.described(made)
        self.adapt_kl(logged["kl"], len(made.scores) * self.trainer.world_size)
        for config in self.trainer.lr_scheduler_configs:
            config.scheduler.step()  # type: ignore[call-arg]  # none of ours wants a metric
        # One step of the trainer's axis is one rollout, however many optimizer steps it has.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()
        seconds = {"seconds_rollout": rolled - started, "seconds_update": time.perf_counter() - rolled}
        self._last = {**logged, **seconds}

    def whitened(self, made: Experience) -> Experience:
        """With advantages of mean 0 and standard deviation 1 over all ranks' tokens, where the update wants that."""
        if not self.update.whiten or self.update.advantage != "gae":
            return made
        moments = self.over_ranks(ppo.moments(made.advantages, made.mask))
        return replace(made, advantages=ppo.whitened(made.advantages, made.mask, moments))

    def learn(self, made: Experience, micro_batch_size: int) -> dict[str, Tensor | float]:
        """The optimizer steps on a rollout; returns what is logged of them."""
        optimizer = self.optimizers(use_pl_optimizer=False)
        assert isinstance(optimizer, torch.optim.Optimizer)
        params = [p for group in optimizer.param_groups for p in group["params"]]
        num_tokens = self.gathered(made.mask.sum(1))  # (N,) of all ranks' responses
        sums: dict[str, Tensor] = {}
        num_updates, first = 0, {}
        for chosen, own in self.minibatches(len(num_tokens), len(made.scores)):
            count = num_tokens[chosen].sum()
            for p in params:
                p.grad = None
            parts = [self.losses(made, rows, count) for rows in own.split(micro_batch_size) if len(rows)]
            names = ("loss", "policy_loss", "value_loss", "entropy", "clip_fraction", "value_clip_fraction", "approx_kl")
            zero = count.new_zeros((), dtype=torch.float64)
            local = torch.stack([sum((part[name].double() for part in parts), zero) for name in names])
            step = dict(zip(names, self.over_ranks(local) / count.clamp(min=1), strict=True))
            if not num_updates:
                ratios = [part["max_log_ratio"] for part in parts] or [zero]
                largest = torch.stack([ratio.double() for ratio in ratios]).max()
                first = {
                    "first_log_ratio": self.over_ranks(largest, largest=True),
                    "first_clip_fraction": step["clip_fraction"],
                }
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
            for p, grad in zip(params, grads, strict=True):
                p.grad = self.over_ranks(grad)
            norm = nn.utils.get_total_norm(grads)
            if self.update.max_grad_norm is not None:
                nn.utils.clip_grads_with_norm_(params, self.update.max_grad_norm, norm)
            optimizer.step()
            num_updates += 1
            for name, value in {**step, "grad_norm": norm.double()}.items():
                sums[name] = sums.get(name, zero) + value
            if self.update.stop_kl is not None and float(step["approx_kl"]) > self.update.stop_kl:
                break
        means = {name: value / num_updates for name, value in sums.items()}
        return {**means, **first, "num_updates": float(num_updates), "lr": optimizer.param_groups[0]["lr"]}

    def losses(self, made: Experience, rows: Int[Tensor, "b"], count: Tensor) -> dict[str, Tensor]:
        """Adds the gradient of some responses' share of a minibatch with `count` tokens; returns sums over their tokens."""
        options, mask = self.update, made.mask[rows]
        log_probs, entropies, values = self.evaluate(self.net, made.rollout, rows)
        policy, logged = ppo.policy_loss(log_probs, made.log_probs[rows], made.advantages[rows], mask, clip=options.clip)
        value, logged_value = ppo.value_loss(values, made.values[rows], made.returns[rows], mask, clip=options.value_clip)
        entropy = ppo.masked_sum(entropies, mask)
        value_coef = options.value_coef if options.advantage == "gae" else 0.0
        loss = policy + value_coef * value
        if options.entropy_coef:
            loss = loss - options.entropy_coef * entropy
        (loss / count.clamp(min=1)).backward()
        largest = (log_probs - made.log_probs[rows]).detach().masked_fill(~mask, 0.0).abs().max()
        sums = {"loss": loss, "policy_loss": policy, "value_loss": value, "entropy": entropy}
        return {**{k: v.detach() for k, v in sums.items()}, **logged, **logged_value, "max_log_ratio": largest}

    def minibatches(self, num_responses: int, num_local: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each optimizer step: the numbers of its responses among all ranks', and which of this rank's they are."""
        seed, step = int(os.environ.get("PL_GLOBAL_SEED", 0)), self.trainer.global_step
        first = self.global_rank * num_local
        for epoch in range(self.update.epochs):
            generator = torch.Generator().manual_seed(((seed * 1_000_003 + step) * 1_000_003 + epoch) % 2**63)
            order = torch.randperm(num_responses, generator=generator).to(self.device)
            for chosen in order.split(self.update.minibatch_size or num_responses):
                yield chosen, chosen[(chosen >= first) & (chosen < first + num_local)] - first

    def adapt_kl(self, kl: Tensor | float, num_responses: int) -> None:
        """Source: Ziegler et al. 2019, section 2.2."""
        if self.update.kl_target is not None:
            error = min(max(float(kl) / self.update.kl_target - 1, -0.2), 0.2)
            self.kl_coef *= 1 + error * num_responses / self.update.kl_horizon

    def described(self, made: Experience) -> dict[str, Tensor | float]:
        """Means over all ranks' responses."""
        columns = self.per_response(made)
        table = torch.stack([column.double() for column in columns.values()])  # (metrics, B)
        sums = self.over_ranks(torch.cat((table.sum(1), table.square().sum(1), table.new_tensor([table.shape[1]]))))
        count = sums[-1]
        means = dict(zip(columns, sums[: len(columns)] / count, strict=True))
        spread = sums[len(columns)] / count - means["score"].square()
        explained = {}
        if self.update.advantage == "gae":
            explained = {"explained_variance": ppo.explained_variance(made.values, made.returns, made.mask)}
        return {**means, "score_std": spread.clamp(min=0).sqrt(), **explained, "kl_coef": float(self.kl_coef)}
