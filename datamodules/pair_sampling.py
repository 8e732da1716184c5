"""Pairs of sentences drawn from documents, with hidden tokens: the samples of BERT's pre-training."""

import numpy as np
import torch

from datamodules.batch import IGNORE_INDEX, MaskedBatch
from datamodules.draws import uniform
from datamodules.encoded import SpecialIds
from datamodules.masking import corrupt, num_selected, select
from datamodules.order import Key
from datamodules.sentence_cache import Sentences
from datamodules.tokenizers.base import Tokenizer

_OFFSET, _SHORT, _LENGTH, _BORDER, _FOLLOWS, _OTHER = range(10, 16)
"""What a draw is for (datamodules.masking has those below 10)."""
SHORT = 0.1
"""Share of the sequences that are drawn shorter than they could be, as in the released code of BERT."""


class SentencePairs:
    """[CLS] A [SEP] B [SEP], drawn anew in every epoch; or [CLS] A [SEP] without next-sentence prediction.

    A window of about max_seq_len tokens moves over each document, from an offset drawn for (epoch, document), and begins where
    a sentence does. A border between two of its sentences is drawn: A is what comes before. With probability 1/2 B is what
    comes after (next_sentence 0), else sentences of another document, from a random one on, up to the same length (1).
    A sentence of more than half a window is cut into pieces, which count as sentences: no text is lost.

    Source: Devlin et al. 2019, appendix A.2.
    """

    def __init__(
        self, sentences: Sentences, special: SpecialIds, tokenizer: Tokenizer, *, max_seq_len: int, seed: int, nsp: bool,
        whole_word: bool, mask_fraction: float,
    ) -> None:  # fmt: skip
        self.file, self.special, self.nsp = sentences.file, special, nsp
        self.seed, self.whole_word, self.mask_fraction = seed, whole_word, mask_fraction
        self.budget = max_seq_len - (3 if nsp else 2)  # tokens of text in a window
        self.edges, self.ordinary = tokenizer.word_edges(), tokenizer.token_bytes() > 0  # [UNK] is never to be predicted
        self.ordinary_ids = np.flatnonzero(self.ordinary)
        self.all_ordinary = tokenizer.unk_id is None or not (self.file.ids == tokenizer.unk_id).any()
        self.starts, self.documents, self.num_cut = cut_long(sentences, max(1, self.budget // 2))
        num_sentences = np.diff(self.documents)
        ends = self.starts[self.documents]
        windows = np.maximum(1, np.diff(ends) // self.budget) * (num_sentences >= (2 if nsp else 1))
        self.document_of = np.repeat(np.arange(len(windows)), windows)  # (N,)
        self.window_of = np.arange(len(self.document_of)) - np.repeat(np.cumsum(windows) - windows, windows)  # (N,)
        self._lengths: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.document_of)

    def lengths(self, epoch: int) -> np.ndarray:
        """(N,) tokens of each sample, special ones included."""
        if self._lengths is None or self._lengths[0] != epoch:
            _, length_a, _, length_b, _ = self._spans(epoch, np.arange(len(self)))
            self._lengths = epoch, length_a + length_b + (3 if self.nsp else 2)
        return self._lengths[1]

    def _spans(self, epoch: int, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        """First token and length of A, the same of B, and next_sentence; each (B,)."""
        document = self.document_of[indices]

        def draw(what: int, of: np.ndarray = indices) -> np.ndarray:
            return uniform(self.seed, epoch, of, what)

        first, last = self.documents[document], self.documents[document + 1]  # sentences
        begin, end = self.starts[first], self.starts[last]  # tokens
        room = np.where(draw(_SHORT) < SHORT, 2 + (draw(_LENGTH) * (self.budget - 1)).astype(np.int64), self.budget)
        latest = np.searchsorted(self.starts, np.maximum(begin, end - self.budget))  # its window reaches the document's end
        share = (self.window_of[indices] + draw(_OFFSET, document)) / np.maximum(1, (end - begin) // self.budget)
        place = begin + (share * (self.starts[latest + 1] - begin)).astype(np.int64)
        sentence = np.searchsorted(self.starts, place, side="right") - 1
        if not self.nsp:
            start = self.starts[sentence]
            nothing = np.zeros_like(start)
            return start, np.minimum(room, end - start), nothing, nothing, nothing

        def num_borders() -> np.ndarray:
            stop = np.minimum(self.starts[sentence] + room, end)
            return np.searchsorted(self.starts, stop, side="left") - 1 - sentence

        room = np.where(num_borders() > 0, room, self.budget)
        sentence = np.where(num_borders() > 0, sentence, np.maximum(first, sentence - 1))
        border = sentence + 1 + (draw(_BORDER) * num_borders()).astype(np.int64)
        start, split = self.starts[sentence], self.starts[border]
        others = len(self.starts) - 1 - (last - first)
        other = (draw(_OTHER) * others).astype(np.int64)
        other = np.where(other >= first, other + last - first, other)
        other_end = self.starts[self.documents[np.searchsorted(self.documents, other, side="right")]]
        random = draw(_FOLLOWS) >= 0.5
        start_b = np.where(random, self.starts[other], split)
        stop_b = np.where(random, np.minimum(other_end, start_b + start + room - split), np.minimum(start + room, end))
        return start, split - start, start_b, stop_b - start_b, random.astype(np.int64)

    def __getitem__(self, key: Key) -> MaskedBatch:
        epoch, indices, step = key
        spans = self._spans(epoch, indices)
        ids, segments, words = self._assemble(*spans[:4])
        draws = self.seed, epoch, indices
        selected = select(draws, words, self.mask_fraction)
        hidden = corrupt(draws, ids, selected, mask_id=self.special.mask, ordinary_ids=self.ordinary_ids)
        batch: MaskedBatch = {
            "input_ids": torch.from_numpy(hidden),
            "segment_ids": torch.from_numpy(segments.clip(0)),
            "attention_mask": torch.from_numpy(segments >= 0),
            "labels": torch.from_numpy(np.where(selected, ids, IGNORE_INDEX)),
            "predicted": torch.from_numpy(np.flatnonzero(selected)),
            "predicted_per_pair": self._num_predicted(epoch, step) / len(step),
            "num_tokens": int((segments >= 0).sum()),
            "index": torch.from_numpy(indices),
        }
        if self.nsp:
            batch["next_sentence"] = torch.from_numpy(spans[4])
        return batch

    def _num_predicted(self, epoch: int, step: np.ndarray) -> int:
        spans = self._spans(epoch, step)
        draws = self.seed, epoch, step
        if self.all_ordinary and not self.whole_word:
            return int(num_selected(draws, spans[1] + spans[3], self.mask_fraction).sum())
        return int(select(draws, self._assemble(*spans[:4])[2], self.mask_fraction).sum())

    def _assemble(
        self, start_a: np.ndarray, length_a: np.ndarray, start_b: np.ndarray, length_b: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(B, T) ids; segments, -1 for padding; number of each token's word, -1 where there is no text."""
        length = length_a + length_b + (3 if self.nsp else 2)
        column = np.arange(length.max())
        in_a = (column >= 1) & (column <= length_a[:, None])
        in_b = (column >= 2 + length_a[:, None]) & (column < length[:, None] - 1)
        place = np.where(in_a, start_a[:, None] + column - 1, start_b[:, None] + column - 2 - length_a[:, None])
        inside = (in_a | in_b) if self.nsp else in_a
        ids = np.full(inside.shape, self.special.sep, dtype=np.int64)
        ids[:, 0] = self.special.cls
        ids[inside] = self.file.ids[place[inside]]
        segments = (column >= 2 + length_a[:, None]).astype(np.int64)
        padding = column >= length[:, None]
        ids[padding], segments[padding] = self.special.pad, -1
        inside &= self.ordinary[ids]
        if not self.whole_word:
            return ids, segments, np.where(inside, column, -1)
        begins, ends = self.edges[ids, 0], self.edges[ids, 1]
        word = np.ones_like(inside)
        word[:, 1:] = ~(ends[:, :-1] & begins[:, 1:])
        return ids, segments, np.where(inside, word.cumsum(1), -1)


def cut_long(sentences: Sentences, limit: int) -> tuple[np.ndarray, np.ndarray, int]:
    """starts and documents with sentences of more than `limit` tokens cut into pieces, and how many sentences those were."""
    lengths = np.diff(sentences.starts)
    pieces = np.maximum(1, -(-lengths // limit))
    within = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    starts = np.append(np.repeat(sentences.starts[:-1], pieces) + within * limit, sentences.starts[-1])
    before = np.concatenate([[0], np.cumsum(pieces)])
    return starts, before[sentences.documents], int((pieces > 1).sum())
