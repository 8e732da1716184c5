"""ViT equals transformers' and torchvision's, takes images and weights of other sizes, and counts what was published."""

import math
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import VisionTransformer
from transformers import ViTConfig, ViTForImageClassification

from lit_models.nn.patch import resize_positions, sinusoidal_2d
from lit_models.nn.vit import ViT
from lit_models.optim.param_groups import param_groups

SIZES: dict[str, Any] = {"patch_size": 4, "num_layers": 2, "num_heads": 2, "embed_dim": 16}


def tiny(image_size: Any = 32, num_classes: int = 5, **options: Any) -> ViT:
    """With weights large enough for a fault to show; the head starts at zero otherwise."""
    net = ViT(image_size, num_classes, **{**SIZES, **options})
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return net


def transformers_vit() -> tuple[ViT, nn.Module, dict[str, list[str]]]:
    """A rectangle, so that rows and columns cannot be exchanged."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "patch_size": 4}
    config = ViTConfig(**sizes, image_size=(8, 12), hidden_act="gelu", layer_norm_eps=1e-6, num_labels=5)
    names = {"class_token": ["vit.embeddings.cls_token"]}
    for kind in ("weight", "bias"):
        names[f"stem.{kind}"] = [f"vit.embeddings.patch_embeddings.projection.{kind}"]
        names |= {f"norm.{kind}": [f"vit.layernorm.{kind}"], f"head.{kind}": [f"classifier.{kind}"]}
        for i in range(2):
            layer = f"vit.layers.{i}"
            names[f"blocks.{i}.attention.qkv.{kind}"] = [f"{layer}.attention.{part}_proj.{kind}" for part in "qkv"]
            parts = {"attention.out": "attention.o_proj", "mlp.fc_in": "mlp.fc1", "mlp.fc_out": "mlp.fc2"}
            parts |= {"norm1": "layernorm_before", "norm2": "layernorm_after"}
            names |= {f"blocks.{i}.{ours}.{kind}": [f"{layer}.{theirs}.{kind}"] for ours, theirs in parts.items()}
    positions = "vit.embeddings.position_embeddings"
    return tiny((8, 12)), ViTForImageClassification(config), {**names, "positions": [positions]}


def torchvision_vit() -> tuple[ViT, nn.Module, dict[str, list[str]]]:
    names = {"class_token": ["class_token"]}
    for kind in ("weight", "bias"):
        names |= {f"stem.{kind}": [f"conv_proj.{kind}"], f"norm.{kind}": [f"encoder.ln.{kind}"]}
        names[f"head.{kind}"] = [f"heads.head.{kind}"]
        for i in range(2):
            layer = f"encoder.layers.encoder_layer_{i}"
            names[f"blocks.{i}.attention.qkv.{kind}"] = [f"{layer}.self_attention.in_proj_{kind}"]
            parts = {"attention.out": "self_attention.out_proj", "mlp.fc_in": "mlp.0", "mlp.fc_out": "mlp.3"}
            parts |= {"norm1": "ln_1", "norm2": "ln_2"}
            names |= {f"blocks.{i}.{ours}.{kind}": [f"{layer}.{theirs}.{kind}"] for ours, theirs in parts.items()}
    return tiny(8), VisionTransformer(8, 4, 2, 2, 16, 64, num_classes=5), {**names, "positions": ["encoder.pos_embedding"]}


Pair = tuple[ViT, nn.Module, dict[str, list[str]]]


@pytest.fixture(params=[transformers_vit, torchvision_vit], ids=["transformers", "torchvision"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Ours and theirs with equal weights, and our parameters' names with the one or three of theirs."""
    net, theirs, names = request.param()
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.2 * torch.randn_like(p))
        for name, value in in_our_names(net, dict(theirs.named_parameters()), names).items():
            net.get_parameter(name).copy_(value)
    return net, theirs, names


def in_our_names(net: ViT, theirs: dict[str, Tensor], names: dict[str, list[str]]) -> dict[str, Tensor]:
    ours = {name: torch.cat([theirs[part] for part in parts]) for name, parts in names.items()}
    first, grid = ours.pop("positions").split((1, math.prod(net.grid)), dim=1)
    return {**ours, "class_position": first, "position_grid": grid.unflatten(1, net.grid)}


def largest_difference(pair: Pair) -> float:
    """Over the logits and every parameter's gradient."""
    net, theirs, names = pair
    weight = next(theirs.parameters())
    images, labels = torch.randn(3, 3, *(4 * n for n in net.grid)).to(weight), torch.randint(5, (3,))
    logits, expected = net(images), theirs(images)
    expected = getattr(expected, "logits", expected)
    F.cross_entropy(logits, labels).backward()
    F.cross_entropy(expected, labels).backward()
    grads = in_our_names(net, {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}, names)
    assert grads.keys() == dict(net.named_parameters()).keys()
    differences = [logits - expected, *(net.get_parameter(name).grad - grad for name, grad in grads.items())]
    return max(float(d.abs().max().detach()) for d in differences)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_the_reference(pair: Pair, dtype: torch.dtype, tolerance: float) -> None:
    net, theirs, names = pair
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert largest_difference((net.to(dtype), theirs.to(dtype), names)) <= tolerance


@pytest.mark.parametrize("name", ["position_grid", "class_position", "blocks.1.attention.qkv.weight", "norm.bias"])
def test_equality_fails_when_one_weight_is_changed(pair: Pair, name: str) -> None:
    net, theirs, names = pair
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] += 1e-3
    assert largest_difference((net.double(), theirs.double(), names)) > 1e-6


def test_published_size() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in ViT(224, 1000).parameters()) == 86_567_656


@pytest.mark.parametrize("pool,length", [("class", 25), ("mean", 24)])
@pytest.mark.parametrize("stem", ["patch", "conv"])
def test_logits_are_the_heads_of_the_pooled_features(pool: str, length: int, stem: str) -> None:
    net = tiny((16, 24), pool=pool, stem=stem).double()
    images = torch.randn(2, 3, 16, 24, dtype=torch.float64)
    features = net.features(images)
    assert features.shape == (2, length, 16) and net.grid == (4, 6)
    pooled = features[:, 0] if pool == "class" else features.sum(1) / 24
    torch.testing.assert_close(net(images), pooled @ net.head.weight.t() + net.head.bias, rtol=0, atol=1e-12)
    assert any(name.startswith("class_") for name, _ in net.named_parameters()) == (pool == "class")


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("old,new", [(32, (48, 48)), (32, (32, 64)), ((16, 24), (24, 16)), ((32, 64), (32, 32))])
def test_weights_of_another_image_size_load_and_images_of_it_are_taken(old: Any, new: tuple[int, int], pool: str) -> None:
    """Both ways are the same; only the grid is resized, the class token's position is untouched."""
    net, other = tiny(old, pool=pool), tiny(new, pool=pool)
    state = net.state_dict()
    wrapped = nn.ModuleDict({"net": other})  # as the Lightning module holds it
    wrapped.load_state_dict({f"net.{name}": value for name, value in state.items()})
    for name, value in other.state_dict().items():
        expected = resize_positions(net.position_grid, (new[0] // 4, new[1] // 4)) if name == "position_grid" else state[name]
        assert torch.equal(value, expected), name
    assert state["position_grid"].shape[1:3] == net.grid != other.grid  # what was given is as it was
    images = torch.randn(2, 3, *new)
    torch.testing.assert_close(net(images), other(images), rtol=0, atol=1e-6)


def test_weights_of_the_same_image_size_load_to_the_bit_and_a_misfit_is_left_to_be_refused() -> None:
    net = tiny()
    state = net.state_dict()
    assert net.adapt(state)["position_grid"] is state["position_grid"]
    assert net.adapt({"net.position_grid": torch.zeros(1, 4, 4, 16)}, "net.")["net.position_grid"].shape == (1, 8, 8, 16)
    with pytest.raises(RuntimeError, match=r"position_grid.*\[1, 4, 4, 12\]"):
        net.load_state_dict({**state, "position_grid": torch.zeros(1, 4, 4, 12)})


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_sinusoidal_positions_are_computed_not_stored(pool: str) -> None:
    small, large = tiny(16, positions="sinusoidal", pool=pool), tiny((24, 16), positions="sinusoidal", pool=pool)
    large.load_state_dict(small.state_dict())
    assert not any("position" in name for name in small.state_dict())
    assert torch.equal(small.position_grid[0], sinusoidal_2d(4, 4, 16))
    images = torch.randn(2, 3, 24, 16)
    assert torch.equal(small(images), large(images))
    shifted = images.roll(4, dims=3)  # without positions the mean over the patches would stay
    assert not torch.allclose(small(images), small(shifted), atol=1e-3)


def test_the_hybrids_samples_do_not_depend_on_their_batch() -> None:
    net = tiny(stem="conv").double()
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    images[1] *= 100
    torch.testing.assert_close(net(images)[:1], net(images[:1]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_patches_stand_row_by_row_after_the_class_token(pool: str) -> None:
    net = tiny((8, 12), pool=pool)
    seen: list[Tensor] = []
    net.blocks[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.randn(1, 3, 8, 12)
    changed = images.clone()
    changed[:, :, 4:, 4:8] += 1  # the second row's second patch
    net.features(images), net.features(changed)
    assert (seen[0] != seen[1]).any(-1).nonzero().tolist() == [[0, (pool == "class") + 3 + 1]]


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_attention_maps_are_those_of_features(pool: str) -> None:
    net = tiny((8, 12), pool=pool)
    images = torch.randn(2, 3, 8, 12)
    seen: list[tuple[Tensor, Tensor]] = []
    for block in net.blocks:
        block.attention.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
    with torch.no_grad():
        net.features(images)
        maps = net.attention_maps(images)
    length = 6 + (pool == "class")
    assert maps.shape == (2, 2, 2, length, length)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 2, 2, length))
    for block, weights, (x, out) in zip(net.blocks, maps, seen, strict=False):
        values = block.attention.qkv(x)[..., 32:].unflatten(-1, (2, 8)).transpose(1, 2)  # (B, H, T, K)
        torch.testing.assert_close(block.attention.out((weights @ values).transpose(1, 2).flatten(2)), out, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"pool": "mean"}, {"stem": "conv"}])
def test_flops_are_those_of_a_training_step(options: dict[str, Any]) -> None:
    """Norms and biases, which PaLM's rule counts as if they were matrices, make the difference."""
    net = ViT(32, 1, **{**SIZES, "embed_dim": 192, **options}).double()  # float32 runs in products that torch does not count
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        net(images).sum().backward()
    assert net.flops_per_image == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_dropout_is_off_by_default_and_acts_in_training_only() -> None:
    images = torch.randn(2, 3, 32, 32)
    plain, net = tiny(), tiny(dropout=0.3)
    assert torch.equal(plain(images), plain(images))
    assert not torch.equal(net(images), net(images))
    net.eval()
    assert torch.equal(net(images), net(images))


def test_starts_at_chance_with_positions_as_strong_as_patches() -> None:
    net = ViT(32, 7, **{**SIZES, "embed_dim": 192})
    images = torch.randn(3, 3, 32, 32)
    assert F.cross_entropy(net(images), torch.tensor([0, 3, 6])).item() == pytest.approx(math.log(7))
    assert net.position_grid.std().item() == pytest.approx(net.stem(images).std().item(), rel=0.15)
    for p in (net.class_token, net.class_position, *(p for block in net.blocks for p in block.parameters())):
        if p.ndim > 1:
            assert p.std().item() == pytest.approx(0.04, rel=5 / p.numel() ** 0.5)  # twice that of the fourfold width
    assert all(p.abs().max() == 0 for name, p in net.named_parameters() if name.endswith("bias"))
    assert all((p == 1).all() for name, p in net.named_parameters() if name.endswith(("norm1.weight", "norm.weight")))


def test_positions_and_class_token_are_optimized_as_embeddings() -> None:
    names = {group["kind"]: set(group["param_names"]) for group in param_groups(tiny())}
    assert names["embedding"] == {"position_grid", "class_token", "class_position"}
    assert {"stem.weight", "head.weight", "blocks.0.mlp.fc_in.weight"} <= names["matrix"]


def test_an_image_size_is_one_number_or_a_pair_in_yaml() -> None:
    parser = ArgumentParser()
    parser.add_class_arguments(ViT, "net")
    for text, grid in (("16", (4, 4)), ("[16, 24]", (4, 6))):
        config = parser.parse_string(f"net: {{image_size: {text}, num_classes: 2, patch_size: 4, embed_dim: 12}}")
        assert parser.instantiate_classes(config).net.grid == grid


@pytest.mark.parametrize("options,said", [
    ({"image_size": 10}, "image_size 10 is not a multiple of patch_size 4"),
    ({"image_size": (32, 10)}, "image_size 32 x 10 .height x width. is not a multiple of patch_size 4"),
    ({"image_size": (32, 0)}, "image_size 0 is not positive"), ({"num_layers": 0}, "num_layers 0 is not positive"),
    ({"dropout": 1.0}, "dropout 1.0 is not in"), ({"num_heads": 3}, "embed_dim 16 is not a multiple of num_heads 3"),
    ({"patch_size": 0}, "patch_size 0 is not positive"),
])  # fmt: skip
def test_bad_sizes_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tiny(**options)


def test_an_image_that_patches_do_not_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="image_size 10 is not a multiple of patch_size 4"):
        tiny()(torch.zeros(1, 3, 10, 10))
