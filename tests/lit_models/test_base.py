"""Loss, gradients, epoch means, dropout and checkpoints of any objective, under a real trainer."""

import enum
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer
from torch import nn

from datamodules.base import BaseDataModule
from lit_models.base import LitBase, Loss
from lit_models.nn.weights import check_fits, load_weights

sgd = partial(torch.optim.SGD, lr=0.1)
adamw = partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5)

warnings.filterwarnings("ignore", message=".*is an instance of `nn.Module`.*")


class Rows:
    """Sequences of 3-vectors of uneven length; padding has the label -100."""

    def __init__(self, labels, inputs=None):
        self.labels = torch.tensor(labels)
        noise = torch.randn(*self.labels.shape, 3, generator=torch.Generator().manual_seed(1))
        self.inputs = noise if inputs is None else inputs

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, key):
        _, indices, *_ = key
        return {"x": self.inputs[indices], "labels": self.labels[indices]}


class Data(BaseDataModule):
    def __init__(self, labels, batch_size, micro_batch_size=None, eval_batch_size=None, val=None, inputs=None):
        super().__init__(batch_size, micro_batch_size, eval_batch_size)
        self.splits = {"train": Rows(labels, inputs), "validation": Rows(labels if val is None else val)}
        self.splits["test"] = self.splits["validation"]

    def prepare(self): ...

    def dataset(self, split):
        return self.splits[split]

    def assets(self):
        return {"names": ["a", "b"]}


class Squares(LitBase):
    """Sum of squared errors over the labels that count, padding times nothing."""

    def __init__(self, net, optimizer=sgd, lr_scheduler=None, init_from=None, compile=False, extra=None):
        super().__init__(net, optimizer, lr_scheduler, init_from, compile)
        self.grads, self.rows = [], []

    def step(self, batch):
        out = self.net(batch["x"]).squeeze(-1)
        if self.training:
            self.rows.append(out.detach())
        counts = batch["labels"] != -100
        return Loss(((out - batch["labels"]) ** 2 * counts).sum(), counts.sum())

    def units(self, batch):
        return batch["labels"].numel()

    def configure_gradient_clipping(self, *args, **kwargs):
        self.grads.append([None if p.grad is None else p.grad.clone() for p in self.parameters()])  # scaled, not clipped
        super().configure_gradient_clipping(*args, **kwargs)


def network(dropout=0.0):
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(dropout), nn.Linear(4, 1))


def zero_network():
    """Predicts 0: a label of 2 has loss 4, a label of 1 or -1 has loss 1."""
    net = network()
    for p in net[-1].parameters():
        nn.init.zeros_(p)
    return net


def trainer(data, max_steps=1, **kwargs):
    kwargs = {"limit_val_batches": 0, "max_epochs": -1, "max_steps": max_steps, **kwargs}
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False, **kwargs,
    )  # fmt: skip
    trainer.accumulate_grad_batches = data.accumulation(1)
    return trainer


def fit(model, data, max_steps=1, **kwargs):
    t = trainer(data, max_steps, **kwargs)
    t.fit(model, datamodule=data)
    return t


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def largest(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


# ---- the loss --------------------------------------------------------------------------------------------------------

UNEVEN = [[2, -100, -100], [1, -1, 1]]  # 1 token of loss 4, 3 tokens of loss 1
MORE = [
    [2.0, -100, -100],
    [1, -1, 1],
    [-100, 3, -100],
    [0.5, -2, -100],
    [-100, -100, -100],
    [1, 2, 3],
    [4, -100, 1],
    [-1, 0, 2],
]


@pytest.mark.parametrize("micro", [1, 2])
def test_d03_uneven_micro_batches_have_the_mean_over_tokens(micro):
    model = Squares(zero_network())
    fit(model, Data(UNEVEN, 2, micro))
    assert model.step_metrics()["train/loss"] == 1.75


def gradient_by_hand(net, labels, inputs):
    counts = torch.tensor(labels) != -100
    out = net(inputs).squeeze(-1)
    loss = ((out - torch.tensor(labels)) ** 2)[counts].mean()
    return torch.autograd.grad(loss, list(net.parameters()))


@pytest.mark.parametrize("micro", [8, 4, 2, 1])
def test_d03_gradients_are_those_of_the_mean_over_the_batch(micro):
    data = Data(MORE, 8, micro)
    expected = gradient_by_hand(network(), MORE, data.splits["train"].inputs)
    model = Squares(network())
    fit(model, data)
    assert largest(model.grads[0], expected) < 1e-6
    norm = torch.cat([g.flatten() for g in expected]).norm()
    assert model.step_metrics()["optim/grad_norm"] == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize("optimizer", [sgd, adamw], ids=["sgd", "adamw"])
def test_d03_accumulation_changes_no_weight(optimizer):
    runs = {}
    for accumulation in (1, 2, 4):
        model = Squares(network(), optimizer)
        data = Data(MORE, 4, 4 // accumulation)
        t = fit(model, data, 5)
        assert data.accumulation(1) == accumulation and t.global_step == len(model.grads) == 5
        runs[accumulation] = weights(model), model.step_metrics()
    assert largest(runs[1][0], weights(Squares(network()))) > 0.1  # something was learned
    for accumulation in (2, 4):
        assert largest(runs[1][0], runs[accumulation][0]) < 1e-6
        assert runs[1][1] == pytest.approx(runs[accumulation][1], rel=1e-5)


def test_step_metrics_are_those_of_the_last_step():
    class Each(Callback):
        def __init__(self):
            self.rows = []

        def on_train_batch_end(self, trainer, module, *args):
            self.rows.append(module.step_metrics())

    each = Each()
    data = Data(MORE, 8)

    def halving(optimizer, total_steps):
        assert total_steps == 3
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)

    net, labels, x = network(), MORE, data.splits["train"].inputs
    fit(Squares(network(), lr_scheduler=halving), data, 3, callbacks=[each])
    for k, row in enumerate(each.rows):
        assert set(row) == {"train/loss", "optim/lr", "optim/grad_norm"} and all(type(v) is float for v in row.values())
        counts = torch.tensor(labels) != -100
        loss = ((net(x).squeeze(-1) - torch.tensor(labels)) ** 2)[counts].mean().detach()  # before the update
        grads = gradient_by_hand(net, labels, x)
        assert row["train/loss"] == pytest.approx(float(loss), rel=1e-6)
        assert row["optim/lr"] == 0.1 * 0.5**k  # of this update, not of the next
        assert row["optim/grad_norm"] == pytest.approx(float(torch.cat([g.flatten() for g in grads]).norm()), rel=1e-5)
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                p -= 0.1 * 0.5**k * g


# ---- nothing to learn from -------------------------------------------------------------------------------------------

NOTHING = [[-100.0] * 3] * 2


@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("micro", [2, 1])
def test_o01_a_step_without_a_label_changes_nothing(micro, clip):
    """Two steps that learn, one without a label, in the same run."""

    class Blank(Callback):
        """Blanks all labels of the third step, and looks at what it does."""

        def __init__(self):
            self.seen = {}

        def state(self, trainer, module):
            state = [t.clone() for s in trainer.optimizers[0].state.values() for t in s.values()]
            return weights(module), state

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            step = batch_idx // trainer.accumulate_grad_batches
            if step == 2:
                self.seen.setdefault("before", self.state(trainer, module))
                batch["labels"].fill_(-100)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if (batch_idx + 1) % trainer.accumulate_grad_batches:
                return
            self.seen[trainer.global_step] = self.state(trainer, module), module.step_metrics()

    blank = Blank()
    model = Squares(network(), adamw)
    fit(model, Data(MORE, 2, micro), 4, callbacks=[blank], gradient_clip_val=clip)
    (after, state), metrics = blank.seen[3]
    assert len(state) == 3 * 4  # step, two averages for each of four parameters
    assert all(torch.equal(a, b) for a, b in zip(blank.seen["before"][0], after, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(blank.seen["before"][1], state, strict=True))
    assert metrics["train/loss"] == 0 and metrics["optim/grad_norm"] == 0
    assert largest(blank.seen[4][0][0], after) > 1e-3  # and the run goes on
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_o01_a_first_step_without_a_label_makes_no_state():
    model = Squares(network(), adamw)
    t = fit(model, Data(NOTHING, 2, 1), 2)
    assert t.global_step == 2 and largest(weights(model), weights(Squares(network()))) == 0
    assert model.step_metrics()["train/loss"] == 0


def test_o01_an_epoch_mean_leaves_empty_batches_out():
    val = [[2, -100, -100], *NOTHING, [1, -1, 1], *NOTHING]
    model = Squares(zero_network())
    data = Data(MORE, 2, eval_batch_size=1, val=[[float(v) for v in row] for row in val])
    trainer(data, limit_val_batches=1.0).validate(model, datamodule=data, verbose=False)
    assert model.epoch_metrics["val/loss"] == 1.75


def test_o01_an_epoch_without_a_label_has_no_mean():
    model = Squares(zero_network())
    data = Data(MORE, 2, val=NOTHING)
    trainer(data, limit_val_batches=1.0).validate(model, datamodule=data, verbose=False)
    assert model.epoch_metrics == {}


# ---- clipping and weight decay ---------------------------------------------------------------------------------------


def one_weight(target):
    """A single weight at 0 with input 1: the gradient of the mean loss is -2 target."""
    net = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(net.weight)
    inputs = torch.zeros(4, 3, 3)
    inputs[..., 0] = 1
    return net, Data([[float(target)] * 3] * 4, 4, 2, inputs=inputs)


@pytest.mark.parametrize(
    ("algorithm", "target", "update"), [("norm", 0.25, 0.5), ("norm", 3, 1.0), ("value", 0.25, 0.5), ("value", 3, 1.0)]
)
def test_gradients_are_clipped_after_they_are_scaled(algorithm, target, update):
    net, data = one_weight(target)
    model = Squares(net, partial(torch.optim.SGD, lr=1.0))
    fit(model, data, gradient_clip_val=1.0, gradient_clip_algorithm=algorithm)
    assert net.weight[0, 0].item() == pytest.approx(update, rel=1e-5)
    assert model.step_metrics()["optim/grad_norm"] == pytest.approx(2 * target, rel=1e-6)  # before clipping


def test_without_a_limit_nothing_is_clipped():
    net, data = one_weight(3)
    fit(Squares(net, partial(torch.optim.SGD, lr=1.0)), data)
    assert net.weight[0, 0].item() == pytest.approx(6.0)


def test_matrices_decay_and_vectors_do_not():
    class Flat(Squares):
        def step(self, batch):
            loss = super().step(batch)
            return Loss(loss.sum * 0, loss.count)  # gradients of 0: what changes is decay

    model = Flat(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1)), adamw)
    before = {name: p.detach().clone() + 0 for name, p in model.named_parameters()}
    fit(model, Data(MORE, 8))
    for name, p in model.named_parameters():
        expected = before[name] * (1 - 0.1 * 0.5) if p.dim() > 1 else before[name]
        torch.testing.assert_close(p.detach(), expected, rtol=1e-6, atol=0)


def test_a_frozen_part_gets_no_optimizer():
    net = network()
    net[0].requires_grad_(False)
    model = Squares(net, adamw)
    before = weights(model)
    t = fit(model, Data(MORE, 8))
    assert sum(len(g["params"]) for g in t.optimizers[0].param_groups) == 2
    assert largest(weights(model)[:2], before[:2]) == 0 and largest(weights(model)[2:], before[2:]) > 0


# ---- epoch means -----------------------------------------------------------------------------------------------------


class Given(LitBase):
    """Whose loss is the label itself."""

    def step(self, batch):
        counts = batch["labels"] != -100
        kept = batch["labels"].double()[counts]
        return Loss(kept.sum(), counts.sum(), {"half": (kept.sum() / 2, counts.sum() * 2)})

    def units(self, batch):
        return 1

    def derived_metrics(self, metrics):
        return {"double": 2 * metrics["loss"]}


def evaluate(rows, eval_batch_size, command="validate"):
    model = Given(network(), sgd)
    data = Data(MORE, 2, eval_batch_size=eval_batch_size, val=rows)
    t = trainer(data, limit_val_batches=1.0)
    getattr(t, command)(model, datamodule=data, verbose=False)
    assert model._evaluated == []
    return model.epoch_metrics, t.callback_metrics


def test_epoch_means_are_sums_over_counts():
    rows = [[1.0, -100, -100], [2.0, 4.0, 8.0], [-100, 0.5, 0.25], [16.0, 32.0, 64.0], [-100, 128.0, -100]]
    flat = [v for row in rows for v in row if v >= 0]
    mean = sum(flat) / len(flat)
    for size in range(1, 7):  # whatever the batches, and with an uneven last one
        metrics, seen = evaluate(rows, size)
        assert metrics == {"val/loss": mean, "val/half": mean / 4, "val/double": 2 * mean}
        assert float(seen["val/loss"]) == pytest.approx(mean)  # for callbacks that monitor
    assert evaluate(rows, 2, "test")[0] == {"test/loss": mean, "test/half": mean / 4, "test/double": 2 * mean}


def test_epoch_means_are_exact_in_any_order():
    values = [1e16, 1.0, -1e16, 1.0, 3e15, -3e15, 2.0]  # added one after the other they give something else
    for order in range(7):
        rows = [[v, -100.0, -100.0] for v in values[order:] + values[:order]]
        assert evaluate(torch.tensor(rows, dtype=torch.float64).tolist(), 1)[0]["val/loss"] == pytest.approx(4 / 7, rel=1e-15)


def test_a_second_evaluation_starts_anew():
    model = Given(network(), sgd)
    data = Data(MORE, 2, eval_batch_size=3)
    t = trainer(data, limit_val_batches=1.0)
    t.validate(model, datamodule=data, verbose=False)
    first = model.epoch_metrics
    t.validate(model, datamodule=data, verbose=False)
    assert model.epoch_metrics == first


# ---- dropout ---------------------------------------------------------------------------------------------------------


class Masks(Squares):
    """Records which of 64 entries its dropout dropped."""

    def step(self, batch):
        mask = nn.functional.dropout(torch.ones(64), 0.5, self.training)
        if self.training:
            self.rows.append(tuple(mask.tolist()))
        else:
            torch.rand(17)  # evaluation that draws something
        return super().step(batch)


def masks(monkeypatch, seed=0, max_steps=4, micro=4, **kwargs):
    monkeypatch.setenv("PL_GLOBAL_SEED", str(seed))
    model = Masks(network())
    fit(model, Data(MORE, 4, micro), max_steps, **kwargs)
    return [row for row in model.rows if isinstance(row, tuple)]


def test_dropout_depends_on_seed_and_micro_batch_alone(monkeypatch):
    first = masks(monkeypatch)
    assert len(first) == len(set(first)) == 4  # each micro-batch has its own
    torch.manual_seed(99)
    torch.rand(1000)
    assert masks(monkeypatch) == first
    assert masks(monkeypatch, val_check_interval=1, limit_val_batches=1.0, check_val_every_n_epoch=None) == first
    assert masks(monkeypatch, max_steps=6)[:4] == first
    assert not set(masks(monkeypatch, seed=1)) & set(first)
    accumulated = masks(monkeypatch, micro=2)
    assert len(set(accumulated)) == 8


def test_dropout_of_a_step_needs_no_step_before_it(monkeypatch):
    first = masks(monkeypatch)
    model = Masks(network())
    batch = Rows(MORE)[0, np.arange(4)]
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    for i in (2, 0):
        model.training_step(batch, i)
    assert [row for row in model.rows if isinstance(row, tuple)] == [first[2], first[0]]


def test_ranks_have_different_masks(monkeypatch):
    model = Masks(network())
    batch = Rows(MORE)[0, np.arange(4)]
    for rank in (0, 1):
        for i in (0, 1):
            monkeypatch.setattr(Masks, "global_rank", rank)
            model.training_step(batch, i)
    assert len({row for row in model.rows if isinstance(row, tuple)}) == 4


# ---- speed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 1.0])
def test_p01_a_training_step_reads_nothing_back(monkeypatch, clip):
    """On a GPU each of these would wait for the device. (`bool` of the count is asked on the CPU only.)"""
    calls = Counter()

    def counted(name, original):
        def call(self, *args, **kwargs):
            calls[name] += 1
            return original(self, *args, **kwargs)

        return call

    seen = {}

    class Watch(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 1:
                calls.clear()

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if batch_idx == 5:
                seen["steps"] = dict(calls)
                module.step_metrics()
                seen["logging"] = dict(calls)

    names = ("item", "tolist", "__float__", "__int__", "__index__", "numpy", "cpu", "nonzero")
    for name in names:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    model = Squares(network(), partial(torch.optim.AdamW, fused=True))  # unfused it reads its own step on the CPU
    fit(model, Data(MORE, 4, 2), 4, callbacks=[Watch()], gradient_clip_val=clip)
    assert seen["steps"] == {}
    assert seen["logging"]["__float__"] >= 2  # what is read back on a logging step is seen


# ---- checkpoints -----------------------------------------------------------------------------------------------------


class Color(str, enum.Enum):
    RED = "red"


@dataclass
class Options:
    size: int = 3


EXTRAS = {
    "plain": {"a": [1, 2.5, "x", None, True], "b": {"c": (1, 2)}},
    "path": Path("a/b"),
    "enum": Color.RED,
    "dataclass": Options(),
    "numpy": np.float64(2.5),
    "path in a list": [Path("a")],
    "key": {Color.RED: 1},
}


@pytest.mark.parametrize("extra", EXTRAS.values(), ids=EXTRAS.keys())
def test_k03_a_checkpoint_is_plain_and_loads_with_weights_only(tmp_path, extra):
    model = Squares(network(), adamw, extra=extra)
    data = Data(MORE, 4)
    fit(model, data, 2).save_checkpoint(tmp_path / "a.ckpt")
    checkpoint = torch.load(tmp_path / "a.ckpt", weights_only=True)
    hparams = checkpoint["hyper_parameters"]
    assert "net" not in hparams and "optimizer" not in hparams and hparams["compile"] is False
    assert ("extra" in hparams) == (extra is EXTRAS["plain"])
    assert checkpoint["assets"] == {"names": ["a", "b"]} and checkpoint["global_step"] == 2
    trainer(data, 4).fit(
        resumed := Squares(network(), adamw), datamodule=data, ckpt_path=tmp_path / "a.ckpt", weights_only=True
    )
    fit(whole := Squares(network(), adamw), data, 4)
    assert largest(weights(resumed), weights(whole)) == 0


def test_k03_init_from_is_not_kept(tmp_path):
    data = Data(MORE, 4)
    fit(Squares(network()), data).save_checkpoint(tmp_path / "a.ckpt")
    second = Squares(network(), init_from=str(tmp_path / "a.ckpt"))
    fit(second, data).save_checkpoint(tmp_path / "b.ckpt")
    assert second.hparams["init_from"] == str(tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "b.ckpt", weights_only=True)["hyper_parameters"]["init_from"] is None


def test_assets_come_back_from_a_checkpoint(tmp_path):
    data = Data(MORE, 4)
    fit(Squares(network()), data).save_checkpoint(tmp_path / "a.ckpt")
    model = Squares.load_from_checkpoint(tmp_path / "a.ckpt", net=network(), optimizer=sgd, weights_only=True)
    assert model.assets == {"names": ["a", "b"]}


@pytest.fixture
def saved(tmp_path):
    model = Squares(network())
    fit(model, Data(MORE, 4), 2).save_checkpoint(tmp_path / "a.ckpt")
    return tmp_path / "a.ckpt", model


def changed(path, change):
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["state_dict"] = change(checkpoint["state_dict"])
    other = path.with_name("b.ckpt")
    torch.save(checkpoint, other)
    return other


def test_k07_a_warm_start_has_every_weight(saved):
    path, trained = saved
    assert largest(weights(Squares(network())), weights(trained)) > 0
    for model in (Squares(network(), init_from=str(path)), Squares(network())):
        load_weights(model, path)
        assert largest(weights(model), weights(trained)) == 0
        assert [n for n, _ in model.named_parameters()] == [n for n, _ in trained.named_parameters()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {f"model.{k}": v for k, v in s.items()}, r"model\.net\.0\.bias is \(4,\) there, missing here"),
        (lambda s: {k.removeprefix("net."): v for k, v in s.items()}, r"0\.bias is \(4,\) there, missing here"),
        (lambda s: {k: v for k, v in s.items() if k != "net.3.weight"}, r"net\.3\.weight is missing there, \(1, 4\) here"),
        (lambda s: {**s, "net.4.weight": torch.zeros(2)}, r"net\.4\.weight is \(2,\) there, missing here"),
        (lambda s: {**s, "net.0.weight": torch.zeros(4, 5)}, r"net\.0\.weight is \(4, 5\) there, \(4, 3\) here"),
    ],
    ids=["a prefix", "no prefix", "one missing", "one too many", "another shape"],
)
def test_k07_another_models_checkpoint_is_refused(saved, change, message):
    path = changed(saved[0], change)
    model = Squares(network())
    before = weights(model)
    refused = pytest.raises(ValueError, match=rf"b\.ckpt is a checkpoint of another model: .*{message}|{message}")
    with refused:
        load_weights(model, path)
    assert largest(weights(model), before) == 0  # not one was loaded
    with refused:
        check_fits(model, torch.load(path, weights_only=True)["state_dict"], path)
    # Of a run it takes what is below `net.`, so a name outside is only missing.
    with pytest.raises(ValueError, match=rf"{message}|net\.0\.bias is missing there, \(4,\) here"):
        Squares(network(), init_from=str(path))


def test_k07_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at .*nowhere.ckpt"):
        Squares(network(), init_from=str(tmp_path / "nowhere.ckpt"))


def test_every_training_step_runs_in_train_mode():
    class Mode(Callback):
        def __init__(self):
            self.seen = []

        def on_before_backward(self, trainer, module, loss):
            self.seen.append(module.training and module.net.training)

    mode = Mode()
    data = Data(MORE, 4)
    fit(
        Squares(network()), data, 3, callbacks=[mode], val_check_interval=1, limit_val_batches=1.0, check_val_every_n_epoch=None
    )
    assert mode.seen == [True] * 3
