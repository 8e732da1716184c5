"""The GPT equals transformers' GPT-2, does not see the future or padding, and counts what was published."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lit_models.losses.language import token_cross_entropy
from lit_models.nn.gpt import GPT

POSITIONS = ["learned", "sinusoidal", "rotary", "none"]


def tiny(**kwargs):
    net = GPT(**{"vocab_size": 13, "max_seq_len": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 16, **kwargs})
    with torch.no_grad():
        for p in net.parameters():  # larger than at initialisation, so that a fault shows
            p.add_(0.2 * torch.randn_like(p))
    return net


def copy_from_gpt2(net: GPT, reference: GPT2LMHeadModel) -> dict[str, str]:
    """Copies the weights and returns which of our parameters is which of theirs; theirs are transposed in linear layers."""
    names = {"token_embedding.weight": "transformer.wte.weight", "position_embedding.weight": "transformer.wpe.weight"}
    for kind in ("weight", "bias"):
        names[f"norm.{kind}"] = f"transformer.ln_f.{kind}"
        for i in range(len(net.blocks)):
            for ours, theirs in {
                "norm1": "ln_1",
                "attention.qkv": "attn.c_attn",
                "attention.out": "attn.c_proj",
                "norm2": "ln_2",
                "mlp.fc_in": "mlp.c_fc",
                "mlp.fc_out": "mlp.c_proj",
            }.items():
                names[f"blocks.{i}.{ours}.{kind}"] = f"transformer.h.{i}.{theirs}.{kind}"
    theirs = dict(reference.named_parameters())
    net.load_state_dict({ours: oriented(ours, theirs[name]) for ours, name in names.items()})
    return names


def oriented(name: str, value: torch.Tensor) -> torch.Tensor:
    return value.t() if value.ndim == 2 and "embedding" not in name else value


def largest_difference(net: GPT, reference: GPT2LMHeadModel, names: dict[str, str]) -> float:
    """Over the logits and every parameter's gradient."""
    ids = torch.randint(13, (3, 11))
    labels = torch.randint(13, (3, 11))
    logits, expected = net(ids), reference(ids).logits
    for out in (logits, expected):
        total, count = token_cross_entropy(out, labels)
        (total / count).backward()
    theirs = dict(reference.named_parameters())
    grads = [(p.grad - oriented(ours, theirs[names[ours]].grad)).abs().max() for ours, p in net.named_parameters()]
    return max((logits - expected).abs().max().item(), *(g.item() for g in grads))


@pytest.fixture
def pair():
    sizes = {"vocab_size": 13, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "initializer_range": 0.2}
    config = GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    reference = GPT2LMHeadModel(config)
    net = tiny()
    return net, reference, copy_from_gpt2(net, reference)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_transformers_gpt2(pair, dtype, tolerance):
    net, reference, names = pair
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in reference.parameters())
    assert largest_difference(net.to(dtype), reference.to(dtype), names) <= tolerance


@pytest.mark.parametrize("name", ["blocks.1.mlp.fc_out.bias", "blocks.0.attention.qkv.weight", "token_embedding.weight"])
def test_equality_with_gpt2_fails_when_one_weight_is_changed(pair, name):
    net, reference, names = pair
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] += 1e-3
    assert largest_difference(net.double(), reference.double(), names) > 1e-5


@pytest.mark.parametrize(
    "size,count",
    [
        ((12, 12, 768), 124_439_808),
        ((24, 16, 1024), 354_823_168),
        ((36, 20, 1280), 774_030_080),
        ((48, 25, 1600), 1_557_611_200),
    ],
)
def test_published_parameter_counts(size, count):
    with torch.device("meta"):
        net = GPT(50257, 1024, *size)
    assert sum(p.numel() for p in net.parameters()) == count


def test_head_is_tied_to_the_token_embedding():
    net = tiny()
    features = torch.randn(2, 16)
    torch.testing.assert_close(net.head(features), features @ net.token_embedding.weight.t())
    assert not any("head" in name for name in net.state_dict())


def test_initialisation_is_gpt2s():
    net = GPT(500, 64, num_layers=8, num_heads=2, embed_dim=64)
    for name, p in net.named_parameters():
        if name.endswith("bias"):
            assert p.abs().max() == 0
        elif "norm" not in name:
            std = 0.02 / 4 if name.endswith(("out.weight", "fc_out.weight")) else 0.02
            assert abs(p.std().item() / std - 1) < 0.05, name


@pytest.mark.parametrize("position", POSITIONS)
def test_every_parameter_gets_a_gradient(position):
    net = tiny(position=position)
    net(torch.randint(13, (2, 16))).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in net.parameters())


@pytest.mark.parametrize("position", POSITIONS)
def test_o10_future_tokens_do_not_change_logits(position):
    net = tiny(position=position)
    ids = torch.randint(12, (1, 10))
    changed = ids.clone()
    changed[0, 5] += 1
    before, after = net(ids), net(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-6)
    assert (before - after)[:, 5:].abs().amax((0, 2)).min() > 1e-4


def test_o10_without_causality_the_comparison_fails(monkeypatch):
    net = tiny()
    forward = net.blocks[0].forward
    monkeypatch.setattr(net.blocks[0], "forward", lambda x, **kw: forward(x, **{**kw, "is_causal": False}))
    ids = torch.randint(12, (1, 10))
    changed = ids.clone()
    changed[0, 5] += 1
    assert (net(ids) - net(changed))[:, :5].abs().max() > 1e-3


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("position", POSITIONS)
def test_o07_padded_batch_gives_the_logits_of_each_row_alone(position, side, grad):
    net = tiny(position=position)
    ids = torch.randint(13, (3, 7))
    lengths = (3, 7, 5)
    batch, mask = torch.zeros_like(ids), torch.zeros(3, 7, dtype=torch.bool)
    spans = [slice(7 - n, 7) if side == "left" else slice(0, n) for n in lengths]
    for row, span in enumerate(spans):
        batch[row, span], mask[row, span] = ids[row, span], True
    with torch.set_grad_enabled(grad):
        logits = net(batch, attention_mask=mask)
        for row, span in enumerate(spans):
            torch.testing.assert_close(logits[row, span], net(ids[row : row + 1, span])[0], rtol=0, atol=1e-5)
        other_pad = net(batch.masked_fill(~mask, 12), attention_mask=mask.long())
    assert torch.equal(logits, other_pad)


def test_o09_row_of_padding_and_nan_pad_embedding_leave_loss_and_gradients_finite():
    net = tiny()
    with torch.no_grad():
        net.token_embedding.weight[12] = float("nan")
    ids = torch.randint(12, (2, 6))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0], mask[1, :2] = False, False
    labels = ids.masked_fill(~mask, -100)
    features = net.features(ids.masked_fill(~mask, 12), attention_mask=mask)
    assert features.isfinite().all()
    logits = torch.nn.functional.linear(features, net.token_embedding.weight[:12])  # the head would use the NaN row
    total, count = token_cross_entropy(logits, labels)
    total.backward()
    assert count == 4 and total.isfinite()
    assert all(p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("position", POSITIONS)
def test_cache_gives_the_same_logits(position):
    net = tiny(position=position)
    ids = torch.randint(13, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, :2] = False
    with torch.inference_mode():
        for attention_mask in (None, mask):
            cache, parts, end = net.new_cache(2, 9), [], 0
            for step in (4, 1, 1, 3):
                end += step
                seen = None if attention_mask is None else attention_mask[:, :end]
                parts.append(net(ids[:, end - step : end], attention_mask=seen, cache=cache))
            whole = net(ids, attention_mask=attention_mask)
            torch.testing.assert_close(torch.cat(parts, 1)[:, 2:], whole[:, 2:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_attention_maps_are_causal_and_sum_to_one_and_do_not_disturb_training(position):
    net = tiny(position=position, num_layers=3)
    ids = torch.randint(13, (2, 7))
    with torch.inference_mode():
        maps = net.attention_maps(ids)
    assert maps.shape == (3, 2, 2, 7, 7) and maps.triu(1).abs().max() == 0
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 2, 2, 7))
    net(ids).sum().backward()


def test_flops_per_token_is_6n_plus_12lhkt():
    net = GPT(65, 64, num_layers=4, num_heads=4, embed_dim=128)
    num_params = sum(p.numel() for p in net.parameters()) - 64 * 128
    assert net.flops_per_token == 6 * num_params + 12 * 4 * 4 * 32 * 64


def test_dropout_acts_in_training_only():
    net = tiny(dropout=0.3)
    ids = torch.randint(13, (2, 7))
    assert not torch.equal(net(ids), net(ids))
    net.eval()
    assert torch.equal(net(ids), net(ids))


@pytest.mark.parametrize(
    "kwargs,message",
    [
        ({"num_layers": 0}, "num_layers 0 is not positive"),
        ({"vocab_size": -1}, "vocab_size -1 is not positive"),
        ({"dropout": 1.0}, r"dropout 1.0 is not in \[0, 1\)"),
        ({"embed_dim": 10, "num_heads": 4}, "embed_dim 10 is not a multiple of num_heads 4"),
        ({"embed_dim": 6, "num_heads": 2, "position": "rotary"}, "rotary needs an even head dim"),
        ({"embed_dim": 15, "num_heads": 3, "position": "sinusoidal"}, "sinusoidal needs an even embed_dim, not 15"),
    ],
)
def test_bad_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        tiny(**kwargs)


def test_too_long_a_sequence_is_refused():
    net = tiny()
    with pytest.raises(ValueError, match="sequence of 17 tokens is longer than max_seq_len 16"):
        net(torch.zeros(1, 17, dtype=torch.long))
    with torch.inference_mode(), pytest.raises(ValueError, match="sequence of 17 tokens is longer than max_seq_len 16"):
        cache = net.new_cache(1, 20)
        net(torch.zeros(1, 16, dtype=torch.long), cache=cache)
        net(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    with pytest.raises(ValueError, match="attention_mask covers 5 positions of 6"):
        net(torch.zeros(1, 6, dtype=torch.long), attention_mask=torch.ones(1, 5, dtype=torch.bool))


def test_learns_next_token_not_the_one_after():
    """O05 at the network: on "abcabc..." with labels one ahead it predicts the next letter."""
    net = GPT(3, 12, num_layers=1, num_heads=1, embed_dim=16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-2)
    text = torch.arange(13).remainder(3)[None]
    for _ in range(30):
        optimizer.zero_grad()
        total, count = token_cross_entropy(net(text[:, :-1]), text[:, 1:])
        (total / count).backward()
        optimizer.step()
    assert torch.equal(net(text[:, :-1]).argmax(-1), text[:, 1:])
