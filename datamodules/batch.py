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


class MaskedBatch(TypedDict):
    """Sequences of one or two sentences, some of whose tokens are hidden: [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    `labels[b, t]` is the token that stood where one is to be predicted, IGNORE_INDEX elsewhere.
    `next_sentence[b]` is 0 where B follows A in their document, 1 where B is from another document.
    """

    input_ids: Tensor  # (B, T) int64
    segment_ids: Tensor  # (B, T) int64: 0 up to the first [SEP], 1 after it
    attention_mask: Tensor  # (B, T) bool: True = a token, False = padding
    labels: Tensor  # (B, T) int64
    predicted: Tensor  # (M,) int64: the places b * T + t that have a label
    next_sentence: NotRequired[Tensor]  # (B,) int64
    predicted_per_pair: float  # tokens to predict over pairs, in the whole optimizer step: all micro-batches and ranks
    num_tokens: int  # tokens without padding
    index: Tensor  # (B,) int64: number of the sample in its split


class SequenceBatch(TypedDict):
    """Sentences or pairs of sentences with a class each, or with a class for each word."""

    input_ids: Tensor  # (B, T) int64
    segment_ids: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) bool
    labels: Tensor  # (B,) int64, or for words (B, T); IGNORE_INDEX where there is none
    word_starts: NotRequired[Tensor]  # (B, T) bool: first tokens of words, where their class is predicted; for words only
    num_tokens: int  # without padding
    index: Tensor  # (B,) int64


class ImageBatch(TypedDict):
    """Images with a class each; mixed ones with two.

    Of a mixed image `label_weight` is the share of `labels`, the rest is that of `other_labels`.
    """

    images: Tensor  # (B, 3, H, W) float32, normalised
    labels: Tensor  # (B,) int64; IGNORE_INDEX where there is none
    other_labels: NotRequired[Tensor]  # (B,) int64
    label_weight: NotRequired[Tensor]  # (B,) float32
    num_images: int
    index: Tensor  # (B,) int64: number of the sample in its split


class ImageTextBatch(TypedDict):
    """Pairs of an image and a text: in training each image with one of its captions, drawn anew, in evaluation with the first.

    Equal captions have equal numbers, equal images too. In evaluation a batch also brings every caption that its images are the
    first to have, in P prompts each, and says which images and captions belong together.
    """

    images: Tensor  # (B, 3, H, W) float32, normalised
    input_ids: Tensor  # (B, T) int64: the texts, each ended by the end token; padding after it
    caption_numbers: Tensor  # (B,) int64: which of the split's captions a text is
    image_numbers: Tensor  # (B,) int64: which of the split's distinct images
    num_pairs: int
    micro_batch_size: int  # pairs that one device takes at once
    index: Tensor  # (B,) int64: number of the sample in its split
    prompts: NotRequired[Tensor]  # (M, P, T) int64
    new_captions: NotRequired[Tensor]  # (M,) int64: whose prompts these are
    is_class: NotRequired[Tensor]  # (M,) bool: the caption is one of the training split, too
    groups: NotRequired[Tensor]  # (B,) int64: the part of the data that an image belongs to
    pairs: NotRequired[Tensor]  # (L, 2) int64: index and caption number of all that belong together


class PreferenceBatch(TypedDict):
    """Pairs of responses to one prompt: the B chosen ones, then the B rejected ones. Each row is prompt, response, padding."""

    input_ids: Tensor  # (2B, T) int64
    lengths: Tensor  # (2B,) int64: tokens without padding
    prompt_lengths: Tensor  # (2B,) int64
    num_pairs: int
    index: Tensor  # (B,) int64: number of the sample in its split


class PromptBatch(TypedDict):
    """Prompts, padded on the right."""

    input_ids: Tensor  # (B, P) int64
    lengths: Tensor  # (B,) int64: tokens without padding
    seeds: Tensor  # (B,) int64: what is drawn about a prompt follows from it, a function of (seed, epoch, sample)
    micro_batch_size: int  # responses that one device takes at once
    index: Tensor  # (B,) int64: number of the sample in its split
