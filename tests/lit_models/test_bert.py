"""BERT's objectives: the sum of two exact means, on any cut of the batch; evaluation; warm starts that lose nothing."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from torch.nn import functional as F

from datamodules.order import TrainOrder
from datamodules.sentence_pairs import SentencePairDataModule
from datamodules.sources.files import TextFiles
from datamodules.tokenizers.bytes import ByteTokenizer
from lit_models.bert import LitBERT
from lit_models.bert_classifier import LitBERTClassifier
from lit_models.nn.bert import BERT, BERTClassifier

SIZES = {"vocab_size": 261, "max_seq_len": 48, "num_layers": 1, "num_heads": 2, "embed_dim": 16}
TEXT = "One of {0}. Then {0} goes on with a few words more. And {0}, at last, ends! Is that so? It is {0} after all. "


@pytest.fixture
def make_data(tmp_path: Path) -> Any:
    for i, name in enumerate(["ant", "bear", "crane", "dolphin", "eel", "fox", "goose", "hare", "ibis", "jay", "kite", "lynx"]):
        (tmp_path / f"{i}.txt").write_text(TEXT.format(name) * (1 + i % 3))

    def make(**kwargs: Any) -> SentencePairDataModule:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        source = TextFiles(str(tmp_path / "*.txt"), val_fraction=0.4)
        arguments = {"batch_size": 8, "max_seq_len": 48, "cache_dir": str(tmp_path / "cache"), **kwargs}
        return SentencePairDataModule(source, ByteTokenizer(special), **arguments)

    return make


def trained(data: SentencePairDataModule, *, steps: int = 1, lr: float = 0.0, accumulate: int = 1) -> LitBERT:
    torch.manual_seed(0)
    model = LitBERT(BERT(**SIZES, nsp=data.nsp), partial(torch.optim.SGD, lr=lr))
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, max_steps=steps,
        max_epochs=-1, enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False, limit_val_batches=0,
        accumulate_grad_batches=accumulate,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    return model


def first_batch(data: SentencePairDataModule) -> Any:
    """The first optimizer step's, all of it."""
    dataset = data.dataset("train")
    sizes = {"batch_size": 8, "micro_batch_size": 8, "rank": 0, "world_size": 1, "steps_per_epoch": data.steps_per_epoch}
    return dataset[next(iter(TrainOrder(dataset, seed=0, start=0, stop=1, **sizes)))]


@pytest.mark.parametrize("whole_word", [False, True])
def test_the_loss_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs(make_data: Any, whole_word: bool) -> None:
    data = make_data(whole_word=whole_word)
    model = trained(data)
    batch = first_batch(data)
    logits = model.net(batch["input_ids"], batch["segment_ids"], batch["attention_mask"])
    mlm = F.cross_entropy(logits.mlm.flatten(0, 1), batch["labels"].flatten())  # a mean over labels that are not -100
    nsp = F.cross_entropy(logits.nsp, batch["next_sentence"])
    metrics = model.step_metrics()
    assert metrics["train/mlm_loss"] == pytest.approx(float(mlm), rel=1e-5)
    assert metrics["train/nsp_loss"] == pytest.approx(float(nsp), rel=1e-5)
    assert metrics["train/loss"] == pytest.approx(float(mlm + nsp), rel=1e-5)
    assert 0 <= metrics["train/padding"] < 0.3


@pytest.mark.parametrize("options", [{}, {"whole_word": True}, {"nsp": False}])
@pytest.mark.parametrize("micro", [1, 2, 4])
def test_d03_micro_batches_of_uneven_lengths_change_nothing(make_data: Any, micro: int, options: dict[str, Any]) -> None:
    whole = trained(make_data(**options), steps=3, lr=0.5)
    parts = trained(make_data(micro_batch_size=micro, **options), steps=3, lr=0.5, accumulate=8 // micro)
    assert parts.trainer.global_step == whole.trainer.global_step == 3
    for name, value in whole.net.state_dict().items():
        assert torch.allclose(parts.net.state_dict()[name], value, atol=2e-6), name


@pytest.mark.parametrize("nsp", [True, False])
def test_d05_every_parameter_has_a_gradient(make_data: Any, nsp: bool) -> None:
    data = make_data(nsp=nsp)
    net = BERT(**SIZES, nsp=nsp)
    LitBERT(net, partial(torch.optim.SGD, lr=0.1)).step(first_batch(data)).sum.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


def test_o01_a_batch_without_a_predicted_token_is_no_nan(make_data: Any) -> None:
    batch = first_batch(make_data(nsp=False))
    batch |= {"labels": torch.full_like(batch["labels"], -100), "predicted": batch["predicted"][:0], "predicted_per_pair": 0.0}
    net = BERT(**SIZES, nsp=False)
    loss = LitBERT(net, partial(torch.optim.SGD, lr=0.1)).step(batch)
    loss.sum.backward()
    assert float(loss.sum) == 0 and int(loss.count) == 0
    assert all(p.grad is None or p.grad.abs().sum() == 0 for p in net.parameters())


@pytest.mark.parametrize("eval_batch_size", [1, 3, 100])
def test_evaluation_is_exact_whatever_the_batches(make_data: Any, eval_batch_size: int) -> None:
    data = make_data(eval_batch_size=eval_batch_size)
    torch.manual_seed(1)
    model = LitBERT(BERT(**SIZES), partial(torch.optim.SGD, lr=0.1)).eval()
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, use_distributed_sampler=False)
    trainer.validate(model, datamodule=data, verbose=False)
    indices = np.arange(len(data.dataset("validation")))
    batch = data.dataset("validation")[0, indices, indices]
    with torch.no_grad():
        logits = model.net(batch["input_ids"], batch["segment_ids"], batch["attention_mask"])
    counted = batch["labels"] != -100
    mlm = F.cross_entropy(logits.mlm[counted], batch["labels"][counted])
    nsp = F.cross_entropy(logits.nsp, batch["next_sentence"])
    found = model.epoch_metrics
    assert found["val/loss"] == pytest.approx(float(mlm + nsp), rel=1e-5)
    hits = (logits.mlm.argmax(-1) == batch["labels"])[counted].double().mean()
    assert found["val/mlm_accuracy"] == pytest.approx(float(hits), rel=1e-12)
    right = (logits.nsp.argmax(-1) == batch["next_sentence"]).double().mean()
    assert found["val/nsp_accuracy"] == pytest.approx(float(right), rel=1e-12)


# ---- warm start ------------------------------------------------------------------------------------------------------


def saved(path: Path, net: torch.nn.Module, rename: str = "net.") -> Path:
    torch.save({"state_dict": {f"{rename}{name}": value for name, value in net.state_dict().items()}}, path)
    return path


def classifier(init_from: Path | None = None, **kwargs: Any) -> LitBERTClassifier:
    net = BERTClassifier(**{**SIZES, "num_classes": 3, **kwargs})
    return LitBERTClassifier(net, partial(torch.optim.SGD, lr=0.1), init_from=str(init_from) if init_from else None)


@pytest.mark.parametrize("nsp", [True, False])
def test_k07_a_warm_start_takes_all_but_the_heads(tmp_path: Path, nsp: bool, capsys: pytest.CaptureFixture[str]) -> None:
    pretrained = BERT(**SIZES, nsp=nsp)
    fresh = torch.manual_seed(3) and classifier().net.state_dict()
    torch.manual_seed(3)
    started = classifier(saved(tmp_path / "a.ckpt", pretrained)).net.state_dict()
    theirs = pretrained.state_dict()
    for name, value in started.items():
        expected = theirs[name] if name in theirs else fresh[name]
        assert torch.equal(value, expected), name
    said = capsys.readouterr().out
    new = "classifier" if nsp else "classifier, pooler"
    left = "mlm_head, nsp_head" if nsp else "mlm_head"
    assert f"new: {new}; left: {left}" in said


def test_k07_a_head_for_other_classes_starts_anew_and_this_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    three = saved(tmp_path / "three.ckpt", classifier().net)
    assert "new" not in (capsys.readouterr(), classifier(three), capsys.readouterr().out)[-1]
    classifier(three, num_classes=2)
    assert "new: classifier" in capsys.readouterr().out


@pytest.mark.parametrize("rename", ["", "net.model.", "other."])
def test_k07_renamed_weights_are_an_error_not_a_run(tmp_path: Path, rename: str) -> None:
    path = saved(tmp_path / "a.ckpt", BERT(**SIZES), rename)
    with pytest.raises(ValueError, match="is a checkpoint of another model: .* missing"):
        classifier(path)


def test_k07_another_width_is_an_error_that_names_both(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.ckpt", BERT(**{**SIZES, "embed_dim": 32}))
    with pytest.raises(ValueError, match=r"\(32.*\) there, \(16.*\) here"):
        classifier(path)


def test_a_run_folder_will_do_and_an_empty_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="a folder without checkpoints"):
        classifier(tmp_path / "run")
    pretrained = BERT(**SIZES)
    saved(folder / "last.ckpt", pretrained)
    started = classifier(tmp_path / "run").net.state_dict()
    assert torch.equal(started["blocks.0.mlp.fc_in.weight"], pretrained.state_dict()["blocks.0.mlp.fc_in.weight"])
