"""A decoder-only transformer with tied embeddings, GPT-2 by default."""

import math
from collections.abc import Sequence
from typing import Literal, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.attention import KVCache
from lit_models.nn.linear import Linear, linear
from lit_models.nn.position import rotary, sinusoidal
from lit_models.nn.transformer import TransformerBlock

POSITIONS = ("learned", "sinusoidal", "rotary", "none")


@final
class GPT(nn.Module):
    """Pre-norm causal transformer from token ids to next-token logits.

    Source: Radford et al. 2019 (GPT-2), section 2.3; initialisation from its released code.
    Departs: other positions than learned ones may be chosen; dropout is 0 unless asked for.

    Args:
        scalar_head: one number for each state beside the logits: a reward model's score, or the value of a policy's state.
    """

    heads: tuple[str, ...] = ("scalar_head",)
    """Modules that belong to a task: a warm start from another task's network may leave them out or start them anew."""

    blocks: Sequence[TransformerBlock]  # an nn.ModuleList, which does not know the type of its items

    def __init__(
        self,
        vocab_size: int,
        max_seq_len: int,
        num_layers: int = 12,
        num_heads: int = 12,
        embed_dim: int = 768,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        bias: bool = True,
        position: Literal["learned", "sinusoidal", "rotary", "none"] = "learned",
        activation: Literal["gelu", "gelu_tanh"] = "gelu_tanh",
        scalar_head: bool = False,
    ):
        super().__init__()
        for name, value in (
            ("vocab_size", vocab_size),
            ("max_seq_len", max_seq_len),
            ("num_layers", num_layers),
            ("num_heads", num_heads),
            ("embed_dim", embed_dim),
            ("mlp_ratio", mlp_ratio),
        ):
            if value <= 0:
                raise ValueError(f"{name} {value} is not positive")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout {dropout} is not in [0, 1)")
        if position not in POSITIONS:
            raise ValueError(f"position {position!r} is none of {', '.join(POSITIONS)}")
        self.max_seq_len = max_seq_len
        self.position = position
        self.dropout = dropout
        self.token_embedding = nn.Embedding(vocab_size, embed_dim)
        self.position_embedding = nn.Embedding(max_seq_len, embed_dim) if position == "learned" else None
        blocks = nn.ModuleList(
            TransformerBlock(embed_dim, num_heads, mlp_ratio=mlp_ratio, bias=bias, dropout=dropout, activation=activation)
            for _ in range(num_layers)
        )
        self.blocks = cast(Sequence[TransformerBlock], blocks)
        self.norm = nn.LayerNorm(embed_dim, bias=bias)
        self.scalar_head = Linear(embed_dim, 1) if scalar_head else None
        self.head_dim = embed_dim // num_heads
        if position == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary needs an even head dim, embed_dim {embed_dim} / num_heads {num_heads} is odd")
        if position == "sinusoidal" and embed_dim % 2:
            raise ValueError(f"sinusoidal needs an even embed_dim, not {embed_dim}")
        self._init_weights()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        *,
        attention_mask: Bool[Tensor, "B S"] | Int[Tensor, "B S"] | None = None,
        cache: list[KVCache] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the token after each position; arguments as in features."""
        return self.head(self.features(input_ids, attention_mask=attention_mask, cache=cache))

    def features(
        self,
        input_ids: Int[Tensor, "B T"],
        *,
        attention_mask: Bool[Tensor, "B S"] | Int[Tensor, "B S"] | None = None,
        cache: list[KVCache] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Final hidden states, after the last norm.

        attention_mask: True (or 1) = a token, False = padding on either side. S is T plus what the cache holds.
        Padding is not attended to and takes no position: the first token of each row stands at position 0.
        cache: one KVCache per layer, appended to; input_ids then continue what it holds.

        Raises: ValueError when S is more than max_seq_len.
        """
        past = cache[0].length if cache else 0
        x, rotation = self._embed(input_ids, attention_mask, past)
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None, :]  # (B, 1, 1, S)
        for i, block in enumerate(self.blocks):
            x = block(x, mask=mask, is_causal=True, rotary=rotation, cache=cache[i] if cache else None)
        return self.norm(x)

    def head(self, features: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch V"]:
        """Logits, by the token embedding's own weights."""
        return linear(features, self.token_embedding.weight)

    def scalars(self, features: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch"]:
        """The scalar head's numbers. Raises: ValueError for a network without one."""
        if self.scalar_head is None:
            raise ValueError("this network has no scalar head: scalar_head true gives it one")
        return self.scalar_head(features).squeeze(-1)

    def scores(self, input_ids: Int[Tensor, "B T"], lengths: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        """The scalar head's number at the last real token of rows that are padded on the right, in float32 at least.

        What stands behind it is not looked at, so that a row has its score in any batch.
        """
        features = self.features(input_ids)
        last = features[torch.arange(len(features), device=features.device), lengths - 1]
        scores = self.scalars(last)
        return scores.to(torch.promote_types(scores.dtype, torch.float32))

    def new_cache(self, batch_size: int, max_len: int) -> list[KVCache]:
        """Empty caches, one per layer, for max_len positions."""
        weight = self.token_embedding.weight
        shape = (batch_size, self.blocks[0].attention.num_heads, max_len, self.head_dim)
        return [KVCache(weight.new_empty(shape), weight.new_empty(shape)) for _ in self.blocks]

    def attention_maps(self, input_ids: Int[Tensor, "B T"]) -> Float[Tensor, "L B H T T"]:
        """Attention weights of every layer: row t is the query, its columns the tokens attended to."""
        x, rotation = self._embed(input_ids, None, 0)
        maps = []
        for block in self.blocks:
            maps.append(block.attention_weights(x, is_causal=True, rotary=rotation))
            x = block(x, is_causal=True, rotary=rotation)
        return torch.stack(maps)

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of training on one token, forward and backward: 6 N + 12 L H K T.

        N counts parameters without learned positions, which are looked up, not multiplied.
        Source: Chowdhery et al. 2022 (PaLM), appendix B.
        """
        positions = 0 if self.position_embedding is None else self.position_embedding.weight.numel()
        num_params = sum(p.numel() for p in self.parameters()) - positions
        embed_dim = self.token_embedding.embedding_dim  # = H K
        return 6 * num_params + 12 * len(self.blocks) * embed_dim * self.max_seq_len

    def _embed(
        self, input_ids: Tensor, attention_mask: Tensor | None, past: int
    ) -> tuple[Float[Tensor, "B T D"], tuple[Tensor, Tensor] | None]:
        """Token embeddings with positions added, or beside them the rotation of the positions."""
        length = past + input_ids.shape[1]
        if length > self.max_seq_len:
            raise ValueError(f"sequence of {length} tokens is longer than max_seq_len {self.max_seq_len}")
        if attention_mask is None:
            position_ids = torch.arange(past, length, device=input_ids.device)[None]  # (1, T)
        elif attention_mask.shape[1] != length:
            raise ValueError(f"attention_mask covers {attention_mask.shape[1]} positions of {length}")
        else:
            position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, past:]  # (B, T)
        x = self.token_embedding(input_ids)
        if self.position_embedding is not None:
            x = x + self.position_embedding(position_ids)
        elif self.position == "sinusoidal":
            x = x + sinusoidal(position_ids, x.shape[-1]).to(x.dtype)
        if attention_mask is not None:
            x = x.masked_fill(~attention_mask.bool()[:, past:, None], 0.0)  # the id used for padding must not matter
        rotation = rotary(position_ids, self.head_dim) if self.position == "rotary" else None
        return F.dropout(x, self.dropout, self.training), rotation

    def _init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if self.scalar_head is not None:  # Stiennon et al. 2020, appendix B.1
            nn.init.normal_(self.scalar_head.weight, std=1 / math.sqrt(self.scalar_head.in_features + 1))
        # 2 L residual branches are summed: scaled so that their sum keeps its variance.
        for block in self.blocks:
            for residual in (block.attention.out, block.mlp.fc_out):
                nn.init.normal_(residual.weight, std=0.02 / math.sqrt(2 * len(self.blocks)))
