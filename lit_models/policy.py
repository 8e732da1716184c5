"""A policy that answers prompts: responses, what they are worth, and what an update needs of them."""

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from datamodules.batch import PromptBatch
from datamodules.tokenizers.base import Tokenizer, load_tokenizer
from lit_models.base import LitBase, Loss
from lit_models.losses import ppo
from lit_models.losses.drawn import drawn_log_probs
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


class LitPolicy(LitBase):
    """A policy, its frozen reference and its reward: rollouts, and their evaluation. `LitPPO` adds the update.

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
        self, net: GPT, *args: Any, reward: str, sampling: Sampling = Sampling(), update: Update = Update(),  # noqa: B008
        gold: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        sampling.check()
        update.check()
        if net.dropout:
            raise ValueError(f"net.dropout is {net.dropout}: a policy has none, or its first ratio would not be 1")
        if (net.scalar_head is not None) != (update.advantage == "gae"):
            wanted = "true" if update.advantage == "gae" else "false"
            raise ValueError(f"advantage {update.advantage} needs model.init_args.net.scalar_head {wanted}")
        if options.get("compile"):
            raise ValueError("compile is not for a policy: each token of a rollout has another shape, and would compile anew")
        super().__init__(net, *args, **options)
        self.automatic_optimization = False
        self.sampling, self.update = sampling, update
        self.reference = copy.deepcopy(net).requires_grad_(False).eval()
        self.reward_name, self.reward_assets = f"reward {reward}", dict[str, Any]()
        self.reward_model: ModelReward | None = None
        self.reward_function: TextReward | None = None
        if Path(reward).exists() or os.sep in reward:
            reward_net, self.reward_assets = load_reward_model(find_checkpoint(reward, "reward"))
            self.reward_model = ModelReward(reward_net)
        else:
            self.reward_function = text_reward(reward)
        self.gold, self.gold_name = text_reward(gold, "gold") if gold else None, f"gold {gold}"
        self.register_buffer("kl_coef", torch.tensor(update.kl_coef, dtype=torch.float64))
        self.tokenizer: Tokenizer | None = None

    def check_data(self, data: Any) -> None:
        """Raises ValueError where the reward model was trained with another tokenizer, or a function does not score prompts."""
        given = data.assets()["tokenizer"]
        if self.reward_assets and self.reward_assets.get("tokenizer") != given:
            raise ValueError(f"{self.reward_name} was trained with another tokenizer than the policy")
        prompts = data.dataset("train")
        batch = prompts[0, np.arange(min(3, len(prompts))), None]
        tokenizer, rows = load_tokenizer(given), zip(batch["input_ids"].tolist(), batch["lengths"].tolist(), strict=True)
        texts = [tokenizer.decode(ids[:length]) for ids, length in rows]
        for function, name in ((self.reward_function, self.reward_name), (self.gold, self.gold_name)):
            if function is not None:
                scores_of(function, name, texts)

    def setup(self, stage: str) -> None:
        self.tokenizer = load_tokenizer(self.trainer.datamodule.assets()["tokenizer"])  # type: ignore[attr-defined]

    def train(self, mode: bool = True) -> "LitPolicy":
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
        logits = net.head(features[mask]).float()  # where a token of a response is drawn
        if self.sampling.temperature != 1:
            logits = logits / self.sampling.temperature
        if sampled.allowed is not None:
            place = torch.arange(sampled.allowed.shape[1], device=tokens.device)
            allowed = sampled.allowed[rows][place < mask.sum(1)[:, None]]
            logits = logits.masked_fill(~allowed, -torch.inf)
        drawn, entropies = drawn_log_probs(logits, tokens[:, 1:][mask])
        empty = torch.zeros(mask.shape, dtype=drawn.dtype, device=drawn.device)
        values = empty if net.scalar_head is None else net.scalars(features).float().masked_fill(~mask, 0.0)
        return empty.masked_scatter(mask, drawn), empty.masked_scatter(mask, entropies), values

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

    # ---- evaluation ---------------------------------------------------------------------------------------------------

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
