"""BERT: a bidirectional transformer with heads for pre-training, for sequences and for tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.nn.linear import Linear, linear
from lit_models.nn.position import sinusoidal
from lit_models.nn.transformer import TransformerBlock

LAYER_NORM_EPS = 1e-12
NEIGHBOURS = (-1, 1, -2, 2)
"""Offsets at which the first heads of a layer look to begin with."""
PEAK = 12.0
"""About the score of such a head there, where chance gives 0."""


class BERTEncoder(nn.Module):
    """Token, segment and learned position embeddings, then a post-norm transformer; its subclasses add the heads.

    Source: Devlin et al. 2019, section 3; sizes from its released code.
    Departs: dropout is 0 unless asked for; padding has no effect at all, whatever its ids are; for the initial weights see
    `_init_weights`.

    Raises:
        ValueError: a size is not positive, embed_dim is odd, or dropout is not in [0, 1).
    """

    heads: tuple[str, ...] = ("pooler", "mlm_head", "nsp_head", "classifier")
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
    ):
        super().__init__()
        sizes = {"vocab_size": vocab_size, "max_seq_len": max_seq_len, "num_layers": num_layers, "num_heads": num_heads}
        for name, value in {**sizes, "embed_dim": embed_dim, "mlp_ratio": mlp_ratio}.items():
            if value <= 0:
                raise ValueError(f"{name} {value} is not positive")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout {dropout} is not in [0, 1)")
        self.max_seq_len, self.dropout = max_seq_len, dropout
        self.token_embedding = nn.Embedding(vocab_size, embed_dim)
        self.segment_embedding = nn.Embedding(2, embed_dim)
        self.position_embedding = nn.Embedding(max_seq_len, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        blocks = nn.ModuleList(
            TransformerBlock(
                embed_dim, num_heads, mlp_ratio=mlp_ratio, dropout=dropout, norm_first=False, layer_norm_eps=LAYER_NORM_EPS
            )
            for _ in range(num_layers)
        )
        self.blocks = cast(Sequence[TransformerBlock], blocks)

    def features(
        self, input_ids: Int[Tensor, "B T"], segment_ids: Int[Tensor, "B T"], attention_mask: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        """Hidden states of the last layer.

        segment_ids: 0 for the first sentence and what stands around it, 1 for the second.
        attention_mask: True = a token, False = padding, which is not attended to.

        Raises: ValueError when T is more than max_seq_len.
        """
        x = self._embed(input_ids, segment_ids, attention_mask)
        for block in self.blocks:
            x = block(x, mask=attention_mask[:, None, None, :])
        return x

    def attention_maps(
        self, input_ids: Int[Tensor, "B T"], segment_ids: Int[Tensor, "B T"], attention_mask: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "L B H T T"]:
        """Attention weights of every layer: row t is the query, its columns the tokens attended to."""
        x = self._embed(input_ids, segment_ids, attention_mask)
        mask, maps = attention_mask[:, None, None, :], []
        for block in self.blocks:
            maps.append(block.attention_weights(x, mask=mask))
            x = block(x, mask=mask)
        return torch.stack(maps)

    @property
    def flops_per_token(self) -> int:
        """Floating-point operations of training on one token, forward and backward, heads left out: 6 N + 12 L D T.

        N counts the blocks' parameters; embeddings are looked up. Source: Chowdhery et al. 2022 (PaLM), appendix B.
        """
        num_params = sum(p.numel() for block in self.blocks for p in block.parameters())
        return 6 * num_params + 12 * len(self.blocks) * self.token_embedding.embedding_dim * self.max_seq_len

    def _embed(self, input_ids: Tensor, segment_ids: Tensor, attention_mask: Tensor) -> Float[Tensor, "B T D"]:
        length = input_ids.shape[1]
        if length > self.max_seq_len:
            raise ValueError(f"sequence of {length} tokens is longer than max_seq_len {self.max_seq_len}")
        x = self.token_embedding(input_ids) + self.segment_embedding(segment_ids) + self.position_embedding.weight[:length]
        x = F.dropout(self.norm(x), self.dropout, self.training)
        return x.masked_fill(~attention_mask[:, :, None], 0.0)

    def _init_weights(self) -> None:
        """Embeddings and matrices with std 0.02 at the published width of 768, wider in narrower networks; positions start
        as sinusoids, 2.5 times as large, and the first heads of every layer at neighbours.

        Without the latter a small network stays at the words' frequencies for thousands of steps: averaging over all tokens
        says little about a hidden one, and which tokens stand beside it is found late.
        """
        embed_dim = self.token_embedding.embedding_dim
        std = 0.02 * math.sqrt(768 / embed_dim)
        for module in self.modules():
            if isinstance(module, nn.Embedding | nn.Linear):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        waves = sinusoidal(torch.arange(self.max_seq_len), embed_dim)
        with torch.no_grad():
            self.position_embedding.weight.copy_(waves * math.sqrt(2) * 2.5 * std)
            for block in self.blocks:
                _look_at_neighbours(block.attention.qkv.weight, block.attention.num_heads)


def _look_at_neighbours(qkv: Float[Tensor, "rows D"], num_heads: int) -> None:
    """Queries and keys of the first heads with which, where `sinusoidal` positions prevail, query t scores highest with
    position t + offset: keys read the fastest waves, queries the same waves turned on by the offset.
    """
    embed_dim = qkv.shape[1]
    head_dim = embed_dim // num_heads
    num_waves = head_dim // 2
    even = torch.arange(num_waves) * 2
    frequency = 10_000.0 ** (-even / embed_dim)
    gain = math.sqrt(PEAK / math.sqrt(head_dim))
    for head, offset in enumerate(NEIGHBOURS[:num_heads]):
        query, key = qkv.new_zeros(2, head_dim, embed_dim)
        turn = frequency * offset
        key[even, even] = key[even + 1, even + 1] = gain
        query[even, even] = query[even + 1, even + 1] = gain * turn.cos()
        query[even, even + 1], query[even + 1, even] = gain * turn.sin(), -gain * turn.sin()
        rows = slice(head * head_dim, (head + 1) * head_dim)
        qkv[:embed_dim][rows], qkv[embed_dim : 2 * embed_dim][rows] = query, key


class MLMHead(nn.Module):
    """Logits of the token at each place, by the token embedding's own weights and a bias.

    Source: Devlin et al. 2019, section 3.1 and its released code (a dense layer, GELU and layer norm come first).
    """

    def __init__(self, embed_dim: int, vocab_size: int):
        super().__init__()
        self.dense = Linear(embed_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, features: Float[Tensor, "*batch D"], token_embedding: Float[Tensor, "V D"]) -> Float[Tensor, "*batch V"]:
        return linear(self.norm(F.gelu(self.dense(features))), token_embedding, self.bias)


class Pooler(nn.Module):
    """A sequence as one vector: its first token's state through a dense layer and tanh."""

    def __init__(self, embed_dim: int):
        super().__init__()
        self.dense = Linear(embed_dim, embed_dim)

    def forward(self, features: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        return self.dense(features[:, 0]).tanh()


@dataclass
class PreTrainingLogits:
    """Logits of the predicted tokens and, with nsp, of 0 = the second sentence follows and 1 = it does not."""

    mlm: Float[Tensor, "*positions V"]
    nsp: Float[Tensor, "B 2"] | None


@final
class BERT(BERTEncoder):
    """BERT for pre-training: masked tokens, and whether the second sentence follows the first.

    Source: Devlin et al. 2019, section 3.1; without next-sentence prediction (nsp: false) Liu et al. 2019, section 4.2.
    """

    def __init__(self, vocab_size: int, max_seq_len: int, *, nsp: bool = True, embed_dim: int = 768, **encoder: Any):
        super().__init__(vocab_size, max_seq_len, embed_dim=embed_dim, **encoder)
        self.mlm_head = MLMHead(embed_dim, vocab_size)
        self.pooler = Pooler(embed_dim) if nsp else None
        self.nsp_head = Linear(embed_dim, 2) if nsp else None
        self._init_weights()

    def forward(
        self,
        input_ids: Int[Tensor, "B T"],
        segment_ids: Int[Tensor, "B T"],
        attention_mask: Bool[Tensor, "B T"],
        predicted: Int[Tensor, "M"] | None = None,
    ) -> PreTrainingLogits:
        """predicted: places b * T + t whose tokens are wanted (then mlm is (M, V)); all of them (B, T, V) without it."""
        features = self.features(input_ids, segment_ids, attention_mask)
        places = features if predicted is None else features.flatten(0, 1).index_select(0, predicted)
        mlm = self.mlm_head(places, self.token_embedding.weight)
        nsp = None if self.pooler is None or self.nsp_head is None else self.nsp_head(self.pooler(features))
        return PreTrainingLogits(mlm, nsp)


@final
class BERTClassifier(BERTEncoder):
    """BERT with a class for each sequence: a sentence or a pair of sentences.

    Source: Devlin et al. 2019, section 4.1.
    """

    def __init__(self, vocab_size: int, max_seq_len: int, num_classes: int, *, embed_dim: int = 768, **encoder: Any):
        super().__init__(vocab_size, max_seq_len, embed_dim=embed_dim, **encoder)
        self.pooler = Pooler(embed_dim)
        self.classifier = Linear(embed_dim, num_classes)
        self._init_weights()

    def forward(
        self, input_ids: Int[Tensor, "B T"], segment_ids: Int[Tensor, "B T"], attention_mask: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B C"]:
        pooled = self.pooler(self.features(input_ids, segment_ids, attention_mask))
        return self.classifier(F.dropout(pooled, self.dropout, self.training))


@final
class BERTTagger(BERTEncoder):
    """BERT with a class for each token.

    Source: Devlin et al. 2019, section 5.3.
    """

    def __init__(self, vocab_size: int, max_seq_len: int, num_classes: int, *, embed_dim: int = 768, **encoder: Any):
        super().__init__(vocab_size, max_seq_len, embed_dim=embed_dim, **encoder)
        self.classifier = Linear(embed_dim, num_classes)
        self._init_weights()

    def forward(
        self, input_ids: Int[Tensor, "B T"], segment_ids: Int[Tensor, "B T"], attention_mask: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T C"]:
        features = self.features(input_ids, segment_ids, attention_mask)
        return self.classifier(F.dropout(features, self.dropout, self.training))
