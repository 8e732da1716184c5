"""Seconds of one training step: our CLIP beside open_clip's and transformers' with the same weights, on the CPU.

    python -m tests.benchmarks.clip_step [--threads 2] [--rounds 20] [--steps 3]

64 pairs; images of 64 x 64 in patches of 8, 6 layers, 192 wide; texts of up to 32 tokens, padded to 32 for all, 4 layers,
128 wide. Each computes features, logits and the symmetric cross-entropy; the first step's losses must be equal. Timed as
tests/benchmarks/timing.py says.
"""

import argparse
from typing import Any

import torch
from open_clip.model import CLIP as OpenCLIP
from open_clip.model import CLIPTextCfg, CLIPVisionCfg
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import CLIPConfig, CLIPModel

from lit_models.losses.contrastive import contrast
from lit_models.nn.clip import CLIP
from tests.benchmarks.timing import Row, measure, report

TOLERANCE = 1e-4  # of the first step's loss, in nats
VOCAB, PROJECTION, TEXT = 4096, 128, {"num_layers": 4, "num_heads": 2, "embed_dim": 128}
OUTER = {  # our names beside those of open_clip and transformers
    "logit_scale": ("logit_scale", "logit_scale"),
    "image.class_token": ("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    "image.positions": ("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    "image.stem": ("visual.conv1", "vision_model.embeddings.patch_embedding"),
    "image.pre_norm": ("visual.ln_pre", "vision_model.pre_layrnorm"),
    "image.norm": ("visual.ln_post", "vision_model.post_layernorm"),
    "image.head": ("visual.proj", "visual_projection.weight"),
    "text.token_embedding": ("token_embedding", "text_model.embeddings.token_embedding"),
    "text.positions": ("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    "text.norm": ("ln_final", "text_model.final_layer_norm"),
    "text.head": ("text_projection", "text_projection.weight"),
}
LAYERS = {
    "image": ("visual.transformer.resblocks", "vision_model.encoder.layers"),
    "text": ("transformer.resblocks", "text_model.encoder.layers"),
}
INNER = {
    "attention.out": ("attn.out_proj", "self_attn.out_proj"),
    "mlp.fc_in": ("mlp.c_fc", "mlp.fc1"),
    "mlp.fc_out": ("mlp.c_proj", "mlp.fc2"),
    "norm1": ("ln_1", "layer_norm1"),
    "norm2": ("ln_2", "layer_norm2"),
}


def weights_for(net: CLIP, library: int) -> dict[str, Tensor]:
    """The weights of ours under the names of a library: 0 open_clip, 1 transformers."""
    own = dict(net.state_dict())
    first, grid = own.pop("image.class_position"), own.pop("image.position_grid")
    own["image.positions"] = torch.cat((first[0], grid.flatten(0, 2)))
    own["image.class_token"], own["text.positions"] = own["image.class_token"].flatten(), own["text.positions"][0]
    out = {}
    for name, value in own.items():
        stem, _, kind = name.rpartition(".")
        stem, kind = (stem, kind) if kind in ("weight", "bias") else (name, "")
        tower, _, rest = stem.partition(".blocks.")
        if not rest:
            transposed = library == 0 and stem.endswith("head")  # open_clip keeps projections the other way round
            plain = stem.endswith("head") or not kind
            out[OUTER[stem][library] + ("" if plain else f".{kind}")] = value.T if transposed else value
            continue
        i, _, part = rest.partition(".")
        layer = f"{LAYERS[tower][library]}.{i}"
        if part in INNER:
            out[f"{layer}.{INNER[part][library]}.{kind}"] = value
        elif library == 0:
            out[f"{layer}.attn.in_proj_{kind}"] = value
        else:
            out |= {f"{layer}.self_attn.{p}_proj.{kind}": v for p, v in zip("qkv", value.chunk(3), strict=True)}
    return out


def our_loss(net: CLIP, images: Tensor, ids: Tensor) -> Tensor:
    logits = net.logits(*net(images, ids))
    own = torch.arange(len(ids))
    equal = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    return (contrast(logits, own, equal)[0] + contrast(logits.T, own, equal)[0]) / (2 * len(ids))


def open_clip_loss(net: OpenCLIP, images: Tensor, ids: Tensor) -> Tensor:
    image, text, scale = net(images, ids)
    logits = scale * image @ text.T
    own = torch.arange(len(ids))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def transformers_loss(net: CLIPModel, images: Tensor, ids: Tensor) -> Tensor:
    return net(input_ids=ids, pixel_values=images, return_loss=True).loss


def rows(image_size: int, patch_size: int, num_layers: int, num_heads: int, embed_dim: int, context: int) -> dict[str, Row]:
    """All with the weights of ours."""
    text = {f"text_{name}": value for name, value in TEXT.items()}
    ours = CLIP(
        image_size, VOCAB, VOCAB - 1, max_seq_len=context, projection_dim=PROJECTION, patch_size=patch_size,
        image_num_layers=num_layers, image_num_heads=num_heads, image_embed_dim=embed_dim, **text,
    )  # fmt: skip
    vision = CLIPVisionCfg(
        layers=num_layers, width=embed_dim, head_width=embed_dim // num_heads, patch_size=patch_size, image_size=image_size
    )
    texts = CLIPTextCfg(
        context_length=context, vocab_size=VOCAB, width=TEXT["embed_dim"], heads=TEXT["num_heads"], layers=TEXT["num_layers"]
    )
    open_clip = OpenCLIP(PROJECTION, vision, texts, quick_gelu=True)
    shared: dict[str, Any] = {"hidden_act": "quick_gelu", "projection_dim": PROJECTION}
    config = CLIPConfig(
        text_config={
            "hidden_size": TEXT["embed_dim"], "intermediate_size": 4 * TEXT["embed_dim"], "vocab_size": VOCAB,
            "num_hidden_layers": TEXT["num_layers"], "num_attention_heads": TEXT["num_heads"],
            "max_position_embeddings": context, "eos_token_id": VOCAB - 1, "bos_token_id": 0, "pad_token_id": 1, **shared,
        },
        vision_config={
            "hidden_size": embed_dim, "intermediate_size": 4 * embed_dim, "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads, "image_size": image_size, "patch_size": patch_size, **shared,
        },
        projection_dim=PROJECTION, attn_implementation="sdpa",
    )  # fmt: skip
    out = {"ours": Row(ours, our_loss, fused=True)}
    theirs: dict[str, tuple[nn.Module, Any]] = {"open_clip": (open_clip, open_clip_loss)}
    theirs["transformers sdpa"] = CLIPModel(config), transformers_loss
    for library, (name, (net, loss)) in enumerate(theirs.items()):
        missing, unexpected = net.load_state_dict(weights_for(ours, library), strict=False)
        assert not unexpected and all(name.endswith(("attn_mask", "position_ids")) for name in missing), (missing, unexpected)
        out[name] = Row(net, loss, fused=True)
    return out


def make_batch(batch_size: int, image_size: int, context: int) -> tuple[Tensor, Tensor]:
    """Random images, and texts of unequal lengths, ended by the highest id and padded with id 1."""
    ids = torch.randint(2, VOCAB - 1, (batch_size, context))
    ends = torch.randint(context // 4, context, (batch_size, 1))
    place = torch.arange(context)
    ids = torch.where(place == ends, VOCAB - 1, torch.where(place > ends, 1, ids))
    return torch.randn(batch_size, 3, image_size, image_size), ids


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each row in a round")
    parser.add_argument("--batch_size", type=int, default=64, help="pairs in a step")
    parser.add_argument("--image_size", type=int, default=64)
    parser.add_argument("--patch_size", type=int, default=8)
    parser.add_argument("--num_layers", type=int, default=6, help="of the image tower, as are heads and width")
    parser.add_argument("--num_heads", type=int, default=3)
    parser.add_argument("--embed_dim", type=int, default=192)
    parser.add_argument("--context", type=int, default=32)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    table = rows(args.image_size, args.patch_size, args.num_layers, args.num_heads, args.embed_dim, args.context)
    batches = [make_batch(args.batch_size, args.image_size, args.context) for _ in range(args.steps)]
    timed = measure(table, batches, args.rounds)
    losses = timed.first_loss
    print(f"the first step's loss: {losses['ours']:.6f}; all within {max(losses.values()) - min(losses.values()):.1e}")
    assert max(losses.values()) - min(losses.values()) <= TOLERANCE, losses
    report(table, timed, args.steps, args.batch_size, "pairs")


if __name__ == "__main__":
    main()
