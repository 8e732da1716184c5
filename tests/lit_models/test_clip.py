"""CLIP's objective: one gradient on any number of ranks and in any chunks, equal pairs, its metrics and its scale."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_models.clip import right_pairs, zero_shot_task
from lit_models.optim.param_groups import param_groups
from tests.lit_models.clip_ranks import gradient, pairs, tiny
from tests.reading import ROOT

LOSSES = ["softmax", "sigmoid"]


def difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Of two gradients, relative to the second."""
    assert ours.keys() == theirs.keys()
    a, b = (torch.cat([grads[name].flatten().double() for name in sorted(grads)]) for grads in (ours, theirs))
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("loss", LOSSES)
def test_d10_two_ranks_of_32_have_the_gradient_of_one_with_64(loss: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "store"), str(tmp_path / "out.pt"), loss]
    command = [sys.executable, "-m", "tests.lit_models.clip_ranks"]
    ranks = [subprocess.Popen([*command, str(rank), *arguments], cwd=ROOT) for rank in range(2)]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    _, alone = gradient(tiny(loss), pairs())
    both = torch.load(tmp_path / "out.pt", weights_only=True)
    assert difference(both, alone) < 1e-6
    cosine = sum((both[n] * alone[n]).sum() for n in alone) / math.prod(
        sum(g.square().sum() for g in grads.values()) ** 0.5 for grads in (both, alone)
    )
    assert float(cosine) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_of_8_have_the_gradient_of_the_whole_batch(loss: str) -> None:
    total, whole = gradient(tiny(loss), pairs())
    in_chunks, chunked = gradient(tiny(loss), pairs(micro_batch_size=8))
    assert in_chunks == pytest.approx(total, rel=1e-6) and difference(chunked, whole) < 1e-6


def test_chunks_see_the_same_dropout_twice() -> None:
    """Else what is computed again in backward is not what the loss has seen."""
    lit, batch = tiny(), pairs(micro_batch_size=8)
    for module in lit.modules():
        if hasattr(module, "dropout"):
            module.dropout = 0.3
    torch.manual_seed(1)
    _, first = gradient(lit, batch)
    first = {name: grad.clone() for name, grad in first.items()}
    lit.zero_grad()
    torch.manual_seed(1)
    parts = [lit.net(*chunk) for chunk in zip(batch["images"].split(8), batch["input_ids"].split(8), strict=True)]
    lit._features = lambda _: tuple(map(torch.cat, zip(*parts, strict=True)))  # the same draws, with one large graph
    _, direct = gradient(lit, batch)
    assert difference(first, direct) < 1e-6


def test_chunks_bound_memory() -> None:
    """What is kept for backward does not grow with the batch by more than its features."""

    def kept(size: int) -> int:
        total = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.numel()
            return tensor

        lit = tiny()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            lit.step(pairs(micro_batch_size=size))
        return total

    assert kept(8) < kept(64) / 8


def test_equal_captions_and_images_are_no_negatives() -> None:
    """A pair has the loss that it has in a batch without its doubles; they are as right as its own."""
    lit, batch = tiny(), pairs()
    images, texts = lit.net(batch["images"], batch["input_ids"])
    logits = lit.net.logits(images, texts).double().detach()
    total, captions, pictures = 0.0, batch["caption_numbers"].tolist(), batch["image_numbers"].tolist()
    for i in range(64):
        right = [j for j in range(64) if captions[j] == captions[i] or pictures[j] == pictures[i]]
        wrong = [j for j in range(64) if j not in right]
        for scores in (logits[i], logits[:, i]):
            total += sum(float(scores[[j, *wrong]].logsumexp(0) - scores[j]) for j in right) / len(right)
    assert float(lit.step(batch).sum.detach()) == pytest.approx(total / 2, rel=1e-5)


def test_a_batch_of_one_caption_has_loss_zero_and_no_gradient() -> None:
    batch = pairs()
    batch["caption_numbers"] = torch.zeros(64, dtype=torch.int64)
    total, grads = gradient(tiny(), batch)
    assert total == 0 and all(not grad.any() for grad in grads.values())


def test_every_parameter_has_a_gradient() -> None:
    for loss in LOSSES:
        lit = tiny(loss)
        _, grads = gradient(lit, pairs())
        assert grads.keys() == dict(lit.net.named_parameters()).keys() and all(grad.any() for grad in grads.values())


def test_o13_the_scale_is_in_the_group_without_decay() -> None:
    lit = tiny()
    (group,) = (group for group in param_groups(lit.net) if "logit_scale" in group["param_names"])
    assert group["weight_decay"] == 0


@pytest.mark.parametrize("loss,logit_bias", [("softmax", True), ("sigmoid", False)])
def test_a_loss_and_a_network_that_do_not_fit_are_refused(loss: str, logit_bias: bool) -> None:
    from lit_models.clip import LitCLIP

    net = tiny("sigmoid" if logit_bias else "softmax").net
    with pytest.raises(ValueError, match="needs a network with logit_bias"):
        LitCLIP(net, torch.optim.SGD, loss=loss)
    with pytest.raises(ValueError, match="none of softmax, sigmoid"):
        LitCLIP(net, torch.optim.SGD, loss="hinge")


def evaluated(**rows: Any) -> dict[str, float]:
    """The metrics of six images in two groups and five captions, 3 of which training knows."""
    eye = torch.eye(6)
    given = {
        "images": eye, "texts": torch.stack([eye[0], eye[1], eye[2], eye[3], eye[4]]), "index": torch.arange(6),
        "captions": torch.tensor([0, 1, 2, 3, 7]), "is_class": torch.tensor([True, True, True, False, False]),
        "groups": torch.tensor([0, 0, 0, 1, 1, 1]),
        "pairs": torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3], [4, 7], [5, 0], [5, 1]]),
    }  # fmt: skip
    lit = tiny(groups=["a", "b"])
    lit.epoch_rows = {**given, **rows}
    return lit.derived_metrics({})


def test_metrics_of_a_split() -> None:
    rows = {"index": torch.arange(6), "captions": torch.tensor([0, 1, 2, 3, 7]), "images": torch.eye(6)}
    rows["pairs"] = torch.tensor([[0, 0], [4, 7], [5, 0], [5, 1]])
    assert right_pairs(rows).nonzero().tolist() == [[0, 0], [4, 4], [5, 0], [5, 1]]
    metrics = evaluated()
    # Image 5 is like no caption: all five tie, two of them are its own.
    assert metrics["image_to_text_recall_at_1"] == pytest.approx((5 + 2 / 5) / 6)
    assert metrics["text_to_image_recall_at_1"] == 1
    assert metrics["image_to_text_recall_at_10_new"] == metrics["text_to_image_recall_at_10_new"] == 1
    assert metrics["zero_shot_a"] == 1
    assert metrics["zero_shot_b"] == 1  # image 5 among captions 0 and 1, both its own
    wrong = evaluated(texts=torch.eye(6)[[1, 0, 2, 3, 4]])
    assert wrong["zero_shot_a"] == pytest.approx(1 / 3)


def test_a_collapsed_model_has_what_chance_gives() -> None:
    metrics = evaluated(images=torch.ones(6, 4) / 2, texts=torch.ones(5, 4) / 2)
    assert metrics["text_to_image_recall_at_1"] == pytest.approx((2 + 2 + 1 + 1 + 1) / 5 / 6)
    assert metrics["zero_shot_a"] == pytest.approx(1 / 3) and metrics["text_to_image_recall_at_10"] == 1


def test_a_group_without_known_captions_has_no_zero_shot_metric() -> None:
    metrics = evaluated(is_class=torch.zeros(5, dtype=torch.bool))
    assert not [name for name in metrics if name.startswith("zero_shot")]
    rows = {"is_class": torch.tensor([True, False]), "groups": torch.tensor([0, 1])}
    images, classes = zero_shot_task(rows, torch.eye(2, dtype=torch.bool), 0)
    assert images.tolist() == [0] and classes.tolist() == [0]
