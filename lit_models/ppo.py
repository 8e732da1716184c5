"""Reinforcement learning from a reward: PPO, or with the same rollouts GRPO and RLOO."""

import copy
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from datamodules.batch import PromptBatch
from datamodules.tokenizers.base import Tokenizer, load_tokenizer
from lit_models.base import LitBase, Loss, OptimizerFactory, SchedulerFactory
from lit_models.losses import ppo
from lit_models.losses.update import Update
from lit_models.nn.gpt import GPT
from lit_models.nn.reward import ModelReward, TextReward, load_reward_model, scores_of, text_reward
from lit_models.nn.rollout import Rollout, rollout
from lit_models.nn.sampling import Sampling
from lit_models.nn.weights import find_checkpoint


@dataclass(frozen=True)
class Experience:
    """A rollout and what is made of it. Columns t of (B, T) tables belong to token t + 1 of a row: what it was drawn from.

    `mask` is True at the response's tokens, and the tables are 0 elsewhere.
    """

    rollout: Rollout
    mask: Bool[Tensor, "B T"]
    log_probs: Float[Tensor, "B T"]
    reference: Float[Tensor, "B T"]
    values: Float[Tensor, "B T"]
    scores: Float[Tensor, "B"]  # what the reward says, less the penalty for a missing end token
    gold: Float[Tensor, "B"] | None
    advantages: Float[Tensor, "B T"]
    returns: Float[Tensor, "B T"]

    @property
    def kl(self) -> Float[Tensor, "B"]:
        """k1, the sum of log p - log p_ref over each response, in nats."""
        return (self.log_probs - self.reference).masked_fill(~self.mask, 0.0).sum(1)


class LitPPO(LitBase):
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

    Args:
        net: a GPT with a scalar head, which gives the values; without one for grpo and rloo.
        reward: run folder or checkpoint of a reward model, or the dotted path of a function of texts (prompt and response).
        sampling: how responses are drawn.
        update: what is made of them.
        gold: dotted path of a function of texts that is only measured, never trained on.
        init_from: the run that policy and reference start from.

    Raises:
        ValueError: the network does not fit the advantage or has dropout, a number is out of its range, or there is no such
            reward.
    """

    unit = "responses"
    counted = "response"
    next_command = "chat --run_dir {run_dir}"
    net: GPT
    kl_coef: Tensor

    def __init__(
        self, net: GPT, optimizer: OptimizerFactory, lr_scheduler: SchedulerFactory | None = None, *, reward: str,
        sampling: Sampling = Sampling(), update: Update = Update(), gold: str | None = None,  # noqa: B008
        init_from: str | None = None,
    ) -> None:  # fmt: skip
        sampling.check()
        update.check()
        if net.dropout:
            raise ValueError(f"net.dropout is {net.dropout}: a policy has none, or its first ratio would not be 1")
        if (net.scalar_head is not None) != (update.advantage == "gae"):
            wanted = "true" if update.advantage == "gae" else "false"
            raise ValueError(f"advantage {update.advantage} needs model.init_args.net.scalar_head {wanted}")
        super().__init__(net, optimizer, lr_scheduler, init_from)
        self.automatic_optimization = False
        self.sampling, self.update = sampling, update
        self.reference = copy.deepcopy(net).requires_grad_(False).eval()
        self.reward_name, self.reward_assets = reward, dict[str, Any]()
        self.reward_model: ModelReward | None = None
        self.reward_function: TextReward | None = None
        if Path(reward).exists() or os.sep in reward:
            reward_net, self.reward_assets = load_reward_model(find_checkpoint(reward))
            self.reward_model = ModelReward(reward_net)
        else:
            self.reward_function = text_reward(reward)
        self.gold = text_reward(gold) if gold else None
        self.gold_name = gold or ""
        self.register_buffer("kl_coef", torch.tensor(update.kl_coef, dtype=torch.float64))
        self.tokenizer: Tokenizer | None = None

    def setup(self, stage: str) -> None:
        """Raises ValueError where the reward model was trained with another tokenizer."""
        assets = self.trainer.datamodule.assets()  # type: ignore[attr-defined]
        if self.reward_assets and self.reward_assets.get("tokenizer") != assets["tokenizer"]:
            raise ValueError(f"reward {self.reward_name} was trained with another tokenizer than the policy")
        self.tokenizer = load_tokenizer(assets["tokenizer"])

    def train(self, mode: bool = True) -> "LitPPO":
        super().train(mode)
        self.reference.eval()
        return self

    # ---- a rollout ----------------------------------------------------------------------------------------------------

    def collect(self, batch: PromptBatch) -> Experience:
        """Responses to a batch of prompts, group_size to each, and what the update needs of them."""
        sampled, lengths = self.respond(self.net, batch)
        every = torch.arange(len(lengths), device=lengths.device)
        with torch.no_grad():
            parts = [self.evaluate(self.net, sampled, rows) for rows in every.split(batch["micro_batch_size"])]
            log_probs, _, values = (torch.cat(column) for column in zip(*parts, strict=True))
            parts = [self.evaluate(self.reference, sampled, rows) for rows in every.split(batch["micro_batch_size"])]
            reference = torch.cat([part[0] for part in parts])
        mask = sampled.response[:, 1:]
        scores, gold = self.score(sampled, lengths)
        kl, coefficient = log_probs - reference, float(self.kl_coef)
        if self.update.advantage == "gae":
            rewards = ppo.token_rewards(scores, kl, mask, coefficient)
            advantages, returns = ppo.generalized_advantages(
                rewards, values, mask, gamma=self.update.gamma, lam=self.update.lam
            )
        else:
            whole = scores - coefficient * kl.masked_fill(~mask, 0.0).sum(1)
            own = ppo.group_advantages(whole, self.update.group_size, self.update.advantage)
            advantages, returns = own[:, None].expand_as(kl).masked_fill(~mask, 0.0), torch.zeros_like(kl)
        if self.update.whiten and self.update.advantage == "gae":
            advantages = ppo.whitened(advantages, mask, self.over_ranks(ppo.moments(advantages, mask)))
        return Experience(sampled, mask, log_probs, reference, values, scores, gold, advantages, returns)

    def respond(self, net: GPT, batch: PromptBatch) -> tuple[Rollout, Int[Tensor, "B"]]:
        """group_size responses to each prompt, and the lengths of the prompts."""
        assert self.tokenizer is not None
        size = self.update.group_size
        prompts, lengths = (batch[name].repeat_interleave(size, 0) for name in ("input_ids", "lengths"))  # type: ignore[literal-required]
        draws = uniforms(batch["seeds"].tolist(), size, self.sampling.max_new_tokens).to(prompts.device)
        was_training = net.training
        net.eval()
        sampled = rollout(
            net, prompts, lengths, draws, eos_id=self.tokenizer.eos_id, pad_id=self.tokenizer.pad_id,
            temperature=self.sampling.temperature, top_k=self.sampling.top_k, top_p=self.sampling.top_p,
        )  # fmt: skip
        net.train(was_training)
        return sampled, lengths

    def evaluate(
        self, net: GPT, sampled: Rollout, rows: Int[Tensor, "b"]
    ) -> tuple[Float[Tensor, "b T"], Float[Tensor, "b T"], Float[Tensor, "b T"]]:
        """Log-probabilities of the drawn tokens, entropies of what they were drawn from, and values; 0 off the response."""
        tokens, mask = sampled.tokens[rows], sampled.response[rows][:, 1:]
        features = net.features(tokens[:, :-1])
        logits = net.head(features[mask]).float() / self.sampling.temperature  # where a token of a response is drawn
        if sampled.allowed is not None:
            place = torch.arange(sampled.allowed.shape[1], device=tokens.device)
            allowed = sampled.allowed[rows][place < mask.sum(1)[:, None]]
            logits = logits.masked_fill(~allowed, -torch.inf)
        table = logits.log_softmax(-1)
        drawn = table.gather(1, tokens[:, 1:][mask][:, None]).squeeze(1)
        empty = torch.zeros(mask.shape, dtype=table.dtype, device=table.device)
        values = empty if net.scalar_head is None else net.scalars(features).float().masked_fill(~mask, 0.0)
        return empty.masked_scatter(mask, drawn), empty.masked_scatter(mask, ppo.entropy(table)), values

    def score(self, sampled: Rollout, prompt_lengths: Tensor) -> tuple[Float[Tensor, "B"], Float[Tensor, "B"] | None]:
        """What the reward says of each prompt with its response, less the penalty, and what the gold score says."""
        lengths = prompt_lengths + sampled.response.sum(1)
        texts: list[str] = []
        if self.reward_function is not None or self.gold is not None:
            assert self.tokenizer is not None
            rows = zip(sampled.tokens.tolist(), lengths.tolist(), strict=True)
            texts = [self.tokenizer.decode(ids[:length]) for ids, length in rows]
        device = sampled.tokens.device
        if self.reward_model is not None:
            scores = self.reward_model(sampled.tokens, lengths)
        else:
            assert self.reward_function is not None
            scores = scores_of(self.reward_function, self.reward_name, texts).to(device)
        gold = None if self.gold is None else scores_of(self.gold, self.gold_name, texts).to(device)
        return scores - self.update.missing_eos_penalty * (~sampled.ended).to(scores), gold

    # ---- the update ---------------------------------------------------------------------------------------------------

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:  # type: ignore[override]
        started = time.perf_counter()
        made = self.collect(batch)
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
        loss = policy + value_coef * value - options.entropy_coef * entropy
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

    # ---- what is logged -----------------------------------------------------------------------------------------------

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

    def per_response(self, made: Experience) -> dict[str, Tensor]:
        """Of each response, (B,): score, kl (k1, nats), kl_k3, objective (score - kl_coef kl), length, eos_share, gold."""
        difference = made.log_probs - made.reference
        _, _, k3 = ppo.kl_estimates(difference, torch.zeros_like(difference))
        columns = {"score": made.scores, "kl": made.kl, "kl_k3": k3.masked_fill(~made.mask, 0.0).sum(1)}
        columns["objective"] = made.scores - float(self.kl_coef) * made.kl
        columns |= {"response_length": made.mask.sum(1), "eos_share": made.rollout.ended}
        return columns if made.gold is None else {**columns, "gold": made.gold}

    def step(self, batch: PromptBatch) -> Loss:
        """Evaluation: the policy's responses, and the reference's with the same draws; the loss is minus the objective."""
        made = self.collect(batch)
        scores, gold = self.score(*self.respond(self.reference, batch))
        columns = self.per_response(made) | {"reference_score": scores, "reference_score_squared": scores.double().square()}
        if gold is not None:
            columns["reference_gold"] = gold
        count = torch.full((), len(made.scores), device=made.scores.device)
        metrics = {name: (column.double().sum(), count) for name, column in columns.items()}
        return Loss(-metrics["objective"][0], count, metrics)

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """The standard deviation of the reference's scores, and how many of them the policy is ahead."""
        if "reference_score_squared" not in metrics:
            return {}
        spread = max(0.0, metrics.pop("reference_score_squared") - metrics["reference_score"] ** 2) ** 0.5
        gain = (metrics["score"] - metrics["reference_score"]) / spread if spread else 0.0
        return {"reference_score_std": spread, "gain_in_std": gain}

    def units(self, batch: PromptBatch) -> int:
        return len(batch["index"]) * self.update.group_size

    def over_ranks(self, value: Tensor, *, largest: bool = False) -> Tensor:
        """The sum, or the maximum, over all ranks."""
        if self.trainer.world_size > 1:
            operation = torch.distributed.ReduceOp.MAX if largest else torch.distributed.ReduceOp.SUM
            torch.distributed.all_reduce(value, operation)
        return value

    def gathered(self, local: Tensor) -> Tensor:
        """All ranks' rows, in their order; every rank has as many."""
        if self.trainer.world_size == 1:
            return local
        parts = [torch.empty_like(local) for _ in range(self.trainer.world_size)]
        torch.distributed.all_gather(parts, local.contiguous())
        return torch.cat(parts)


def uniforms(seeds: list[int], group_size: int, count: int) -> Float[Tensor, "B T"]:
    """`count` numbers in [0, 1) for each response: a function of its prompt's seed and its place in the group alone."""
    rows = []
    for seed in seeds:
        for member in range(group_size):
            generator = torch.Generator().manual_seed((seed * 1_000_003 + member) % 2**63)
            rows.append(torch.rand(count, generator=generator, dtype=torch.float64))
    return torch.stack(rows)
