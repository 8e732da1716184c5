"""The Vision Transformer, plain or with a stem of convolutions."""

import math
from collections.abc import Sequence
from typing import Any, Literal, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.linear import Linear
from lit_models.nn.patch import ConvStem, PatchEmbedding, check_image_size, resize_positions, sinusoidal_2d
from lit_models.nn.transformer import Activation, TransformerBlock

LAYER_NORM_EPS = 1e-6
CHOICES = {"pool": ("class", "mean"), "positions": ("learned", "sinusoidal"), "stem": ("patch", "conv")}


@final
class ViT(nn.Module):
    """Pre-norm transformer over an image's patches, with one class for each image.

    Source: Dosovitskiy et al. 2021, section 3.1. Departs: positions stand in a grid of their own beside the class token's,
    so that a rectangle is resized as one; images of another size than image_size are taken, with positions to match; for the
    initial weights see `_init_weights`.

    Args:
        image_size: one number for squares, (height, width) for rectangles.
        pool: the class token's state, or the mean over the patches (then there is no class token).
        positions: sinusoidal ones are fixed and, as they are computed, not resized for images of another size.
        stem: patch, or conv for the hybrid.
        pre_norm: a layer norm before the first block, and a stem without biases, as in CLIP.

    Raises:
        ValueError: a size is not positive or does not divide as it must, dropout is not in [0, 1), or a choice is unknown.
    """

    heads: tuple[str, ...] = ("head",)
    """Modules that belong to a task: a warm start from another task's network may leave them out or start them anew."""
    blocks: Sequence[TransformerBlock]  # an nn.ModuleList, which does not know the type of its items
    position_grid: Tensor
    class_token: nn.Parameter | None
    class_position: nn.Parameter | None

    def __init__(
        self,
        image_size: int | tuple[int, int],
        num_classes: int,
        *,
        patch_size: int = 16,
        in_channels: int = 3,
        num_layers: int = 12,
        num_heads: int = 12,
        embed_dim: int = 768,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        pool: Literal["class", "mean"] = "class",
        positions: Literal["learned", "sinusoidal"] = "learned",
        stem: Literal["patch", "conv"] = "patch",
        pre_norm: bool = False,
        activation: Activation = "gelu",
        layer_norm_eps: float = LAYER_NORM_EPS,
    ):
        super().__init__()
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        sizes = {"image_size": min(height, width), "num_classes": num_classes, "patch_size": patch_size}
        sizes |= {"in_channels": in_channels, "num_layers": num_layers, "num_heads": num_heads, "embed_dim": embed_dim}
        for name, value in {**sizes, "mlp_ratio": mlp_ratio}.items():
            if value <= 0:
                raise ValueError(f"{name} {value} is not positive")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout {dropout} is not in [0, 1)")
        for name, choice in {"pool": pool, "positions": positions, "stem": stem}.items():
            if choice not in CHOICES[name]:
                raise ValueError(f"{name} {choice!r} is none of {', '.join(CHOICES[name])}")
        check_image_size((height, width), patch_size)
        h, w = height // patch_size, width // patch_size
        self.dropout = dropout
        self.stem = (PatchEmbedding if stem == "patch" else ConvStem)(in_channels, embed_dim, patch_size, bias=not pre_norm)
        if positions == "learned":
            self.position_grid = nn.Parameter(torch.empty(1, h, w, embed_dim))
        else:
            self.register_buffer("position_grid", sinusoidal_2d(h, w, embed_dim)[None], persistent=False)
        self.class_token = nn.Parameter(torch.empty(1, 1, embed_dim)) if pool == "class" else None
        has_position = positions == "learned" and pool == "class"
        self.class_position = nn.Parameter(torch.empty(1, 1, embed_dim)) if has_position else None
        blocks = nn.ModuleList(
            TransformerBlock(
                embed_dim, num_heads, mlp_ratio=mlp_ratio, dropout=dropout, activation=activation, layer_norm_eps=layer_norm_eps
            )
            for _ in range(num_layers)
        )
        self.pre_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps) if pre_norm else nn.Identity()
        self.blocks = cast(Sequence[TransformerBlock], blocks)
        self.norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.head = Linear(embed_dim, num_classes)
        self._init_weights()

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches at the configured image size."""
        return self.position_grid.shape[1], self.position_grid.shape[2]

    def features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B T D"]:
        """States after the final norm: the class token's, if there is one, then the patches' row by row.

        Raises: ValueError when height or width is not a multiple of patch_size.
        """
        x = self._embed(images)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B num_classes"]:
        """Logits: the head's of the pooled features; raises as `features`."""
        if self.class_token is None:
            return self.head(self.features(images).mean(1))
        *blocks, last = self.blocks
        x = self._embed(images)
        for block in blocks:
            x = block(x)
        return self.head(self.norm(last.state_at(x)))

    def attention_maps(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "L B heads T T"]:
        """Attention weights of every layer: row t is the query, its columns the tokens attended to, in `features`' order."""
        x, maps = self._embed(images), []
        for block in self.blocks:
            maps.append(block.attention_weights(x))
            x = block(x)
        return torch.stack(maps)

    @property
    def flops_per_image(self) -> int:
        """Floating-point operations of training on one image of the configured size, forward and backward, head left out.

        6 N + 12 L D T for each of T tokens and 6 for each of the stem's products; N counts the blocks' parameters. With a
        class token the last block makes keys and values for all tokens, the rest for one.
        Source: Chowdhery et al. 2022 (PaLM), appendix B.
        """
        h, w = self.grid
        length = h * w + (self.class_token is not None)
        in_block = sum(p.numel() for p in self.blocks[0].parameters())
        per_token = 6 * in_block + 12 * self.norm.weight.numel() * length
        total = 6 * self.stem.num_products(h, w) + len(self.blocks) * length * per_token
        if self.class_token is not None:
            keys_and_values = sum(p.numel() for p in self.blocks[0].attention.qkv.parameters()) * 2 // 3
            total -= (length - 1) * (per_token - 6 * keys_and_values)
        return total

    def adapt(self, state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
        """`state` with learned positions of another grid resized to this one's; all else, what does not fit included, as it is.

        prefix: of this network's names in `state`, "net." for example.
        """
        name = f"{prefix}position_grid"
        own, given = self.position_grid, state.get(name)
        if given is None or given.ndim != 4 or given.shape[::3] != own.shape[::3]:  # (1, D)
            return state
        return {**state, name: resize_positions(given, self.grid)}

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        state_dict.update(self.adapt(state_dict, prefix))  # torch's own copy of what load_state_dict was given
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _embed(self, images: Tensor) -> Float[Tensor, "B T D"]:
        x = self.stem(images)  # (B, h, w, D)
        x = (x + self._positions((x.shape[1], x.shape[2]))).flatten(1, 2)  # (B, N, D)
        if self.class_token is not None:
            token = self.class_token if self.class_position is None else self.class_token + self.class_position
            x = torch.cat((token.expand(len(x), -1, -1), x), dim=1)
        return F.dropout(self.pre_norm(x), self.dropout, self.training)

    def _positions(self, size: tuple[int, int]) -> Float[Tensor, "1 h w D"]:
        if size == self.grid or isinstance(self.position_grid, nn.Parameter):
            return resize_positions(self.position_grid, size)
        return sinusoidal_2d(*size, self.position_grid.shape[-1])[None].to(self.position_grid)

    def _init_weights(self) -> None:
        """Linear layers and class token with std 0.02 at the published width of 768, wider in narrower networks; learned
        positions with std 1, as strong as the patches they are added to; biases 0; the stem sets its own weights.

        With std 0.02 for all, small networks learn late where a patch stands: on 4,000 digits of MNIST, 4 layers of width 64
        had 50 % of others right after 7 epochs, with the wider layers 63 %, with such positions as well 91 %.
        The head starts at zero: every class is equally likely at first, so the first loss is ln(num_classes) and a new head on
        trained layers does not disturb them with gradients of chance. Source: the released code of Dosovitskiy et al. 2021.
        """
        std = 0.02 * math.sqrt(768 / self.norm.weight.numel())
        for name, parameter in self.named_parameters():
            if not name.startswith("stem.") and parameter.ndim > 1:
                nn.init.trunc_normal_(parameter, std=1.0 if name == "position_grid" else std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.zeros_(self.head.weight)
