"""PPO's step: the first ratio is 1, the reference stays, and neither chunks nor ranks change anything."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_models.losses.update import Update
from lit_models.nn.gpt import GPT
from lit_models.nn.sampling import Sampling
from tests.lit_models.ppo_ranks import HERE, count_a, policy, prompts, tokenizer
from tests.reading import ROOT

SAMPLINGS = [Sampling(6), Sampling(6, temperature=0.7), Sampling(6, temperature=0.7, top_k=3), Sampling(6, top_p=0.8)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("micro_batch_size", [3, 64])
def test_r01_the_first_ratio_is_1_and_the_first_kl_0(sampling: Sampling, micro_batch_size: int) -> None:
    lit = policy(sampling=sampling)
    lit.training_step(prompts(micro_batch_size=micro_batch_size), 0)
    logged = lit.step_metrics()
    assert logged["train/first_log_ratio"] <= 1e-5 and logged["train/first_clip_fraction"] == 0
    assert logged["train/kl"] == 0 and logged["train/kl_k3"] == 0
    lit.trainer.global_step = 1  # type: ignore[misc]
    lit.training_step(prompts(micro_batch_size=micro_batch_size), 0)
    logged = lit.step_metrics()
    assert logged["train/first_log_ratio"] <= 1e-5 and logged["train/kl_k3"] > 0 and logged["train/num_updates"] == 2


def test_with_a_rate_of_0_every_ratio_is_1() -> None:
    lit = policy()
    lit.optimizers().param_groups[0]["lr"] = 0.0
    for step in range(3):
        lit.trainer.global_step = step  # type: ignore[misc]
        lit.training_step(prompts(), 0)
        logged = lit.step_metrics()
        assert logged["train/approx_kl"] == pytest.approx(0, abs=1e-9) and logged["train/clip_fraction"] == 0


def test_r12_the_reference_stays_and_shares_nothing() -> None:
    lit = policy(reward=f"{HERE}.length", gold=f"{HERE}.count_a")
    before = {name: p.clone() for name, p in lit.reference.named_parameters()}
    own = {p.data_ptr() for p in lit.net.parameters()}
    assert not own & {p.data_ptr() for p in lit.reference.parameters()}
    for _ in range(3):
        lit.training_step(prompts(), 0)
    assert all(torch.equal(p, before[name]) and not p.requires_grad for name, p in lit.reference.named_parameters())
    assert not lit.reference.training and lit.net.training
    moved = [not torch.equal(p, before[name]) for name, p in lit.net.named_parameters()]
    assert all(moved)  # D05: every parameter has a gradient
    assert {"train/gold", "train/entropy", "train/explained_variance"} <= lit.step_metrics().keys()


@pytest.mark.parametrize("update", [Update(minibatch_size=5, epochs=2), Update("grpo", 4, value_clip=None), Update("rloo", 2)])
def test_chunks_change_nothing(update: Update) -> None:
    weights, logged = [], []
    for size in (64, 3):
        lit = policy(update)
        lit.training_step(prompts(micro_batch_size=size), 0)
        weights.append(torch.cat([p.flatten() for p in lit.net.parameters()]))
        logged.append({k: v for k, v in lit.step_metrics().items() if "seconds" not in k and "log_ratio" not in k})
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)
    assert logged[0] == pytest.approx(logged[1], rel=1e-4, abs=1e-6)


def test_two_ranks_have_the_rewards_and_the_update_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", HERE]
    arguments = [str(tmp_path / "store"), str(tmp_path / "out.pt")]
    ranks = [subprocess.Popen([*command, str(rank), *arguments], cwd=ROOT) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    lit = policy()
    lit.training_step(prompts(), 0)
    both = torch.load(tmp_path / "out.pt", weights_only=True)
    for name, value in lit.net.state_dict().items():
        torch.testing.assert_close(both["net"][name], value, rtol=1e-5, atol=1e-6)
    for name in ("score", "kl", "policy_loss", "value_loss", "entropy", "response_length", "eos_share", "score_std"):
        assert both["logged"][f"train/{name}"] == pytest.approx(lit.step_metrics()[f"train/{name}"], rel=1e-5, abs=1e-7)


def test_scores_are_of_prompt_and_response_less_the_penalty() -> None:
    lit, batch = policy(Update(missing_eos_penalty=2.0)), prompts()
    made = lit.collect(batch)  # type: ignore[arg-type]
    assert 0 < int(made.rollout.ended.sum()) < 8
    for row in range(8):
        count = int(batch["lengths"][row] + made.mask[row].sum())
        text = tokenizer().decode(made.rollout.tokens[row, :count].tolist())
        assert float(made.scores[row]) == count_a([text])[0] - 2.0 * (not made.rollout.ended[row])


def test_rewards_advantages_and_returns_of_a_rollout() -> None:
    """With the reference moved away, so that there is a KL."""
    update = Update(kl_coef=0.5, gamma=0.9, lam=0.8, whiten=False)
    lit = policy(update)
    with torch.no_grad():
        for p in lit.reference.parameters():
            p.mul_(0.9)
    made = lit.collect(prompts())  # type: ignore[arg-type]
    for row in range(8):
        mask = made.mask[row]
        kl, values = (made.log_probs - made.reference)[row, mask].tolist(), made.values[row, mask].tolist()
        rewards = [-0.5 * k for k in kl]
        rewards[-1] += float(made.scores[row])
        following = 0.0
        for t in reversed(range(len(rewards))):
            delta = rewards[t] + 0.9 * (values[t + 1] if t + 1 < len(values) else 0.0) - values[t]
            following = delta + 0.9 * 0.8 * following
            assert float(made.advantages[row, mask][t]) == pytest.approx(following, abs=1e-5)
            assert float(made.returns[row, mask][t]) == pytest.approx(following + values[t], abs=1e-5)
        assert float(made.kl[row]) == pytest.approx(sum(kl), abs=1e-5) and not made.advantages[row, ~mask].any()


def test_log_probs_are_those_of_a_plain_forward() -> None:
    lit = policy(sampling=Sampling(6, temperature=0.7))
    made = lit.collect(prompts())  # type: ignore[arg-type]
    for row in range(8):
        (places,) = torch.nonzero(made.rollout.response[row], as_tuple=True)
        ids = made.rollout.tokens[row]
        with torch.no_grad():
            table = (lit.net(ids[None, : int(places[-1]) + 1])[0] / 0.7).log_softmax(-1)
        expected = [float(table[place - 1, ids[place]]) for place in places.tolist()]
        assert made.log_probs[row, made.mask[row]].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_kl_coefficient_follows_its_target() -> None:
    lit = policy(Update(kl_coef=0.1, kl_target=5.0, kl_horizon=1000))
    lit.adapt_kl(5.5, 100)
    assert float(lit.kl_coef) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    lit.adapt_kl(50.0, 100)  # the error is kept within 0.2
    assert float(lit.kl_coef) == pytest.approx(0.101 * 1.02)
    lit.adapt_kl(0.0, 100)
    assert float(lit.kl_coef) == pytest.approx(0.101 * 1.02 * 0.98)
    assert "kl_coef" in lit.state_dict()


def test_updates_end_when_the_policy_has_moved_enough() -> None:
    lit = policy(Update(epochs=6, stop_kl=1e-4))
    lit.optimizers().param_groups[0]["lr"] = 1.0
    lit.training_step(prompts(), 0)
    assert 1 < lit.step_metrics()["train/num_updates"] < 6


def test_a_reward_model_scores_the_last_token_and_never_trains(tmp_path: Path) -> None:
    reward = GPT(10, 16, num_layers=1, num_heads=2, embed_dim=16, scalar_head=True)
    sizes = {"vocab_size": 10, "max_seq_len": 16, "num_layers": 1, "num_heads": 2, "embed_dim": 16, "scalar_head": True}
    state = {f"net.{name}": value for name, value in reward.state_dict().items()}
    path = tmp_path / "reward.ckpt"
    checkpoint = {"state_dict": state, "hyper_parameters": {"net": sizes}, "assets": {"tokenizer": tokenizer().to_json()}}
    torch.save(checkpoint, path)
    lit, batch = policy(reward=str(path)), prompts()
    made = lit.collect(batch)  # type: ignore[arg-type]
    for row in range(8):
        count = int(batch["lengths"][row] + made.mask[row].sum())
        ids = made.rollout.tokens[row : row + 1, :count]
        with torch.no_grad():
            expected = reward.eval().scalars(reward.features(ids))[0, -1]
        assert float(made.scores[row]) == pytest.approx(float(expected), abs=1e-5)
    assert lit.reward_model is not None and not lit.reward_model.net.training
    assert not any(p.requires_grad for p in lit.reward_model.parameters())
    torch.save({**checkpoint, "assets": {"tokenizer": "another"}}, path)
    lit = policy(reward=str(path))
    with pytest.raises(ValueError, match="was trained with another tokenizer"):
        lit.check_data(lit.trainer.datamodule)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options,message",
    [
        ({"reward": "no.such.function"}, "is neither a run folder nor a function"),
        ({"reward": f"{HERE}.LETTERS"}, "is .abcdefgh., where a function of texts was expected"),
        ({"reward": "runs/nothing/here"}, "reward: no checkpoint at runs/nothing/here"),
        ({"update": Update(clip=0.0)}, "clip 0.0 is not above 0"),
        ({"update": Update(advantage="grpo")}, "group_size must be at least 2"),
        ({"update": Update(lam=1.5)}, r"lam 1.5 is not in \[0, 1\]"),
        ({"sampling": Sampling(temperature=0.0)}, "temperature 0.0 is not above 0"),
        ({"sampling": Sampling(0)}, "max_new_tokens 0 is below 1"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        policy(**options)


def test_a_policy_has_no_dropout_and_the_head_that_its_advantage_needs() -> None:
    from lit_models.ppo import LitPPO

    for net, update, message in (
        (GPT(10, 16, 1, 2, 16, dropout=0.1, scalar_head=True), Update(), "net.dropout is 0.1: a policy has none"),
        (GPT(10, 16, 1, 2, 16), Update(), "advantage gae needs model.init_args.net.scalar_head true"),
        (GPT(10, 16, 1, 2, 16, scalar_head=True), Update("rloo", 2), "advantage rloo needs .*scalar_head false"),
    ):
        with pytest.raises(ValueError, match=message):
            LitPPO(net, torch.optim.SGD, reward=f"{HERE}.length", update=update)


def broken(texts: list[str]) -> Any:
    raise RuntimeError("the scorer\nis away")


def test_a_reward_function_that_fails_or_gives_something_else() -> None:
    lit = policy()
    for function, message in (
        (broken, "failed: RuntimeError: the scorer is away"),
        (lambda texts: [0.0] * (len(texts) - 1), "gave 7 scores for 8 texts"),
        (lambda texts: [math.nan, *[0.0] * (len(texts) - 1)], "gave nan for '"),
        (lambda texts: "high", "where 8 numbers were expected"),
    ):
        lit.reward_function = function
        with pytest.raises(ValueError, match=message):
            lit.collect(prompts())  # type: ignore[arg-type]
