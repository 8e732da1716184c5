"""Groups of small modules, listed by hand."""

import io

import pytest
import torch
from torch import nn

from lit_models.optim.param_groups import param_groups


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.norm = nn.LayerNorm(3)
        self.linear = nn.Linear(3, 3)
        self.conv = nn.Conv2d(2, 1, 2, bias=False)  # one filter: a first axis of size 1, and still a matrix
        self.class_token = nn.Parameter(torch.zeros(1, 1, 3))
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight


def test_every_trainable_parameter_stands_once_in_its_group() -> None:
    net = Small()
    groups = {group["kind"]: group for group in param_groups(net)}
    assert {kind: group["param_names"] for kind, group in groups.items()} == {
        "matrix": ["linear.weight", "conv.weight"],
        "embedding": ["class_token", "embedding.weight"],
        "vector": ["logit_scale", "norm.weight", "norm.bias", "linear.bias"],
    }
    by_name = dict(net.named_parameters())
    for group in groups.values():
        assert all(p is by_name[name] for p, name in zip(group["params"], group["param_names"], strict=True))


def test_a_head_that_comes_before_its_embedding_is_still_one() -> None:
    net = nn.ModuleDict({"head": nn.Linear(3, 5, bias=False), "tokens": nn.Embedding(5, 3)})
    net["tokens"].weight = net["head"].weight
    (group,) = param_groups(net)
    assert (group["kind"], group["param_names"]) == ("embedding", ["head.weight"])


def test_decay_follows_the_number_of_axes() -> None:
    optimizer = torch.optim.AdamW(param_groups(Small()), lr=0.1, weight_decay=0.5)
    assert {g["kind"]: g["weight_decay"] for g in optimizer.param_groups} == {
        "matrix": 0.5,
        "embedding": 0.5,
        "vector": 0.0,
    }
    before = {p: p.detach().clone() for g in optimizer.param_groups for p in g["params"]}
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)  # AdamW then moves by decay alone: a factor 1 - 0.1 * 0.5
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert torch.allclose(p, before[p] * (1.0 if p.dim() < 2 else 0.95), atol=0, rtol=1e-6)


def test_empty_groups_are_left_out() -> None:
    assert [g["kind"] for g in param_groups(nn.Linear(2, 2, bias=False))] == ["matrix"]
    assert [g["kind"] for g in param_groups(nn.LayerNorm(2))] == ["vector"]
    assert param_groups(nn.Linear(2, 2).requires_grad_(False)) == []


@pytest.mark.parametrize("optimizer_class", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_kind_and_names_survive_a_checkpoint(optimizer_class: type[torch.optim.Optimizer]) -> None:
    optimizer = optimizer_class(param_groups(Small()), lr=0.1)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = optimizer_class(param_groups(Small()), lr=0.3)
    other.load_state_dict(torch.load(file, weights_only=True))
    for group, loaded in zip(optimizer.param_groups, other.param_groups, strict=True):
        assert {k: v for k, v in loaded.items() if k != "params"} == {k: v for k, v in group.items() if k != "params"}
