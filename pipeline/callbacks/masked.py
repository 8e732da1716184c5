"""What a masked language model guesses, seen at every validation."""

from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import move_data_to_device

from datamodules.batch import IGNORE_INDEX
from datamodules.encoded import SpecialIds
from datamodules.sentence_pairs import SentencePairDataModule
from datamodules.tokenizers.base import Tokenizer
from lit_models.bert import LitBERT
from pipeline.callbacks.parts import datamodule
from pipeline.fill import shown

COLUMNS = ("place", "token", "guess", "probability")


class MaskedSamples(Callback):
    """The guesses in the first sequences of the validation split, masked once for all: a W&B table `masked` and
    run_dir/samples/step_*.txt.

    Of the tokens to be guessed some are not masked: in braces stands another one, or the true one. Places count from [CLS], 0.

    Args:
        num_samples: how many sequences.
    """

    def __init__(self, num_samples: int = 4) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it must be at least 1")
        self.num_samples = num_samples
        self.first = ""  # of the last validation's sequences, with its guesses

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, LitBERT):
            raise ValueError(f"MaskedSamples shows what LitBERT guesses, and the model is {type(pl_module).__name__}")

    @torch.no_grad()
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, LitBERT)
        data: SentencePairDataModule = datamodule(trainer)
        tokenizer, dataset = data.tokenizer, data.dataset("validation")
        indices = np.arange(min(self.num_samples, len(dataset)))
        batch = dataset[0, indices, indices]
        guesses = pl_module.predict_step(move_data_to_device(batch, pl_module.device), 0)
        texts = [
            masked_text(ids[mask].tolist(), labels[mask].tolist(), tokenizer)
            for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True)
        ]
        rows: list[list[tuple[int, str, str, float]]] = [[] for _ in texts]
        columns = (guesses[name].tolist() for name in ("index", "place", "label", "prediction", "probability"))
        for index, place, label, prediction, probability in zip(*columns, strict=True):
            rows[index].append((place, shown(tokenizer, label), shown(tokenizer, prediction), probability))
        tables = [f"{text}\n{as_table(found)}" for text, found in zip(texts, rows, strict=True)]
        self.first = tables[0]
        path = Path(trainer.default_root_dir) / "samples" / f"step_{trainer.global_step:06d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n\n---\n\n".join(tables) + "\n", encoding="utf-8")
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                step = trainer.global_step
                table = [[step, text, *row] for text, found in zip(texts, rows, strict=True) for row in found]
                logger.log_table("masked", columns=["step", "text", *COLUMNS], data=table, step=step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and self.first:
            print(f"\nguesses in a text of the validation split:\n{self.first}\n")


def masked_text(ids: list[int], labels: list[int], tokenizer: Tokenizer) -> str:
    """The text of a sequence: special tokens by name, other tokens that are to be guessed in braces."""
    special = SpecialIds.of(tokenizer)
    text, done = "", 0
    for place, (token, label) in enumerate(zip(ids, labels, strict=True)):
        if label == IGNORE_INDEX and token not in (special.cls, special.sep):
            continue
        piece = tokenizer.decode([token], skip_special_tokens=False)
        space = tokenizer.decode([label])[:1] == " " if token == special.mask else label == IGNORE_INDEX or piece[:1] == " "
        if label != IGNORE_INDEX and token != special.mask:
            piece = "{" + piece.removeprefix(" ") + "}"
        text += tokenizer.decode(ids[done:place]) + (" " if space else "") + piece
        done = place + 1
    return (text + tokenizer.decode(ids[done:])).strip()


def as_table(rows: list[tuple[int, str, str, float]]) -> str:
    """Columns of text, each as wide as its widest cell."""
    cells = [COLUMNS, *((str(place), token, guess, f"{probability:.4f}") for place, token, guess, probability in rows)]
    width = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (f"{p:>{width[0]}}  {t:<{width[1]}}  {g:<{width[2]}}  {q:>{width[3]}}" for p, t, g, q in cells)
    return "\n".join(lines)
