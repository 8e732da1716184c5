"""GPT's objective: the next token and no other, its loss and what follows from it, over a whole split."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer

from datamodules.batch import IGNORE_INDEX
from datamodules.order import TrainOrder
from datamodules.sources.files import TextFiles
from datamodules.text import TextDataModule
from datamodules.token_cache import open_tokens
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.tokenizers.chars import CharTokenizer
from lit_models.gpt import LitGPT
from lit_models.nn.gpt import GPT

T = 8
TEXT = "Größe, Maß und Ziel: ein Satz, den man so oder so lesen kann – 12 Zeichen, 3 Wörter. "


@pytest.fixture
def make_data(tmp_path):
    def make(train=TEXT * 4, val=TEXT[:77], tokenizer=None, **kwargs):
        for name, text in {"train": train, "val": val, "test": val}.items():
            (tmp_path / f"{name}.txt").write_text(text)
        train, val, test = (str(tmp_path / f"{name}.txt") for name in ("train", "val", "test"))
        kwargs = {"batch_size": 4, "max_seq_len": T, "cache_dir": str(tmp_path / "cache"), **kwargs}
        return TextDataModule(TextFiles(train, val_paths=val, test_paths=test), tokenizer or ByteTokenizer(), **kwargs)

    return make


def lit(vocab_size, optimizer=partial(torch.optim.AdamW, lr=1e-2), **kwargs):  # noqa: B008
    sizes = {"max_seq_len": T, "num_layers": 1, "num_heads": 2, "embed_dim": 16}
    return LitGPT(GPT(vocab_size, **sizes | kwargs), optimizer)


def louder(model):
    """Weights larger than at initialisation, so that a wrong label shows."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model


def trainer(max_steps=1):
    return Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, max_steps=max_steps,
        max_epochs=-1, enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False, limit_val_batches=1.0,
        check_val_every_n_epoch=None, val_check_interval=10_000,
    )  # fmt: skip


def nats_of(net, ids, shift=1):
    """Cross-entropy in nats of ids[t + shift] given the window up to t, token by token, over the whole text."""
    found = {}
    with torch.no_grad():
        for first in range(0, len(ids) - 1, T):
            logits = net(torch.tensor([ids[first : first + T]])).double()[0]
            for t in range(len(logits)):
                at = first + t + shift
                if first + t + 1 < len(ids) and at < len(ids):
                    row = logits[t].tolist()
                    found[first + t] = math.log(sum(map(math.exp, row))) - row[ids[at]]
    return found


# ---- the labels ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eval_batch_size", [1, 3, 100])
def test_o05_the_loss_is_that_of_the_next_token(make_data, eval_batch_size):
    data = make_data(eval_batch_size=eval_batch_size)
    model = louder(lit(data.vocab_size)).eval()
    ids = data.tokenizer.encode(TEXT[:77])
    assert (len(ids) - 1) % T  # the last window is not full
    trainer().validate(model, datamodule=data, verbose=False)
    nats = {shift: list(nats_of(model.net, ids, shift).values()) for shift in (0, 1, 2)}
    assert len(nats[1]) == len(ids) - 1
    assert model.epoch_metrics["val/loss"] == pytest.approx(sum(nats[1]) / len(nats[1]), rel=1e-6)
    for wrong in (0, 2):
        assert abs(model.epoch_metrics["val/loss"] - sum(nats[wrong]) / len(nats[wrong])) > 1e-2


def test_o05_the_training_loss_is_that_of_the_next_token(make_data):
    data = make_data()
    model = louder(lit(data.vocab_size, partial(torch.optim.SGD, lr=0.0)))
    t = trainer()
    t.fit(model, datamodule=data)
    nats = []
    ((epoch, indices, _),) = TrainOrder(t.train_dataloader.dataset, start=0, stop=1, **t.train_dataloader.order)
    ids = open_tokens(data.dataset("train").path).tolist()
    offset = np.random.default_rng((0, epoch, 1)).integers(T)
    for i in indices:
        window = ids[offset + i * T :][: T + 1]
        nats += nats_of(model.net.eval(), window).values()
    assert len(nats) == 4 * T
    assert model.step_metrics()["train/loss"] == pytest.approx(sum(nats) / len(nats), rel=1e-5)


def test_o05_a_trained_model_predicts_the_next_token_not_the_one_after(make_data):
    text = "abc"
    data = make_data(text * 60, text * 10, CharTokenizer(), batch_size=8)
    model = lit(data.vocab_size)
    trainer(60).fit(model, datamodule=data)
    ids = data.tokenizer.encode(text * 3)[:T]
    predicted = model.net.eval()(torch.tensor([ids]))[0].argmax(-1).tolist()
    decode = data.tokenizer.decode
    assert decode(ids) == "abcabcab" and decode(predicted) == "bcabcabc"
    trainer().validate(model, datamodule=data, verbose=False)
    assert model.epoch_metrics["val/loss"] < 0.5


def per_token(model, batch):
    """Gradient of the loss with respect to the logits: softmax minus the label, so it shows each token's loss. (B, T, V)"""
    kept = []
    hook = model.net.register_forward_hook(lambda module, args, out: (out.retain_grad(), kept.append(out))[0])
    model.step(batch).sum.backward()
    hook.remove()
    return kept[0].grad


def test_o05_rows_do_not_touch_each_other():
    model = louder(lit(11))
    batch = {"input_ids": torch.randint(11, (2, T)), "labels": torch.randint(10, (2, T))}
    before = per_token(model, batch)
    other = {name: value.clone() for name, value in batch.items()}
    other["input_ids"][1] = (other["input_ids"][1] + 3) % 11
    other["labels"][1] += 1
    after = per_token(model, other)
    torch.testing.assert_close(before[0], after[0], rtol=0, atol=1e-6)
    assert (before[1] - after[1]).abs().amax(-1).min() > 0.01  # while every token of row 2 changed
    onehot = torch.nn.functional.one_hot(batch["labels"], 11)
    torch.testing.assert_close(before, model.net(batch["input_ids"]).softmax(-1) - onehot)  # labels stand where they are


def test_labels_of_ignore_index_do_not_count():
    model = louder(lit(11))
    batch = {"input_ids": torch.randint(11, (2, T)), "labels": torch.randint(11, (2, T))}
    batch["labels"][0, :5] = IGNORE_INDEX
    loss = model.step(batch)
    assert loss.count == 2 * T - 5 and loss.metrics == {}
    nats = -model.net(batch["input_ids"]).log_softmax(-1)
    by_hand = sum(nats[b, t, batch["labels"][b, t]] for b in range(2) for t in range(T) if b or t >= 5)
    assert loss.sum.item() == pytest.approx(by_hand.item(), rel=1e-6)
    assert per_token(model, batch)[0, :5].abs().max() == 0


def test_o01_no_label_at_all_is_a_zero_with_a_graph():
    model = louder(lit(11))
    batch = {"input_ids": torch.randint(11, (2, T)), "labels": torch.full((2, T), IGNORE_INDEX)}
    loss = model.step(batch)
    loss.sum.backward()
    assert loss.sum == 0 and loss.count == 0
    assert all(p.grad is not None and p.grad.abs().max() == 0 for p in model.parameters())


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eval_batch_size", [1, 2, 100])
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer(["[UNK]"])], ids=lambda t: t.kind)
@pytest.mark.parametrize("stage", ["validate", "test"])
def test_bits_per_byte_and_perplexity_are_those_of_the_whole_split(make_data, tokenizer, eval_batch_size, stage):
    data = make_data(tokenizer=tokenizer, eval_batch_size=eval_batch_size)
    model = louder(lit(data.vocab_size)).eval()
    getattr(trainer(), stage)(model, datamodule=data, verbose=False)
    nats = nats_of(model.net, data.tokenizer.encode(TEXT[:77])).values()
    num_bytes = len(TEXT[1:77].encode())  # the first character is given
    assert num_bytes > len(TEXT[1:77])  # a character is not a byte
    prefix = {"validate": "val", "test": "test"}[stage]
    assert model.epoch_metrics == {
        f"{prefix}/loss": pytest.approx(sum(nats) / len(nats), rel=1e-6),
        f"{prefix}/bits_per_byte": pytest.approx(sum(nats) / math.log(2) / num_bytes, rel=1e-6),
        f"{prefix}/perplexity": pytest.approx(math.exp(sum(nats) / len(nats)), rel=1e-5),
    }


def test_bytes_have_as_many_bits_as_nats_say(make_data):
    data = make_data()
    model = lit(data.vocab_size)
    trainer().validate(model, datamodule=data, verbose=False)
    assert model.epoch_metrics["val/bits_per_byte"] == pytest.approx(model.epoch_metrics["val/loss"] / math.log(2))


def test_a_loss_beyond_all_bounds_has_a_finite_perplexity():
    assert math.isfinite(lit(11).derived_metrics({"loss": 1e4})["perplexity"])
    assert lit(11).derived_metrics({"loss": 2.0}) == {"perplexity": math.exp(2.0)}
    assert lit(11).derived_metrics({}) == {}


def test_units_and_flops():
    model = lit(11)
    assert model.units({"input_ids": torch.zeros(3, 5, dtype=torch.long), "labels": torch.zeros(3, 5)}) == 15
    assert model.flops_per_unit() == model.net.flops_per_token > 0


# ---- predict ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eval_batch_size", [1, 3, 100])
def test_predictions_are_the_loss_of_each_window(make_data, eval_batch_size):
    data = make_data(eval_batch_size=eval_batch_size)
    model = louder(lit(data.vocab_size)).eval()
    batches = trainer().predict(model, datamodule=data)
    table = {name: torch.cat([batch[name] for batch in batches]) for name in ("index", "nats", "tokens", "bytes")}
    ids = data.tokenizer.encode(TEXT[:77])
    nats = nats_of(model.net, ids)
    windows = [[nats[t] for t in range(first, min(first + T, len(ids) - 1))] for first in range(0, len(ids) - 1, T)]
    assert table["index"].tolist() == list(range(len(windows)))
    assert table["tokens"].tolist() == table["bytes"].tolist() == [len(w) for w in windows]
    assert table["nats"].tolist() == pytest.approx([sum(w) for w in windows], rel=1e-5)
    trainer().test(model, datamodule=data, verbose=False)
    mean = table["nats"].double().sum() / table["tokens"].sum()
    assert mean.item() == pytest.approx(model.epoch_metrics["test/loss"], rel=1e-6)
