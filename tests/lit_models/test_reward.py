"""Reward models and DPO: where a score is read, what is compared, what stays."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from lit_models.dpo import LitDPO, response_log_probs
from lit_models.nn.gpt import GPT
from lit_models.reward import LitReward

SIZES: dict[str, Any] = {"vocab_size": 10, "max_seq_len": 12, "num_layers": 2, "num_heads": 2, "embed_dim": 16}
sgd = partial(torch.optim.SGD, lr=0.1)


def network(scalar_head: bool = False) -> GPT:
    net = GPT(**SIZES, scalar_head=scalar_head)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return net


def pairs() -> dict[str, Any]:
    """Three pairs; the end token 1 stands within a prompt, too, and padding is the end token."""
    rows = [[5, 1, 6, 7, 1], [2, 3, 4, 1], [2, 9, 8, 7, 6, 1], [5, 1, 4, 1], [2, 3, 8, 8, 1], [2, 9, 1]]
    lengths = torch.tensor(list(map(len, rows)))
    ids = torch.tensor([row + [1] * (6 - len(row)) for row in rows])
    prompt_lengths = torch.tensor([2, 2, 2] * 2)
    return {"input_ids": ids, "lengths": lengths, "prompt_lengths": prompt_lengths, "num_pairs": 3, "index": torch.arange(3)}


def test_r08_the_score_is_read_at_the_last_real_token_in_any_batch() -> None:
    net, batch = network(scalar_head=True), pairs()
    scores = net.scores(batch["input_ids"], batch["lengths"])
    for row in range(6):
        ids = batch["input_ids"][row, : batch["lengths"][row]]
        alone = net.scalars(net.features(ids[None]))[0, -1]
        longer = torch.cat((ids, torch.randint(10, (4,))))[None]
        torch.testing.assert_close(scores[row], alone, rtol=0, atol=1e-5)
        torch.testing.assert_close(net.scores(longer, batch["lengths"][row : row + 1])[0], alone, rtol=0, atol=1e-5)


def test_the_loss_of_a_reward_model() -> None:
    lit, batch = LitReward(network(scalar_head=True), sgd, centring=0.1), pairs()
    loss = lit.eval().step(batch)
    scores = lit.net.scores(batch["input_ids"], batch["lengths"]).tolist()
    margins = [scores[i] - scores[i + 3] for i in range(3)]
    expected = sum(math.log1p(math.exp(-m)) for m in margins) + 0.1 * sum((scores[i] + scores[i + 3]) ** 2 for i in range(3))
    assert float(loss.sum.detach()) == pytest.approx(expected, rel=1e-5) and int(loss.count) == 3
    assert int(loss.metrics["accuracy"][0]) == sum(m > 0 for m in margins)
    assert float(loss.metrics["margin"][0]) == pytest.approx(sum(margins), rel=1e-4)
    lit.epoch_counts = dict(loss.counts)
    likely = [1 / (1 + math.exp(-abs(m))) for m in margins]
    assert len({int((p - 0.5) * 20) for p in likely}) > 1  # in several bins
    assert 0 <= lit.derived_metrics({})["calibration_error"] <= 1


def test_a_reward_model_needs_its_head() -> None:
    with pytest.raises(ValueError, match="needs a network with a scalar head"):
        LitReward(network(), sgd)
    with pytest.raises(ValueError, match="centring -1 is negative"):
        LitReward(network(scalar_head=True), sgd, centring=-1)


def test_log_probs_of_responses_are_those_of_a_plain_loop() -> None:
    net, batch = network(), pairs()
    found = response_log_probs(net, batch["input_ids"], batch["prompt_lengths"], batch["lengths"])
    for row in range(6):
        ids = batch["input_ids"][row, : batch["lengths"][row]]
        table = net(ids[None])[0].log_softmax(-1)
        expected = sum(float(table[t - 1, ids[t]]) for t in range(2, len(ids)))
        assert float(found[row].detach()) == pytest.approx(expected, abs=1e-5)


def test_dpo_starts_at_ln_2_and_its_reference_stays() -> None:
    lit, batch = LitDPO(network(), sgd, beta=0.3), pairs()
    loss = lit.train().step(batch)
    assert float(loss.sum.detach()) == pytest.approx(3 * math.log(2), rel=1e-5)
    before = [p.clone() for p in lit.reference.parameters()]
    optimizer = torch.optim.SGD(lit.net.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        lit.step(batch).sum.backward()
        optimizer.step()
    after = lit.step(batch)
    assert float(after.sum.detach()) < float(loss.sum.detach()) and int(after.metrics["accuracy"][0]) == 3
    assert all(torch.equal(a, b) for a, b in zip(before, lit.reference.parameters(), strict=True))
    assert not lit.reference.training and not any(p.requires_grad for p in lit.reference.parameters())
    own = {p.data_ptr() for p in lit.net.parameters()}
    assert not own & {p.data_ptr() for p in lit.reference.parameters()}


@pytest.mark.parametrize("options,message", [({"beta": 0}, "beta 0"), ({"label_smoothing": 0.5}, "label_smoothing 0.5")])
def test_what_dpo_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LitDPO(network(), sgd, **options)
