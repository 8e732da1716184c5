"""The contract between data and model: one TypedDict for each kind of batch.

Shape letters, everywhere in the project: B batch, T time, S source time, D embed, H heads, K head dim, V vocabulary,
N patches or pairs, C channels or classes.
"""

from typing import NotRequired, TypedDict

from torch import Tensor

IGNORE_INDEX = -100
"""Label of a position that has no loss."""


class TokenBatch(TypedDict):
    """Token ids and what each position is to predict.

    `labels[b, t]` is the token that follows `input_ids[b, t]` (the data shifts, a model never does), or IGNORE_INDEX.
    """

    input_ids: Tensor  # (B, T) int64
    labels: Tensor  # (B, T) int64
    num_bytes: NotRequired[Tensor]  # (B,) int64: UTF-8 bytes that the labels stand for; in evaluation only
    index: NotRequired[Tensor]  # (B,) int64: number of the sample in its split; in evaluation only
