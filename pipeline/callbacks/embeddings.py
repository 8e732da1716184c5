"""Where a BERT puts its sequences, as a picture."""

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from datamodules.sentence_pairs import SentencePairDataModule
from datamodules.sentences import SentenceDataModule
from lit_models.nn.bert import BERTEncoder
from pipeline import figures
from pipeline.callbacks.parts import datamodule, publish

Data = SentenceDataModule | SentencePairDataModule


class EmbeddingMap(Callback):
    """The [CLS] states of validation samples in the plane of their two principal components, coloured by class, after training.

    run_dir/figures/cls_map.png, and W&B's history. In pre-training the class is whether the second sentence follows the first.

    Args:
        num_samples: the first ones of the validation split.
    """

    def __init__(self, num_samples: int = 500) -> None:
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; it must be at least 1")
        self.num_samples = num_samples

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(datamodule(trainer), Data):
            kinds = "SentenceDataModule and SentencePairDataModule"
            raise ValueError(f"EmbeddingMap is for {kinds}, and the data are of {type(datamodule(trainer)).__name__}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        data: Data = datamodule(trainer)
        net, (column, names) = cast(BERTEncoder, pl_module.net), classes_of(data)
        dataset, was_training = data.dataset("validation"), net.training
        indices = np.arange(min(self.num_samples, len(dataset)))
        states: list[Tensor] = []
        labels: list[int] = []
        net.eval()
        for first in range(0, len(indices), data.eval_batch_size):
            chosen = indices[first : first + data.eval_batch_size]
            batch: Mapping[str, Tensor] = move_data_to_device(dataset[0, chosen, chosen], pl_module.device)
            states.append(cls_states(net, batch))
            labels += batch[column].tolist() if column else [0] * len(chosen)
        net.train(was_training)
        points, shares = principal_components(torch.cat(states))
        publish(trainer, figures.scatter(points, shares.tolist(), labels, names), "cls_map")


def classes_of(data: Data) -> tuple[str | None, list[str]]:
    """Where a batch has the samples' classes, and the classes' names; of samples without a class None and no names."""
    if isinstance(data, SentenceDataModule):
        return "labels", data.classes
    return ("next_sentence", ["follows", "random"]) if data.nsp else (None, [])


@torch.no_grad()
def cls_states(net: BERTEncoder, batch: Mapping[str, Tensor]) -> Tensor:
    """(B, D) last states of the first tokens."""
    return net.features(batch["input_ids"], batch["segment_ids"], batch["attention_mask"])[:, 0]


def principal_components(x: Tensor, num_components: int = 2) -> tuple[Tensor, Tensor]:
    """(N, K) coordinates of the rows of x (N, D) along the directions of largest variance; (K,) their shares of it.

    The largest weight of each direction is positive, so that the same rows always give the same picture.
    """
    centred = x.double().cpu() - x.double().cpu().mean(0)
    variances, directions = torch.linalg.eigh(centred.T @ centred)
    directions = directions[:, -num_components:].flip(1)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    shares = variances[-num_components:].flip(0).clamp(min=0) / variances.sum().clamp(min=1e-300)
    return centred @ (directions * largest.sign()), shares
