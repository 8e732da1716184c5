"""One attention: fused and written out agree, masks mean True = may attend, nothing leaks from where it must not."""

import math

import pytest
import torch
from torch import nn

from lit_models.nn import attention as attention_module
from lit_models.nn.attention import KVCache, MultiHeadAttention
from lit_models.nn.position import apply_rotary, rotary, sinusoidal
from lit_models.nn.transformer import TransformerBlock


@pytest.fixture(params=["written_out", "fused"])
def form(request, monkeypatch):
    """Both ways to compute attention, with gradients."""
    if request.param == "fused":
        monkeypatch.setattr(attention_module, "WRITTEN_OUT_MAX_KEYS", 0)
    return request.param


def masks(batch, heads, length):
    padding = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    padding[0, ..., : length // 2] = False
    return {
        "none": None,
        "padding": padding,
        "pairs": torch.rand(batch, heads, length, length) > 0.5,
        "two_dims": torch.rand(length, length) > 0.5,
    }


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["none", "padding", "pairs", "two_dims"])
def test_forms_agree_in_output_and_gradient(monkeypatch, name, is_causal):
    net = MultiHeadAttention(8, 2).double()
    x = torch.randn(3, 6, 8, dtype=torch.float64, requires_grad=True)
    mask = masks(3, 2, 6)[name]
    results = []
    for limit in (0, 256):
        monkeypatch.setattr(attention_module, "WRITTEN_OUT_MAX_KEYS", limit)
        y = net(x, mask=mask, is_causal=is_causal)
        results.append((y, *torch.autograd.grad(y.square().sum(), (x, *net.parameters()))))
    for fused, written in zip(*results, strict=True):
        torch.testing.assert_close(fused, written, rtol=0, atol=1e-12)


def test_matches_torch_multihead_attention(form):
    """Same parameters, opposite mask polarity: nn.MultiheadAttention's True means drop."""
    net, reference = MultiHeadAttention(8, 2).double(), nn.MultiheadAttention(8, 2, batch_first=True).double()
    reference.load_state_dict(
        dict(
            zip(
                ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"),
                (net.qkv.weight, net.qkv.bias, net.out.weight, net.out.bias),
                strict=True,
            )
        )
    )
    x, context = torch.randn(2, 5, 8).double(), torch.randn(2, 7, 8).double()
    keep = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    y, w = net(x, context, mask=keep[:, None, None]), net.attention_weights(x, context, mask=keep[:, None, None])
    y_ref, w_ref = reference(x, context, context, key_padding_mask=~keep, average_attn_weights=False)
    torch.testing.assert_close(y, y_ref, rtol=0, atol=1e-12)
    torch.testing.assert_close(w, w_ref, rtol=0, atol=1e-12)


def test_attention_weights_are_those_of_the_output(form):
    net = MultiHeadAttention(8, 2).double()
    x = torch.randn(2, 5, 8).double()
    mask = masks(2, 2, 5)["padding"]
    weights = net.attention_weights(x, mask=mask, is_causal=True)  # (B, H, T, S)
    values = net.qkv(x)[..., 16:].view(2, 5, 2, 4).transpose(1, 2)
    expected = net.out((weights @ values).transpose(1, 2).flatten(2))
    torch.testing.assert_close(net(x, mask=mask, is_causal=True), expected, rtol=0, atol=1e-12)
    assert torch.equal(weights[0, :, :2].sum(-1), torch.zeros(2, 2).double())  # nothing to attend to
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(2, 5).double())
    assert weights.triu(1).abs().max() == 0


def test_o09_row_without_keys_gives_zero_and_finite_gradient(form):
    net = MultiHeadAttention(8, 2)
    nn.init.normal_(net.qkv.bias)
    x = torch.randn(2, 5, 8, requires_grad=True)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[0] = False
    y = net(x, mask=mask)
    torch.testing.assert_close(y[0], net.out.bias.expand(5, 8), rtol=0, atol=0)
    y.square().sum().backward()
    assert x.grad.isfinite().all() and all(p.grad.isfinite().all() for p in net.parameters())
    assert x.grad[0].abs().max() == 0


@pytest.mark.parametrize("content", [1e4, math.inf, math.nan])
def test_o09_padded_context_content_does_not_matter(form, content):
    net = MultiHeadAttention(8, 2)
    x, context = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[0, ..., 3:] = False
    mask[1] = False
    results = []
    for pad in (0.0, content):
        filled = context.masked_fill(~mask[:, 0, 0, :, None], pad)
        y = net(x, filled, mask=mask)
        results.append((y, *torch.autograd.grad(y.square().sum(), list(net.parameters()))))
    for clean, dirty in zip(*results, strict=True):
        assert torch.equal(clean, dirty) and dirty.isfinite().all()


def test_o09_nan_in_padded_self_attention_keys_stays_there(form):
    net = MultiHeadAttention(8, 2)
    x = torch.randn(1, 5, 8)
    mask = torch.tensor([False, False, True, True, True])[None, None, None]
    dirty = x.clone()
    dirty[:, :2] = math.nan
    assert torch.equal(net(dirty, mask=mask)[:, 2:], net(x, mask=mask)[:, 2:])


def test_o10_true_means_may_attend(form):
    net = MultiHeadAttention(8, 2)
    x, context = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    mask = torch.tensor([True, True, False, False, False])
    other = context.clone()
    other[:, 2:] += 1
    torch.testing.assert_close(net(x, context, mask=mask), net(x, other, mask=mask), rtol=0, atol=1e-6)
    torch.testing.assert_close(net(x, context, mask=mask), net(x, context[:, :2]), rtol=0, atol=1e-6)
    assert (net(x, context) - net(x, other)).abs().max() > 1e-3


def test_cache_continues_a_sequence():
    net = MultiHeadAttention(8, 2)
    x = torch.randn(2, 7, 8)
    with torch.inference_mode():
        cache = KVCache(torch.empty(2, 2, 7, 4), torch.empty(2, 2, 7, 4))
        parts = [net(part, is_causal=True, cache=cache) for part in x.split((3, 1, 3), dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), net(x, is_causal=True), rtol=0, atol=1e-6)
        with pytest.raises(ValueError, match="cache of 7 positions cannot hold 8"):
            net(x[:, :1], is_causal=True, cache=cache)


def test_dropout_acts_in_training_only(form):
    net = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(2, 5, 8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_embed_dim_must_be_a_multiple_of_num_heads():
    with pytest.raises(ValueError, match="embed_dim 10 is not a multiple of num_heads 4"):
        MultiHeadAttention(10, 4)


def test_sinusoidal_is_vaswani_3_5():
    table = sinusoidal(torch.tensor([0, 3]), 6)
    expected = [f(3 / 10_000 ** (2 * i / 6)) for i in range(3) for f in (math.sin, math.cos)]
    torch.testing.assert_close(table, torch.tensor([[0.0, 1.0] * 3, expected]))


def test_rotary_products_depend_on_distance_alone():
    q, k = torch.randn(1, 1, 1, 8).double(), torch.randn(1, 1, 1, 8).double()

    def product(i, j):
        return (apply_rotary(q, *rotary(torch.tensor([[i]]), 8)) * apply_rotary(k, *rotary(torch.tensor([[j]]), 8))).sum()

    torch.testing.assert_close(product(2, 5), product(7, 10), rtol=1e-5, atol=1e-6)
    assert (product(2, 5) - product(2, 6)).abs() > 1e-4
    torch.testing.assert_close(product(4, 4), (q * k).sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm_first", [True, False])
def test_block_matches_torch_decoder_layer(norm_first):
    block = TransformerBlock(8, 2, norm_first=norm_first, cross_attention=True, activation="relu").double()
    reference = nn.TransformerDecoderLayer(8, 2, 32, dropout=0.0, batch_first=True, norm_first=norm_first).double()
    ours = [block.attention.qkv, block.attention.out, block.cross_attention.qkv, block.cross_attention.out]
    ours += [block.mlp.fc_in, block.mlp.fc_out, block.norm1, block.norm_cross, block.norm2]
    values = [p for module in ours for p in (module.weight, module.bias)]
    reference.load_state_dict(dict(zip(reference.state_dict(), values, strict=True)))
    x, context = torch.randn(2, 5, 8).double(), torch.randn(2, 7, 8).double()
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = reference(x, context, tgt_mask=causal)
    torch.testing.assert_close(block(x, context, is_causal=True), expected, rtol=0, atol=1e-12)


def test_block_refuses_a_missing_or_needless_context():
    x = torch.randn(1, 2, 8)
    with pytest.raises(ValueError, match="cross_attention=True takes a context"):
        TransformerBlock(8, 2, cross_attention=True)(x)
    with pytest.raises(ValueError, match="cross_attention=False takes no context"):
        TransformerBlock(8, 2)(x, x)
