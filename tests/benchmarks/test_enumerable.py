"""PPO reaches the best policy on the enumerable case, and does not with a sign, a mask or a shift that is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lit_models.losses import ppo
from lit_models.nn.gpt import GPT
from tests.benchmarks import enumerable
from tests.benchmarks.enumerable import log_probs, objectives, responses
from tests.lit_models.ppo_ranks import tokenizer
from tests.pipeline.conftest import environment  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow


def test_responses_are_all_there_are() -> None:
    """Their probabilities sum to 1, and each is the product of its tokens'."""
    known = tokenizer()
    net = GPT(known.vocab_size, 16, num_layers=1, num_heads=2, embed_dim=16).double()
    short = enumerable.MAX_NEW_TOKENS
    try:
        enumerable.MAX_NEW_TOKENS = 3
        listed = responses(known)
        found = log_probs(net, [3, 4], listed)
    finally:
        enumerable.MAX_NEW_TOKENS = short
    assert len(listed) == 1 + 9 + 81 + 729 and float(found.exp().sum()) == pytest.approx(1, abs=1e-12)
    ids = listed[50]
    table = net(torch.tensor([[3, 4, *ids]]))[0].log_softmax(-1)
    assert float(found[50]) == pytest.approx(sum(float(table[1 + t, ids[t]].detach()) for t in range(len(ids))), abs=1e-12)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("enumerable")
    enumerable.fit("--config", enumerable.SFT, "--run_dir", folder / "sft")
    return folder


def ratio(start: Path) -> dict[str, float]:
    options = ["--run_dir", start / "ppo", "--model.init_args.init_from", start / "sft"]
    enumerable.fit("--config", enumerable.PPO, *options)
    reference, known = enumerable.load(start / "sft", "lit_models.gpt.LitGPT")
    policy, _ = enumerable.load(start / "ppo", "lit_models.ppo.LitPPO")
    return objectives(policy, reference, known)


def test_the_optimum_is_reached(start: Path) -> None:
    found = ratio(start)
    assert found["ratio"] >= 0.97 and found["J_ref"] <= found["J_best"] / 2, found


def wrong_sign(scores: Tensor, kl: Tensor, mask: Tensor, kl_coef: float, right=ppo.token_rewards) -> Tensor:  # type: ignore[no-untyped-def]
    return right(scores, -kl, mask, kl_coef)


def wrong_mask(rewards: Tensor, values: Tensor, mask: Tensor, right=ppo.generalized_advantages, **options: float):  # type: ignore[no-untyped-def]
    """Without the last token, where the response ends."""
    last = ppo.last_token(mask)
    shorter = mask.clone()
    shorter[torch.arange(len(mask)), last] = False
    return right(rewards, values, shorter, **options)


def wrong_shift(rewards: Tensor, values: Tensor, mask: Tensor, right=ppo.generalized_advantages, **options: float):  # type: ignore[no-untyped-def]
    """Each token with the advantage of the one before it."""
    advantages, returns = right(rewards, values, mask, **options)
    return advantages.roll(1, 1), returns


@pytest.mark.parametrize(
    "name,mutation",
    [("token_rewards", wrong_sign), ("generalized_advantages", wrong_mask), ("generalized_advantages", wrong_shift)],
    ids=["sign", "mask", "shift"],
)
def test_a_mutation_misses_it(name: str, mutation: Callable[..., Tensor], start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, name, mutation)
    assert ratio(start)["ratio"] < 0.97
