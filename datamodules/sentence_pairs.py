"""Pre-training of BERT on running text: masked tokens and next sentences."""

from functools import cached_property

from lightning.pytorch.utilities import rank_zero_only

from datamodules import sentence_cache
from datamodules.base import chosen_split
from datamodules.encoded import EncodedDataModule, SpecialIds
from datamodules.pair_sampling import SentencePairs
from datamodules.sources.base import TextSource
from datamodules.tokenizers.base import Tokenizer


class SentencePairDataModule(EncodedDataModule):
    """Masked tokens and next-sentence prediction on a text source. Batches are `MaskedBatch`.

    Args:
        source: where the documents come from.
        nsp: pairs of sentences for next-sentence prediction; without it single sequences (RoBERTa). Linked to the network.
        whole_word: mask whole words instead of tokens.
        mask_fraction: share of the tokens that are to be predicted.
        tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir: see
            EncodedDataModule; a sample of a batch is a pair.

    Raises:
        ValueError: a split has no pair, one document only, or a size is wrong.
    """

    def __init__(
        self, source: TextSource, tokenizer: Tokenizer, batch_size: int, max_seq_len: int = 128, nsp: bool = True,
        whole_word: bool = False, mask_fraction: float = 0.15, init_from: str | None = None,
        micro_batch_size: int | None = None, eval_batch_size: int | None = None, num_workers: int = 0, seed: int = 0,
        cache_dir: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            tokenizer, batch_size, max_seq_len, init_from, micro_batch_size, eval_batch_size, num_workers, seed, cache_dir
        )
        if not 0 < mask_fraction < 1:
            raise ValueError(f"mask_fraction is {mask_fraction}; it must lie between 0 and 1")
        self.source, self.nsp, self.whole_word, self.mask_fraction = source, nsp, whole_word, mask_fraction

    @cached_property
    def _prepared(self) -> tuple[Tokenizer, dict[str, SentencePairs]]:
        tokenizer, splits = sentence_cache.prepare(self.source, self._tokenizer, self.cache_dir)
        special = SpecialIds.of(tokenizer)
        datasets = {
            split: SentencePairs(
                sentences, special, tokenizer, max_seq_len=self.max_seq_len, seed=self.seed, nsp=self.nsp,
                whole_word=self.whole_word, mask_fraction=self.mask_fraction,
            )
            for split, sentences in splits.items()
        }  # fmt: skip
        for split, dataset in datasets.items():
            self._check(split, dataset)
        return tokenizer, datasets

    def _check(self, split: str, dataset: SentencePairs) -> None:
        num_documents = len(dataset.documents) - 1
        if self.nsp and num_documents < 2:
            raise ValueError(
                f"{self.source.describe()}: the {split} split has {num_documents} document(s), and next-sentence prediction"
                " needs sentences of other documents: give more, or set data.init_args.nsp to false"
            )
        if not len(dataset):
            least = "of two sentences" if self.nsp else "with a sentence"
            raise ValueError(f"{self.source.describe()}: the {split} split has no document {least}")
        if dataset.num_cut:
            limit = f"half of max_seq_len {self.max_seq_len}"
            rank_zero_only(print)(f"{split}: {dataset.num_cut} sentences longer than {limit} are cut into pieces")

    def prepare(self) -> None:
        self._prepared  # noqa: B018

    @property
    def tokenizer(self) -> Tokenizer:
        return self._prepared[0]

    def dataset(self, split: str) -> SentencePairs:
        return chosen_split(self.source, self._prepared[1], split)
