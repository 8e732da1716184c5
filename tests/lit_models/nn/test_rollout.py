"""Responses of a rollout are those that each prompt alone has, and stand directly behind their prompts."""

import math
from typing import Any

import pytest
import torch

from lit_models.nn.generation import filter_logits
from lit_models.nn.gpt import GPT
from lit_models.nn.rollout import quantile, rollout

EOS, PAD, VOCAB = 1, 0, 12
LENGTHS = [3, 1, 5, 2, 4, 5]


@pytest.fixture(params=["learned", "rotary"])
def net(request: pytest.FixtureRequest) -> GPT:
    made = GPT(VOCAB, 24, num_layers=2, num_heads=2, embed_dim=16, position=request.param).eval()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return made


def given(num_new: int = 9) -> dict[str, Any]:
    prompts = torch.full((len(LENGTHS), max(LENGTHS)), PAD)
    for row, length in enumerate(LENGTHS):
        prompts[row, :length] = torch.randint(2, VOCAB, (length,))
    draws = torch.rand(len(LENGTHS), num_new)
    return {"prompts": prompts, "lengths": torch.tensor(LENGTHS), "draws": draws, "eos_id": EOS, "pad_id": PAD}


def plain(net: GPT, prompt: list[int], draws: list[float], **sampling: Any) -> list[int]:
    """Token by token, without a cache, a batch or padding."""
    ids = list(prompt)
    for draw in draws:
        with torch.no_grad():
            log_probs = filter_logits(net(torch.tensor([ids]))[:, -1], **sampling)
        ids.append(int(quantile(log_probs, torch.tensor([draw]))))
        if ids[-1] == EOS:
            break
    return ids


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.6}])
def test_o07_a_batch_has_the_responses_of_each_prompt_alone(net: GPT, sampling: dict[str, Any]) -> None:
    batch = given()
    made = rollout(net, **batch, **sampling)
    ends = 0
    for row, length in enumerate(LENGTHS):
        expected = plain(net, batch["prompts"][row, :length].tolist(), batch["draws"][row].tolist(), **sampling)
        count = len(expected)
        assert made.tokens[row, :count].tolist() == expected and (made.tokens[row, count:] == PAD).all()
        assert made.response[row].nonzero()[:, 0].tolist() == list(range(length, count))
        assert bool(made.ended[row]) == (expected[-1] == EOS)
        ends += expected[-1] == EOS
    assert made.tokens.shape[1] == int(made.response.int().cumsum(1).argmax(1).max()) + 1
    assert (made.allowed is None) == (not sampling)
    if not sampling:
        assert 0 < ends < len(LENGTHS)  # so that rows were taken out


def test_what_could_be_drawn_is_kept(net: GPT) -> None:
    batch = given()
    made = rollout(net, **batch, top_k=3)
    assert made.allowed is not None and made.allowed.shape[1] == int(made.response.sum(1).max())
    for row, length in enumerate(LENGTHS):
        count = int(made.response[row].sum())
        logits = net(made.tokens[row : row + 1])[0, length - 1 : length - 1 + count]
        expected = torch.zeros(count, VOCAB, dtype=torch.bool).scatter_(1, logits.topk(3).indices, True)
        assert torch.equal(made.allowed[row, :count], expected)
        assert expected.gather(1, made.tokens[row, length : length + count, None]).all()


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    probs = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.2, 0.0])
    draws = (torch.arange(10_000) + 0.5) / 10_000
    counts = quantile(probs.log().expand(10_000, -1), draws).bincount(minlength=6)
    assert counts.tolist() == pytest.approx([0, 5000, 0, 3000, 2000, 0], abs=1)
    edges = torch.tensor([0.0, 1 - 2**-24])
    assert quantile(probs.log().expand(2, -1), edges).tolist() == [1, 4]
    assert quantile(torch.tensor([[0.0, -math.inf]]).expand(2, -1), edges).tolist() == [0, 0]


def test_a_response_does_not_depend_on_the_batch_nor_on_its_order(net: GPT) -> None:
    batch = given()
    whole, order = rollout(net, **batch), torch.tensor([4, 0, 2])
    part = rollout(net, batch["prompts"][order], batch["lengths"][order], batch["draws"][order], eos_id=EOS, pad_id=PAD)
    for i, row in enumerate(order.tolist()):
        width = int(part.response[i].nonzero().max()) + 1
        assert torch.equal(part.tokens[i, :width], whole.tokens[row, :width])


@pytest.mark.parametrize(
    "change,message",
    [
        ({"temperature": 0.0}, "temperature 0.0: a policy that is trained draws"),
        ({"lengths": torch.tensor([3, 0, 5, 2, 4, 5])}, "prompt 1 is empty"),
        ({"draws": torch.rand(6, 20)}, "prompts of 5 and 20 new tokens are longer than max_seq_len 24"),
    ],
)
def test_what_is_refused(net: GPT, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rollout(net, **{**given(), **change})
