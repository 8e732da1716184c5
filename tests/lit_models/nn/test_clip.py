"""CLIP equals transformers', reads a text at its end token, and counts what was published."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel
from transformers.activations import QuickGELUActivation

from lit_models.losses.contrastive import contrast
from lit_models.nn.clip import CLIP
from lit_models.nn.transformer import MLP, TransformerBlock

EOS, VOCAB = 9, 30
SIZES: dict[str, Any] = {
    "max_seq_len": 7, "projection_dim": 12, "patch_size": 4, "image_num_layers": 2, "image_num_heads": 2,
    "image_embed_dim": 16, "text_num_layers": 2, "text_num_heads": 4, "text_embed_dim": 24,
}  # fmt: skip
Pair = tuple[CLIP, nn.Module, dict[str, list[str]]]


def tiny(**options: Any) -> CLIP:
    """With weights large enough for a fault to show."""
    net = CLIP(8, VOCAB, EOS, **{**SIZES, **options})
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return net


@pytest.fixture
def pair() -> Pair:
    """Ours and theirs with equal weights, and our parameters' names with the one or three of theirs."""
    shared = {"num_hidden_layers": 2, "hidden_act": "quick_gelu", "projection_dim": 12}
    vision = {"hidden_size": 16, "intermediate_size": 64, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    text = {"hidden_size": 24, "intermediate_size": 96, "num_attention_heads": 4, "max_position_embeddings": 7}
    ends = {"vocab_size": VOCAB, "eos_token_id": EOS, "bos_token_id": 0, "pad_token_id": 1}
    theirs = CLIPModel(
        CLIPConfig(text_config={**text, **shared, **ends}, vision_config={**vision, **shared}, projection_dim=12)
    )
    names = {"logit_scale": ["logit_scale"]}
    embeddings = "vision_model.embeddings"
    names |= {
        "image.class_token": [f"{embeddings}.class_embedding"],
        "image.stem.weight": [f"{embeddings}.patch_embedding.weight"],
    }
    names |= {"image.positions": [f"{embeddings}.position_embedding.weight"], "image.head.weight": ["visual_projection.weight"]}
    names |= {"text.token_embedding.weight": ["text_model.embeddings.token_embedding.weight"]}
    names |= {"text.positions": ["text_model.embeddings.position_embedding.weight"]}
    names |= {"text.head.weight": ["text_projection.weight"]}
    for kind in ("weight", "bias"):
        names[f"image.pre_norm.{kind}"] = [f"vision_model.pre_layrnorm.{kind}"]
        names[f"image.norm.{kind}"] = [f"vision_model.post_layernorm.{kind}"]
        names[f"text.norm.{kind}"] = [f"text_model.final_layer_norm.{kind}"]
        for ours, model in (("image", "vision_model"), ("text", "text_model")):
            for i in range(2):
                layer = f"{model}.encoder.layers.{i}"
                own = f"{ours}.blocks.{i}"
                names[f"{own}.attention.qkv.{kind}"] = [f"{layer}.self_attn.{part}_proj.{kind}" for part in "qkv"]
                parts = {"attention.out": "self_attn.out_proj", "mlp.fc_in": "mlp.fc1", "mlp.fc_out": "mlp.fc2"}
                parts |= {"norm1": "layer_norm1", "norm2": "layer_norm2"}
                names |= {f"{own}.{part}.{kind}": [f"{layer}.{other}.{kind}"] for part, other in parts.items()}
    net = tiny()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.2 * torch.randn_like(p))
        for name, value in in_our_names(dict(theirs.named_parameters()), names).items():
            net.get_parameter(name).copy_(value)
    return net, theirs, names


def in_our_names(theirs: dict[str, Tensor], names: dict[str, list[str]]) -> dict[str, Tensor]:
    ours = {
        name: torch.cat([theirs[part] for part in parts]) if len(parts) > 1 else theirs[parts[0]]
        for name, parts in names.items()
    }
    first, grid = ours.pop("image.positions").split((1, 4))
    ours |= {"image.class_position": first[None], "image.position_grid": grid.view(1, 2, 2, -1)}
    return {**ours, "image.class_token": ours["image.class_token"][None, None], "text.positions": ours["text.positions"][None]}


def texts() -> Tensor:
    """Of unequal lengths; after an end token comes anything, another one too."""
    ids = torch.randint(10, VOCAB, (5, 7))
    for row, end in enumerate((6, 2, 0, 4, 3)):
        ids[row, end] = EOS
    ids[1, 4] = EOS
    return ids


def largest_difference(pair: Pair) -> float:
    """Over features, logits, loss, and every parameter's gradient, which is that of the loss."""
    net, theirs, names = pair
    images, ids = torch.randn(5, 3, 8, 8).to(net.logit_scale.dtype), texts()
    expected = theirs(input_ids=ids, pixel_values=images, return_loss=True)
    features = net(images, ids)
    logits, own, equal = net.logits(*features), torch.arange(5), torch.eye(5, dtype=torch.bool)
    loss = (contrast(logits, own, equal)[0] + contrast(logits.T, own, equal)[0]) / 10
    loss.backward()
    expected.loss.backward()
    grads = in_our_names({name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}, names)
    assert grads.keys() == dict(net.named_parameters()).keys()
    differences = [features[0] - expected.image_embeds, features[1] - expected.text_embeds, loss - expected.loss]
    differences += [logits - expected.logits_per_image, *(net.get_parameter(name).grad - grad for name, grad in grads.items())]
    return max(float(d.abs().max().detach()) for d in differences)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_transformers(pair: Pair, dtype: torch.dtype, tolerance: float) -> None:
    """In float32 logits go up to 15, so that 1e-5 is their last two digits."""
    net, theirs, names = pair
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert largest_difference((net.to(dtype), theirs.to(dtype), names)) <= tolerance


@pytest.mark.parametrize(
    "name",
    ["logit_scale", "image.class_position", "image.pre_norm.bias", "text.blocks.1.attention.qkv.weight", "text.head.weight"],
)
def test_equality_fails_when_one_weight_is_changed(pair: Pair, name: str) -> None:
    net, theirs, names = pair
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] += 1e-3
    assert largest_difference((net.double(), theirs.double(), names)) > 1e-7


def test_the_published_size() -> None:
    assert sum(p.numel() for p in CLIP(224, 49408, 49407).parameters()) == 151_277_313


def test_a_text_is_read_at_its_first_end_token_and_nothing_after_it_counts() -> None:
    net, ids = tiny().double(), texts()
    expected = net.encode_text(ids)
    changed = ids.clone()
    changed[1, 3:], changed[3, 5:], changed[4, 4:] = 11, 12, EOS
    assert torch.equal(net.encode_text(changed), expected)
    for row, end in enumerate((6, 2, 0, 4, 3)):
        alone = net.encode_text(ids[row : row + 1, : end + 1])
        torch.testing.assert_close(alone[0], expected[row], rtol=0, atol=1e-12)


def test_a_text_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="a text of 8 tokens is longer than max_seq_len 7"):
        tiny().encode_text(torch.full((1, 8), EOS))


def test_features_have_length_1_and_logits_are_in_float32() -> None:
    net = tiny()
    images, ids = torch.randn(5, 3, 8, 8), texts()
    for features in net(images, ids):
        torch.testing.assert_close(features.norm(dim=-1), torch.ones(5))
    with torch.autocast("cpu", torch.bfloat16):
        features = net(images, ids)
        assert net.logits(*features).dtype == torch.float32
    half = net.to(torch.bfloat16)
    assert half.logits(*half(images.bfloat16(), ids)).dtype == torch.float32


def test_o13_the_scale() -> None:
    net = CLIP(8, VOCAB, EOS, **SIZES)
    assert float(net.logit_scale.detach()) == pytest.approx(2.6593, abs=1e-4) and net.logit_bias is None
    with torch.no_grad():
        net.logit_scale.fill_(200.0)
    assert (
        float(net.scale.detach()) == pytest.approx(100) and net.logits(*net(torch.randn(5, 3, 8, 8), texts())).isfinite().all()
    )
    net.clamp_logit_scale()
    assert float(net.logit_scale.detach()) == pytest.approx(math.log(100))
    biased = CLIP(8, VOCAB, EOS, **SIZES, logit_bias=True)
    assert float(biased.scale.detach()) == pytest.approx(10) and float(biased.logit_bias.detach()) == -10
    features = biased(torch.randn(5, 3, 8, 8), texts())
    torch.testing.assert_close(biased.logits(*features), 10 * features[0] @ features[1].T - 10)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"text_num_layers": 0}, "text_num_layers 0 is not positive"),
        ({"projection_dim": -1}, "projection_dim -1 is not positive"),
        ({"eos_id": VOCAB}, f"eos_id {VOCAB} is not in a vocabulary of {VOCAB}"),
        ({"patch_size": 3}, "image_size 8 is not a multiple of patch_size 3"),
        ({"dropout": 1.0}, r"dropout 1.0 is not in \[0, 1\)"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CLIP(**{"image_size": 8, "vocab_size": VOCAB, "eos_id": EOS, **SIZES, **options})


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_state_at_a_position_is_forwards_row(is_causal: bool) -> None:
    block = TransformerBlock(16, 4).double()
    positions, rows = torch.tensor([0, 5, 2]), torch.arange(3)
    results = []
    for one in (True, False):
        x = torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y = block.state_at(x, positions, is_causal=is_causal) if one else block(x, is_causal=is_causal)[rows, positions]
        y.square().sum().backward()
        results.append((y.detach(), x.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_the_first_state_needs_no_positions() -> None:
    block, x = TransformerBlock(16, 4).double(), torch.randn(3, 6, 16, dtype=torch.float64)
    torch.testing.assert_close(block.state_at(x), block(x)[:, 0], rtol=0, atol=1e-12)


def test_quick_gelu_is_transformers() -> None:
    mlp, x = MLP(8, 32, activation="quick_gelu"), torch.randn(5, 8)
    torch.testing.assert_close(mlp(x), mlp.fc_out(QuickGELUActivation()(mlp.fc_in(x))))
