"""The image classifier's objective: smoothed, mixed, counted exactly on any cut of the batch; new heads only when asked for."""

from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from torch.nn import functional as F
from torchvision.transforms import v2

from datamodules.augment import Augmentation
from datamodules.images import ImageDataModule
from datamodules.sources.mnist import MNIST5K
from lit_models.nn.resnet import ResNet
from lit_models.nn.vit import ViT
from lit_models.resnet import LitResNet
from lit_models.vit import LitViT

SIZES: dict[str, Any] = {"patch_size": 7, "num_layers": 1, "num_heads": 2, "embed_dim": 16}
MIXED = {"augmentation": Augmentation(crop_padding=2, mixup=0.4, cutmix=1.0)}


def network(num_classes: int = 10, image_size: int = 28) -> ViT:
    torch.manual_seed(0)
    net = ViT(image_size, num_classes, **SIZES)
    torch.nn.init.normal_(net.head.weight, std=0.5)
    return net


@pytest.fixture(scope="module")
def make_data(tmp_path_factory: pytest.TempPathFactory) -> Any:
    cache = str(tmp_path_factory.mktemp("cache"))
    return lambda **options: ImageDataModule(MNIST5K(), **{"batch_size": 12, "image_size": 28, "cache_dir": cache, **options})


def fit(model: Any, data: ImageDataModule, **options: Any) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=-1,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False, **options,
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    return trainer


def sgd(net: Any, **options: Any) -> LitViT:
    return LitViT(net, partial(torch.optim.SGD, lr=0.1), **options)


@pytest.mark.parametrize("options", [{}, MIXED], ids=["plain", "mixed"])
def test_micro_batches_do_not_change_the_step(make_data: Any, options: dict[str, Any]) -> None:
    trained = []
    for micro in (12, 4):
        data = make_data(micro_batch_size=micro, **options)
        model = sgd(network(), label_smoothing=0.1)
        fit(model, data, max_steps=3, accumulate_grad_batches=12 // micro, limit_val_batches=0)
        trained.append((model.step_metrics()["train/loss"], torch.cat([p.flatten() for p in model.net.parameters()])))
    assert trained[0][0] == pytest.approx(trained[1][0], rel=1e-6)
    torch.testing.assert_close(trained[0][1], trained[1][1], rtol=1e-5, atol=1e-6)


def test_training_spreads_labels_and_evaluation_does_not(make_data: Any) -> None:
    data = make_data()
    data.prepare()
    batch = data.dataset("validation")[0, (indices := torch.arange(20).numpy()), indices]
    model = sgd(network(), label_smoothing=0.2)
    logits = model.net(batch["images"])
    target = 0.8 * F.one_hot(batch["labels"], 10) + 0.02
    smoothed = -(target * logits.log_softmax(-1)).sum(-1)
    assert model.train().step(batch).sum.item() == pytest.approx(smoothed.sum().item(), rel=1e-5)
    evaluated = model.eval().step(batch)
    assert evaluated.sum.item() == pytest.approx(F.cross_entropy(logits, batch["labels"], reduction="sum").item(), rel=1e-5)
    assert int(evaluated.count) == 20


def test_a_mixed_image_has_the_loss_torchvisions_targets_give() -> None:
    """torchvision mixes a batch with itself, rolled on by one, and makes soft targets of the labels."""
    torch.manual_seed(2)
    images, labels = torch.randn(6, 3, 28, 28), torch.arange(6)
    mixed, soft = v2.MixUp(alpha=1.0, num_classes=10)(images, labels)
    share = soft[0, 0]
    batch: Any = {
        "images": mixed, "labels": labels, "other_labels": labels.roll(1), "label_weight": share.expand(6), "num_images": 6,
    }  # fmt: skip
    model = sgd(network(), label_smoothing=0.1).train()
    expected = F.cross_entropy(model.net(mixed), soft, label_smoothing=0.1, reduction="sum")
    loss = model.step(batch)
    assert loss.sum.item() == pytest.approx(expected.item(), rel=1e-5)
    right = (model.net(mixed).argmax(-1) == soft.argmax(-1)).sum()
    assert (int(loss.metrics["accuracy"][0]), int(loss.metrics["accuracy"][1])) == (int(right), 6)


def test_evaluation_counts_images(make_data: Any) -> None:
    data = make_data(eval_batch_size=64)
    model = sgd(network())
    Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False).validate(model, data, verbose=False)
    batch = data.dataset("validation")[0, (indices := torch.arange(500).numpy()), indices]
    logits = model.net(batch["images"]).detach()
    right = (logits.argmax(-1) == batch["labels"]).sum().item()
    assert model.epoch_metrics["val/accuracy"] == right / 500
    assert "val/top5_accuracy" not in model.epoch_metrics  # of ten classes five would be half
    assert int(model.epoch_counts["confusion"].trace()) == right and int(model.epoch_counts["confusion"].sum()) == 500
    confidence = logits.softmax(-1).amax(-1).mean().item()
    assert 0 < model.epoch_metrics["val/calibration_error"] <= 1 and confidence > right / 500


def test_top_five_of_many_classes() -> None:
    model = sgd(network(num_classes=12)).eval()
    images = torch.randn(40, 3, 28, 28)
    order = model.net(images).argsort(-1, descending=True)
    labels = torch.cat((order[:10, 0], order[10:25, 4], order[25:, 5]))  # first, fifth, sixth
    metrics = model.step({"images": images, "labels": labels, "num_images": 40, "index": torch.arange(40)}).metrics
    assert [int(value) for value, _ in (metrics["accuracy"], metrics["top5_accuracy"])] == [10, 25]


def test_a_head_is_replaced_only_when_asked_for(tmp_path: Any) -> None:
    path = tmp_path / "ten.ckpt"
    torch.save({"state_dict": {f"net.{name}": value for name, value in network(10).state_dict().items()}}, path)
    with pytest.raises(ValueError, match=r"head\.\w+ is \(10,.* there, \(3,.* here: .*replace_head true"):
        sgd(ViT(28, 3, **SIZES), init_from=str(path))
    model = sgd(ViT(28, 3, **SIZES), init_from=str(path), replace_head=True)
    assert torch.equal(model.net.blocks[0].mlp.fc_in.weight, network(10).blocks[0].mlp.fc_in.weight)
    assert not model.net.head.weight.any()  # new
    same = sgd(ViT(28, 10, **SIZES), init_from=str(path))
    assert torch.equal(same.net.head.weight, network(10).head.weight)


def test_weights_of_another_image_size_are_taken(tmp_path: Any) -> None:
    path = tmp_path / "small.ckpt"
    small = network()
    torch.save({"state_dict": {f"net.{name}": value for name, value in small.state_dict().items()}}, path)
    model = sgd(ViT((42, 56), 10, **SIZES), init_from=str(path))
    assert model.net.position_grid.shape == (1, 6, 8, 16)
    assert torch.equal(model.net.class_position, small.class_position)
    assert model.net.position_grid.mean().item() == pytest.approx(small.position_grid.mean().item(), abs=0.05)


def test_resnet_learns_digits(make_data: Any) -> None:
    torch.manual_seed(0)
    net = ResNet(10, stem="cifar", layers=(1, 1), width=8)
    model = LitResNet(net, partial(torch.optim.SGD, lr=0.2, momentum=0.9))
    fit(model, make_data(batch_size=50), max_steps=200, limit_val_batches=0)
    assert model.step_metrics()["train/loss"] < 1.2  # from ln 10 = 2.3


def test_label_smoothing_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing 1.0 is not in \[0, 1\)"):
        sgd(network(), label_smoothing=1.0)
