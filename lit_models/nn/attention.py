"""The attention of every model: fused for speed, written out for figures, with a cache for decoding.

Source: Vaswani et al. 2017, section 3.2.
A mask is True where a query may attend to a key, everywhere.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.linear import Linear, linear
from lit_models.nn.position import apply_rotary

# On CPUs two matmuls and a softmax beat scaled_dot_product_attention, forward and backward together, up to this length.
WRITTEN_OUT_MAX_KEYS = 256


@dataclass
class KVCache:
    """Keys and values (B, H, max_len, K) of one layer; the first `length` positions are filled. For decoding, not training."""

    keys: Float[Tensor, "B H M K"]
    values: Float[Tensor, "B H M K"]
    length: int = 0

    def append(
        self, keys: Float[Tensor, "B H T K"], values: Float[Tensor, "B H T K"]
    ) -> tuple[Float[Tensor, "B H S K"], Float[Tensor, "B H S K"]]:
        """Stores T more positions and returns all S = length that are filled.

        Raises: ValueError when they do not fit.
        """
        end = self.length + keys.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"cache of {self.keys.shape[2]} positions cannot hold {end}")
        self.keys[:, :, self.length : end] = keys
        self.values[:, :, self.length : end] = values
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class MultiHeadAttention(nn.Module):
    """Self-attention, or cross-attention when a context is given, with one projection for queries, keys and values.

    Source: Vaswani et al. 2017, section 3.2.2. Departs: a query that may attend to nothing gets zeros (before the output
    projection), and what stands in a source position that no query may attend to has no effect, NaN included.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, bias: bool = True, dropout: float = 0.0):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.out = Linear(embed_dim, embed_dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        context: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """x attends to context, or to itself and to what the cache holds.

        mask: True = may attend, broadcastable to (B, H, T, S), S counting cached positions too.
        is_causal: query t attends to the sources up to S - T + t; combines with mask.
        rotary: (cos, sin) of x's positions, self-attention only.
        cache: is appended to, self-attention only.
        """
        q, k, v = self._project(x, context, mask, rotary, cache)
        dropout = self.dropout if self.training else 0.0
        if q.is_cpu and torch.is_grad_enabled() and k.shape[2] <= WRITTEN_OUT_MAX_KEYS:
            weights = F.dropout(_weights(q, k, mask, is_causal), dropout)
            y = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)).view(q.shape)  # (B, H, T, K)
        else:
            y = _fused(q, k, v, mask, is_causal, dropout)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, T, D)

    def attention_weights(
        self,
        x: Float[Tensor, "B T D"],
        context: Float[Tensor, "B S D"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        is_causal: bool = False,
        rotary: tuple[Tensor, Tensor] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """The weights forward uses, without dropout; a row sums to 1, or to 0 where nothing may be attended to."""
        q, k, _ = self._project(x, context, mask, rotary, None)
        return _weights(q, k, mask, is_causal)

    def _project(
        self,
        x: Tensor,
        context: Tensor | None,
        mask: Tensor | None,
        rotary: tuple[Tensor, Tensor] | None,
        cache: KVCache | None,
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H S K"], Float[Tensor, "B H S K"]]:
        batch, _, dim = x.shape
        source = x if context is None else context
        ignored = None  # (B, S, 1) sources whose content must not matter: a weight of 0 times NaN would be NaN
        if mask is not None and not _is_finite(source):
            ignored = ~_four_dims(mask).any(2).any(1)[:, -source.shape[1] :, None]
        if context is None:
            qkv = self.qkv(x).view(batch, -1, 3, self.num_heads, dim // self.num_heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            if ignored is not None:
                k, v = k.masked_fill(ignored[:, None], 0.0), v.masked_fill(ignored[:, None], 0.0)
        else:
            source = source if ignored is None else source.masked_fill(ignored, 0.0)
            weights = self.qkv.weight.split((dim, 2 * dim))
            biases = (None, None) if self.qkv.bias is None else self.qkv.bias.split((dim, 2 * dim))
            q = linear(x, weights[0], biases[0]).view(batch, -1, self.num_heads, dim // self.num_heads).transpose(1, 2)
            kv = linear(source, weights[1], biases[1]).view(batch, -1, 2, self.num_heads, dim // self.num_heads)
            k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        if rotary is not None:
            q, k = apply_rotary(q, *rotary), apply_rotary(k, *rotary)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v


def _is_finite(x: Tensor) -> bool:
    """Whether x is known to hold no NaN and no infinity; asked on the CPU only, a device would have to be waited for."""
    return x.is_cpu and not torch.compiler.is_compiling() and bool(x.detach().sum().isfinite())


def _four_dims(mask: Tensor) -> Tensor:
    return mask.view((1,) * (4 - mask.ndim) + mask.shape)


def _allowed(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Bool[Tensor, "..."] | None:
    """Mask and causality in one, broadcastable to (B, H, T, S); None where every query attends to every key."""
    length, source = q.shape[2], k.shape[2]
    if is_causal and length > 1:
        causal = torch.ones(length, source, dtype=torch.bool, device=q.device).tril(source - length)
        return causal if mask is None else causal & _four_dims(mask)
    return None if mask is None else _four_dims(mask)


@lru_cache(maxsize=16)
def _causal_bias(length: int, source: int, dtype: torch.dtype) -> Float[Tensor, "T S"]:
    """0 where query t may attend, the lowest number elsewhere; on the CPU, kept because every layer and step asks for it."""
    return torch.full((length, source), torch.finfo(dtype).min, dtype=dtype, device="cpu").triu(source - length + 1)


def _weights(q: Tensor, k: Tensor, mask: Tensor | None, is_causal: bool) -> Float[Tensor, "B H T S"]:
    """softmax(q k^T / sqrt(K)) over what may be attended to."""
    batch, heads, length, head_dim = q.shape
    shape = (batch, heads, length, k.shape[2])
    empty = None
    if mask is None and is_causal and q.is_cpu:
        bias = _causal_bias(length, k.shape[2], q.dtype)[None, None]
    elif (allowed := _allowed(q, k, mask, is_causal)) is None:
        bias = q.new_zeros((1, 1, 1, 1))
    else:
        # The lowest number instead of -inf: a row without keys becomes uniform, not NaN, and is then set to zero.
        bias = q.new_zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(q.dtype).min)
        empty = None if mask is None else ~allowed.any(-1, keepdim=True)
        if empty is not None and empty.is_cpu and not torch.compiler.is_compiling() and not empty.any():
            empty = None
    scores = torch.baddbmm(  # scale, mask and product in one pass
        bias[0] if bias.shape[:2] == (1, 1) else bias.expand(batch, heads, -1, -1).flatten(0, 1),
        q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), alpha=1 / math.sqrt(head_dim),
    )  # fmt: skip
    weights = scores.softmax(-1).view(shape)
    return weights if empty is None else weights.masked_fill(empty, 0.0)


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool, dropout: float) -> Float[Tensor, "B H T K"]:
    if mask is None and (not is_causal or q.shape[2] in (1, k.shape[2])):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=is_causal and q.shape[2] > 1)
    allowed = _allowed(q, k, mask, is_causal)
    if allowed is None or mask is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout)
    # Kernels differ on rows without keys: let such a row attend to everything, then set it to zero.
    empty = ~allowed.any(-1, keepdim=True)
    if empty.is_cpu and not torch.compiler.is_compiling() and not empty.any():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, dropout_p=dropout)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | empty, dropout_p=dropout).masked_fill(empty, 0.0)
