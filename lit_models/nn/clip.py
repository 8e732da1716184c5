"""CLIP: a ViT for images and a causal transformer for texts, both ending in one space."""

import math
from collections.abc import Sequence
from typing import Literal, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.linear import Linear
from lit_models.nn.transformer import Activation, TransformerBlock
from lit_models.nn.vit import ViT

LAYER_NORM_EPS = 1e-5
MAX_LOG_SCALE = math.log(100)


@final
class TextTower(nn.Module):
    """Pre-norm causal transformer; a text's features are those of its end token.

    Source: Radford et al. 2021 (CLIP), section 2.4; initial weights as in the released code, with wider embeddings in narrow
    networks.

    Raises:
        ValueError: in forward, for a text longer than max_seq_len.
    """

    blocks: Sequence[TransformerBlock]  # an nn.ModuleList, which does not know the type of its items

    def __init__(
        self, vocab_size: int, eos_id: int, max_seq_len: int, projection_dim: int, num_layers: int, num_heads: int,
        embed_dim: int, dropout: float, activation: Activation,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eos_id, self.dropout = eos_id, dropout
        self.token_embedding = nn.Embedding(vocab_size, embed_dim)
        self.positions = nn.Parameter(torch.empty(1, max_seq_len, embed_dim))
        blocks = nn.ModuleList(
            TransformerBlock(embed_dim, num_heads, dropout=dropout, activation=activation, layer_norm_eps=LAYER_NORM_EPS)
            for _ in range(num_layers)
        )
        self.blocks = cast(Sequence[TransformerBlock], blocks)
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.head = Linear(embed_dim, projection_dim, bias=False)
        self._init_weights()

    def forward(self, input_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B E"]:
        """What follows the first end token is padding."""
        length = input_ids.shape[1]
        if length > self.positions.shape[1]:
            raise ValueError(f"a text of {length} tokens is longer than max_seq_len {self.positions.shape[1]}")
        x = self.token_embedding(input_ids) + self.positions[:, :length]
        x = F.dropout(x, self.dropout, self.training)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, is_causal=True)
        end = (input_ids == self.eos_id).int().argmax(1)
        return self.head(self.norm(last.state_at(x, end, is_causal=True)))

    def _init_weights(self) -> None:
        width = self.norm.weight.numel()
        wider = math.sqrt(512 / width)  # the published width
        stds = {"qkv": width**-0.5, "out": width**-0.5 * (2 * len(self.blocks)) ** -0.5, "fc_in": (2 * width) ** -0.5}
        stds |= {"fc_out": stds["out"], "head": width**-0.5, "token_embedding": 0.02 * wider, "positions": 0.01 * wider}
        for name, parameter in self.named_parameters():
            std = next((std for part, std in stds.items() if part in name.split(".")), None)
            if std is not None and parameter.ndim > 1:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


@final
class CLIP(nn.Module):
    """Image and text features of length 1 in one space, and the logits of every image with every text.

    Source: Radford et al. 2021 (CLIP), section 2; logit_bias: Zhai et al. 2023 (SigLIP), section 3.2. Departs: images may be of
    any size and the image tower of any kind that ViT knows; for the initial weights see ViT and TextTower.

    Args:
        image_size: one number for squares, (height, width) for rectangles.
        eos_id: the id of the token that ends a text, where its features are read.
        projection_dim: dimensions of the common space.
        pool, stem: see ViT.
        pre_norm: a layer norm before the image tower's blocks, as published.
        logit_bias: logits have a learned bias, for a sigmoid loss; then scale and bias start at 10 and -10, else the scale at
            1 / 0.07.

    Raises:
        ValueError: a size is not positive or does not divide as it must, or a choice is unknown.
    """

    heads: tuple[str, ...] = ()
    """A warm start takes all of another CLIP's weights."""

    def __init__(
        self,
        image_size: int | tuple[int, int],
        vocab_size: int,
        eos_id: int,
        *,
        max_seq_len: int = 77,
        projection_dim: int = 512,
        patch_size: int = 32,
        image_num_layers: int = 12,
        image_num_heads: int = 12,
        image_embed_dim: int = 768,
        text_num_layers: int = 12,
        text_num_heads: int = 8,
        text_embed_dim: int = 512,
        dropout: float = 0.0,
        pool: Literal["class", "mean"] = "class",
        stem: Literal["patch", "conv"] = "patch",
        pre_norm: bool = True,
        activation: Activation = "quick_gelu",
        logit_bias: bool = False,
    ):
        super().__init__()
        sizes = {"vocab_size": vocab_size, "max_seq_len": max_seq_len, "projection_dim": projection_dim}
        sizes |= {"text_num_layers": text_num_layers, "text_num_heads": text_num_heads, "text_embed_dim": text_embed_dim}
        sizes |= {"image_num_layers": image_num_layers, "image_num_heads": image_num_heads, "image_embed_dim": image_embed_dim}
        for name, value in sizes.items():
            if value <= 0:
                raise ValueError(f"{name} {value} is not positive")
        if not 0 <= eos_id < vocab_size:
            raise ValueError(f"eos_id {eos_id} is not in a vocabulary of {vocab_size}")
        self.image = ViT(
            image_size, projection_dim, patch_size=patch_size, num_layers=image_num_layers, num_heads=image_num_heads,
            embed_dim=image_embed_dim, dropout=dropout, pool=pool, stem=stem, pre_norm=pre_norm, activation=activation,
            layer_norm_eps=LAYER_NORM_EPS,
        )  # fmt: skip
        self.image.head = Linear(image_embed_dim, projection_dim, bias=False)  # a classifier's starts at zero
        nn.init.normal_(self.image.head.weight, std=image_embed_dim**-0.5)
        self.text = TextTower(
            vocab_size,
            eos_id,
            max_seq_len,
            projection_dim,
            text_num_layers,
            text_num_heads,
            text_embed_dim,
            dropout,
            activation,
        )
        self.logit_scale = nn.Parameter(torch.tensor(math.log(10 if logit_bias else 1 / 0.07)))
        self.logit_bias = nn.Parameter(torch.tensor(-10.0)) if logit_bias else None

    def encode_image(self, images: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B E"]:
        """Features of length 1. Raises: ValueError when height or width is not a multiple of patch_size."""
        return F.normalize(self.image(images), dim=-1)

    def encode_text(self, input_ids: Int[Tensor, "M T"]) -> Float[Tensor, "M E"]:
        """Features of length 1. Raises: ValueError for texts longer than max_seq_len."""
        return F.normalize(self.text(input_ids), dim=-1)

    @property
    def max_seq_len(self) -> int:
        return self.text.positions.shape[1]

    @property
    def scale(self) -> Float[Tensor, ""]:
        """What cosines are multiplied by, never above 100."""
        return self.logit_scale.clamp(max=MAX_LOG_SCALE).exp()

    def logits(self, images: Float[Tensor, "B E"], texts: Float[Tensor, "M E"]) -> Float[Tensor, "B M"]:
        """Of features: their cosines times the scale, plus the bias where there is one; in float32 at least."""
        dtype = torch.promote_types(images.dtype, torch.float32)
        with torch.autocast(images.device.type, enabled=False):
            logits = self.scale.to(dtype) * (images.to(dtype) @ texts.to(dtype).T)
        return logits if self.logit_bias is None else logits + self.logit_bias

    def forward(
        self, images: Float[Tensor, "B 3 H W"], input_ids: Int[Tensor, "M T"]
    ) -> tuple[Float[Tensor, "B E"], Float[Tensor, "M E"]]:
        """The features of images and texts; raises as `encode_image` and `encode_text`."""
        return self.encode_image(images), self.encode_text(input_ids)

    @torch.no_grad()
    def clamp_logit_scale(self) -> None:
        """Brings a scale above 100 back to it; to be called after each step."""
        self.logit_scale.clamp_(max=MAX_LOG_SCALE)
