"""Sampling: edges of top-k and top-p, and rows of a batch that do not depend on each other or on the cache."""

import math
from itertools import islice

import pytest
import torch

from lit_models.nn.generation import filter_logits, generate
from lit_models.nn.gpt import GPT

PROBS = torch.tensor([[0.5, 0.3, 0.2]])
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]


def tiny(position="learned", max_seq_len=16):
    net = GPT(13, max_seq_len, num_layers=2, num_heads=2, embed_dim=16, position=position)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return net


def kept(logp):
    return [row.isfinite().nonzero().flatten().tolist() for row in logp]


def columns(steps):
    return [list(row) for row in zip(*steps, strict=True)]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
@pytest.mark.parametrize("top_p,count", [(0.0, 1), (0.5, 1), (0.500001, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 3)])
def test_o11_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, count, order):
    probs = PROBS[:, order]
    logp = filter_logits(probs.log() + 3, top_p=top_p)
    expected = probs.argsort(descending=True)[0, :count].sort().values.tolist()
    assert kept(logp) == [expected]
    torch.testing.assert_close(logp.exp()[0, expected], probs[0, expected] / probs[0, expected].sum())


def test_o11_top_p_one_keeps_even_the_least_likely():
    logits = torch.tensor([[0.0, -40.0, -80.0]])
    assert kept(filter_logits(logits, top_p=1.0)) == [[0, 1, 2]]
    assert kept(filter_logits(logits, top_p=0.0)) == [[0]]


@pytest.mark.parametrize("top_k,expected", [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (99, [0, 1, 2])])
def test_o11_top_k(top_k, expected):
    assert kept(filter_logits(PROBS.log(), top_k=top_k)) == [expected]


def test_o11_ties_keep_the_lower_ids():
    logits = torch.zeros(2, 50)
    assert kept(filter_logits(logits, top_k=3)) == [[0, 1, 2]] * 2
    assert kept(filter_logits(logits, top_p=0.1)) == [[0, 1, 2, 3, 4]] * 2
    assert kept(filter_logits(logits, temperature=0)) == [[0]] * 2


def test_o11_temperature_zero_is_argmax_and_one_changes_nothing():
    logits = torch.randn(4, 9)
    assert kept(filter_logits(logits, temperature=0, top_p=0.0, top_k=5)) == [[i] for i in logits.argmax(-1).tolist()]
    torch.testing.assert_close(filter_logits(logits), logits.log_softmax(-1))
    torch.testing.assert_close(filter_logits(logits, temperature=0.5), (2 * logits).log_softmax(-1))


def test_top_p_applies_to_what_top_k_left():
    assert kept(filter_logits(PROBS.log(), top_k=2, top_p=0.6)) == [[0]]  # .5 / .8 reaches .6 alone


@pytest.mark.parametrize(
    "kwargs,message",
    [
        ({"temperature": -0.5}, "temperature -0.5"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"top_k": 0}, "top_k 0"),
        ({"top_p": -0.1}, "top_p -0.1"),
        ({"top_p": 1.5}, "top_p 1.5"),
        ({"top_p": math.nan}, "top_p nan"),
    ],
)
def test_o11_bad_values_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        filter_logits(PROBS.log(), **kwargs)
    with pytest.raises(ValueError, match=message):
        generate(tiny(), [[1]], max_new_tokens=1, **kwargs)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"top_p": 0.9, "seed": 3}, {"top_k": 5, "temperature": 1.3}])
@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", "none"])
def test_o07_batched_prompts_give_the_tokens_of_each_alone(position, use_cache, sampling):
    """24 tokens from prompts up to 7 with max_seq_len 16: the window slides, and padding slides out of it."""
    net = tiny(position)
    batch = columns(generate(net, PROMPTS, max_new_tokens=24, use_cache=use_cache, **sampling))
    for prompt, row in zip(PROMPTS, batch, strict=True):
        assert columns(generate(net, [prompt], max_new_tokens=24, use_cache=not use_cache, **sampling)) == [row]


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_greedy_is_argmax_over_the_last_max_seq_len_tokens(position):
    net = tiny(position)
    tokens = [4, 5, 6]
    with torch.inference_mode():
        for _ in range(20):
            tokens.append(int(net(torch.tensor([tokens[-16:]]))[0, -1].argmax()))
    assert columns(generate(net, [[4, 5, 6]], max_new_tokens=20, temperature=0)) == [tokens[3:]]


def test_rows_end_with_eos_and_then_give_none():
    net = tiny()
    free = columns(generate(net, PROMPTS, max_new_tokens=10, temperature=0))
    eos = free[0][2]
    ended = columns(generate(net, PROMPTS, max_new_tokens=10, temperature=0, eos_id=eos))
    for row, before in zip(ended, free, strict=True):
        stop = before.index(eos) + 1 if eos in before else len(row)
        assert row[:stop] == before[:stop][: len(row)] and set(row[stop:]) <= {None}
    alone = list(generate(net, PROMPTS[:1], max_new_tokens=10, temperature=0, eos_id=eos))
    assert len(alone) == free[0].index(eos) + 1 and alone[-1] == [eos]


def test_each_row_has_its_seed():
    net = tiny()
    a, b, c = columns(generate(net, [[1, 2]] * 3, max_new_tokens=12, seed=[5, 6, 5]))
    assert a == c != b
    state = torch.get_rng_state()
    assert columns(generate(net, [[1, 2]], max_new_tokens=12, seed=6)) == [b]
    assert torch.equal(state, torch.get_rng_state())


def test_samples_follow_the_filtered_distribution():
    net = tiny()
    with torch.inference_mode():
        probs = filter_logits(net(torch.tensor([[1, 2]]))[:, -1], top_k=3).exp()[0]
    drawn = next(generate(net, [[1, 2]] * 2000, max_new_tokens=1, top_k=3, seed=list(range(2000))))
    frequency = torch.bincount(torch.tensor(drawn), minlength=13) / 2000
    assert (frequency - probs).abs().max() < 0.04 and frequency[probs == 0].sum() == 0


def test_modes_and_gradients_are_as_before_between_steps():
    net = tiny()
    net.blocks[1].eval()
    before = [m.training for m in net.modules()]
    for _ in islice(generate(net, PROMPTS, max_new_tokens=4), 2):
        assert [m.training for m in net.modules()] == before
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    net.dropout = 0.9  # acts in train mode only
    assert columns(generate(net, [[1]], max_new_tokens=4, temperature=0)) == columns(
        generate(net.eval(), [[1]], max_new_tokens=4, temperature=0)
    )


@pytest.mark.parametrize(
    "prompts,kwargs,message",
    [
        ([], {}, "no prompts"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1] * 17], {}, "prompt 0 of 17 tokens is longer than max_seq_len 16"),
        ([[1, 13]], {}, "prompt 0 has ids 1 to 13, vocab_size is 13"),
        ([[1]], {"seed": [1, 2]}, "2 seeds for 1 prompts"),
        ([[1]], {"max_new_tokens": -1}, "max_new_tokens -1 is negative"),
    ],
)
def test_bad_prompts_are_refused_at_the_call(prompts, kwargs, message):
    with pytest.raises(ValueError, match=message):
        generate(tiny(), prompts, **{"max_new_tokens": 1, **kwargs})


def test_a_prompt_of_max_seq_len_is_continued():
    assert len(list(generate(tiny(), [[1] * 16], max_new_tokens=3))) == 3
    assert list(generate(tiny(), [[1]], max_new_tokens=0)) == []
