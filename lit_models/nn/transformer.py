"""One transformer block for every model: pre- or post-norm, with or without cross-attention."""

from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.attention import KVCache, MultiHeadAttention
from lit_models.nn.linear import Linear

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]


class MLP(nn.Module):
    """Two linear layers with an activation between them, position by position.

    Source: Vaswani et al. 2017, section 3.3; gelu_tanh and quick_gelu (x sigmoid(1.702 x)): Hendrycks & Gimpel 2016, section 2.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
        activation: Activation = "gelu",
    ):
        super().__init__()
        if activation not in get_args(Activation):
            raise ValueError(f"activation {activation!r} is none of {', '.join(get_args(Activation))}")
        self.activation = activation
        self.dropout = dropout
        self.fc_in = Linear(embed_dim, hidden_dim, bias=bias)
        self.fc_out = Linear(hidden_dim, embed_dim, bias=bias)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        x = self.fc_in(x)
        if self.activation == "relu":
            x = F.relu(x)
        elif self.activation == "quick_gelu":
            x = x * torch.sigmoid(1.702 * x)
        else:
            x = F.gelu(x, approximate="tanh" if self.activation == "gelu_tanh" else "none")
        return F.dropout(self.fc_out(x), self.dropout, self.training)


class TransformerBlock(nn.Module):
    """Attention, cross-attention if asked for, and MLP, each with a residual path and a layer norm.

    Source: Vaswani et al. 2017, section 3.1 (norm_first False); Xiong et al. 2020 (norm_first True).
    """

    norm_cross: nn.LayerNorm | None
    cross_attention: MultiHeadAttention | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        bias: bool = True,
        dropout: float = 0.0,
        norm_first: bool = True,
        cross_attention: bool = False,
        activation: Activation = "gelu",
        layer_norm_eps: float = 1e-5,
    ):
        super().__init__()
        self.dropout = dropout
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
        self.attention = MultiHeadAttention(embed_dim, num_heads, bias=bias, dropout=dropout)
        if cross_attention:
            self.norm_cross = nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
            self.cross_attention = MultiHeadAttention(embed_dim, num_heads, bias=bias, dropout=dropout)
        else:
            self.norm_cross = self.cross_attention = None
        self.norm2 = nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
        self.mlp = MLP(embed_dim, int(embed_dim * mlp_ratio), bias=bias, dropout=dropout, activation=activation)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        context_mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """mask (for x) and context_mask: True = may attend, broadcastable to (B, H, T, keys).

        Raises: ValueError when a context is missing, or given to a block without cross-attention.
        """
        if (context is None) != (self.cross_attention is None):
            wanted = "no context" if self.cross_attention is None else "a context"
            raise ValueError(f"a block with cross_attention={self.cross_attention is not None} takes {wanted}")
        h = self.norm1(x) if self.norm_first else x
        h = self.attention(h, mask=mask, is_causal=is_causal, rotary=rotary, cache=cache)
        x = self._add(x, F.dropout(h, self.dropout, self.training), self.norm1)
        if self.cross_attention is not None and self.norm_cross is not None:
            h = self.norm_cross(x) if self.norm_first else x
            h = self.cross_attention(h, context, mask=context_mask)
            x = self._add(x, F.dropout(h, self.dropout, self.training), self.norm_cross)
        return self._add(x, self.mlp(self.norm2(x) if self.norm_first else x), self.norm2)

    def state_at(
        self, x: Float[Tensor, "B T D"], positions: Int[Tensor, "B"] | None = None, *, is_causal: bool = False
    ) -> Float[Tensor, "B D"]:
        """What `forward` makes of one position in each row (default: the first), without the work on the others.

        For the last block of a network that reads no other states; pre-norm and without cross-attention only.
        """
        h = self.norm1(x)
        if positions is None:
            own, query, mask = x[:, :1], h[:, :1], None
        else:
            rows = torch.arange(len(x), device=x.device)
            own, query = x[rows, positions][:, None], h[rows, positions][:, None]
            mask = torch.arange(x.shape[1], device=x.device) <= positions[:, None] if is_causal else None  # (B, T)
        attended = self.attention(query, h, mask=None if mask is None else mask[:, None, None])
        own = own + F.dropout(attended, self.dropout, self.training)
        return (own + self.mlp(self.norm2(own)))[:, 0]

    def attention_weights(
        self,
        x: Float[Tensor, "B T D"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "B H T T"]:
        """The weights of this block's self-attention for its input x."""
        h = self.norm1(x) if self.norm_first else x
        return self.attention.attention_weights(h, mask=mask, is_causal=is_causal, rotary=rotary)

    def _add(self, x: Tensor, h: Tensor, norm: nn.LayerNorm) -> Tensor:
        return x + h if self.norm_first else norm(x + h)
