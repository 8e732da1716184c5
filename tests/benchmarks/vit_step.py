"""Seconds of one training step: our ViT beside torchvision's, timm's and transformers' with the same weights, on the CPU.

    python -m tests.benchmarks.vit_step [--threads 2] [--rounds 20] [--steps 3]

The size of configs/vit_cifar10.yaml: 64 images of 32 x 32, patches of 4, 6 layers, 3 heads, 192 wide; dropout 0, so that the
losses must be equal: the first step's are compared. Timed as tests/benchmarks/timing.py says.
"""

import argparse

import torch
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer
from transformers import ViTConfig, ViTForImageClassification

from lit_models.nn.vit import ViT
from tests.benchmarks.timing import Row, measure, report

TOLERANCE = 1e-4  # of the first step's loss, in nats
NUM_CLASSES, MLP_RATIO, EPS = 10, 4, 1e-6

OUTER = {  # our names beside those of torchvision, timm and transformers
    "class_token": ("class_token", "cls_token", "vit.embeddings.cls_token"),
    "positions": ("encoder.pos_embedding", "pos_embed", "vit.embeddings.position_embeddings"),
    "stem": ("conv_proj", "patch_embed.proj", "vit.embeddings.patch_embeddings.projection"),
    "norm": ("encoder.ln", "norm", "vit.layernorm"),
    "head": ("heads.head", "head", "classifier"),
}
LAYER = ("encoder.layers.encoder_layer_{}", "blocks.{}", "vit.layers.{}")
INNER = {
    "attention.out": ("self_attention.out_proj", "attn.proj", "attention.o_proj"),
    "mlp.fc_in": ("mlp.0", "mlp.fc1", "mlp.fc1"),
    "mlp.fc_out": ("mlp.3", "mlp.fc2", "mlp.fc2"),
    "norm1": ("ln_1", "norm1", "layernorm_before"),
    "norm2": ("ln_2", "norm2", "layernorm_after"),
}


def weights_for(net: ViT, library: int) -> dict[str, Tensor]:
    """The weights of ours under the names of a library: 0 torchvision, 1 timm, 2 transformers."""
    own = dict(net.state_dict())
    grid, first = own.pop("position_grid"), own.pop("class_position")
    own["positions"] = torch.cat((first, grid.flatten(1, 2)), 1)
    out = {}
    for name, value in own.items():
        stem, _, kind = name.rpartition(".")
        kind = kind if kind in ("weight", "bias") else ""
        stem = stem if kind else name
        if not stem.startswith("blocks."):
            out[OUTER[stem][library] + ("." + kind if kind else "")] = value
            continue
        _, i, part = stem.split(".", 2)
        layer = LAYER[library].format(i)
        if part in INNER:
            out[f"{layer}.{INNER[part][library]}.{kind}"] = value
        elif library == 0:
            out[f"{layer}.self_attention.in_proj_{kind}"] = value
        elif library == 1:
            out[f"{layer}.attn.qkv.{kind}"] = value
        else:
            out |= {f"{layer}.attention.{p}_proj.{kind}": v for p, v in zip("qkv", value.chunk(3), strict=True)}
    return out


def loss(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    logits = net(images)
    return F.cross_entropy(getattr(logits, "logits", logits), labels)


def rows(image_size: int, patch_size: int, num_layers: int, num_heads: int, embed_dim: int) -> dict[str, Row]:
    """All with the weights of ours, whose head is no longer zero."""
    ours = ViT(image_size, NUM_CLASSES, patch_size=patch_size, num_layers=num_layers, num_heads=num_heads, embed_dim=embed_dim)
    nn.init.normal_(ours.head.weight, std=0.02)
    hidden = MLP_RATIO * embed_dim
    config = ViTConfig(
        image_size=image_size, patch_size=patch_size, hidden_size=embed_dim, num_hidden_layers=num_layers,
        num_attention_heads=num_heads, intermediate_size=hidden, layer_norm_eps=EPS, num_labels=NUM_CLASSES,
        attn_implementation="sdpa",
    )  # fmt: skip
    theirs = {
        "torchvision": VisionTransformer(
            image_size, patch_size, num_layers, num_heads, embed_dim, hidden, num_classes=NUM_CLASSES
        ),
        "timm": TimmViT(
            image_size, patch_size, num_classes=NUM_CLASSES, embed_dim=embed_dim, depth=num_layers, num_heads=num_heads
        ),
        "transformers sdpa": ViTForImageClassification(config),
    }
    out = {"ours": Row(ours, loss, fused=True)}
    for library, (name, net) in enumerate(theirs.items()):
        net.load_state_dict(weights_for(ours, library))
        out[name] = Row(net, loss, fused=True)
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each row in a round")
    parser.add_argument("--batch_size", type=int, default=64, help="images in a step")
    parser.add_argument("--image_size", type=int, default=32)
    parser.add_argument("--patch_size", type=int, default=4)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--num_heads", type=int, default=3)
    parser.add_argument("--embed_dim", type=int, default=192)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    table = rows(args.image_size, args.patch_size, args.num_layers, args.num_heads, args.embed_dim)
    size = args.batch_size, 3, args.image_size, args.image_size
    batches = [(torch.randn(size), torch.randint(NUM_CLASSES, (args.batch_size,))) for _ in range(args.steps)]
    timed = measure(table, batches, args.rounds)
    losses = timed.first_loss
    print(f"the first step's loss: {losses['ours']:.6f}; all within {max(losses.values()) - min(losses.values()):.1e}")
    assert max(losses.values()) - min(losses.values()) <= TOLERANCE, losses
    report(table, timed, args.steps, args.batch_size, "images")


if __name__ == "__main__":
    main()
