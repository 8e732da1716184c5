"""MuonAdamW against torch's own Muon and AdamW, and against numbers worked out by hand."""

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from lit_models.optim.optimizers import MuonAdamW, orthogonalize
from lit_models.optim.param_groups import param_groups


class Net(nn.Module):
    """A matrix, an embedding, vectors and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.up = nn.Linear(4, 8)
        self.conv = nn.Conv1d(8, 3, 2, padding=1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.conv(torch.tanh(self.up(self.tokens(ids))).mT).sum(-1)


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(7, 3, generator=generator)
    ids = [torch.randint(7, (16, 5), generator=generator) for _ in range(count)]
    return [(x, table[x].sum(1)) for x in ids]


def train(net: nn.Module, optimizer: torch.optim.Optimizer, data: list[tuple[Tensor, Tensor]]) -> list[float]:
    losses = []
    for ids, target in data:

        def closure(ids: Tensor = ids, target: Tensor = target) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(ids), target)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4)])
def test_newton_schulz_maps_singular_values_and_keeps_vectors(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.square().sum().sqrt()  # the Frobenius norm is brought to 1 first
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    assert torch.allclose(orthogonalize(matrix), u @ torch.diag(s) @ vt, atol=1e-12)
    assert s.min() > 0.68 and s.max() < 1.21


def test_orthogonalize_by_hand() -> None:
    # diag(3, 4) / 5 = diag(.6, .8); one step: 3.4445 s - 4.775 s^3 + 2.0315 s^5
    one_step = orthogonalize(torch.diag(torch.tensor([3.0, 4.0])), num_steps=1)
    assert torch.allclose(one_step, torch.diag(torch.tensor([1.1932694, 0.9764819])), atol=1e-6)
    assert orthogonalize(torch.zeros(2, 3)).abs().max() == 0


def test_matrices_move_by_muon_and_the_rest_by_adamw() -> None:
    """Three steps on random gradients equal torch.optim.Muon (bfloat16 inside, hence its tolerance) and AdamW."""
    options: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.1}
    model = nn.ModuleDict({"tokens": nn.Embedding(7, 4), "tall": nn.Linear(4, 8), "wide": nn.Linear(8, 4)})
    start, other = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = MuonAdamW(param_groups(model), lr=0.02, adamw_lr=0.003, betas=(0.8, 0.9), **options)
    matrices, tables, vectors = (group["params"] for group in param_groups(other))
    muon = torch.optim.Muon(matrices, lr=0.02, **options)
    adamw = torch.optim.AdamW(
        [{"params": tables, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=0.003, betas=(0.8, 0.9)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=generator)
            q.grad = p.grad.clone()
        for each in (optimizer, muon, adamw):
            each.step()
    for (name, p), q, p0 in zip(model.named_parameters(), other.parameters(), start.parameters(), strict=True):
        is_matrix = name in ("tall.weight", "wide.weight")
        error = (p - q).norm() / (q - p0).norm()
        assert error < (2e-2 if is_matrix else 1e-4), (name, float(error))
    assert set(optimizer.state[model["tall"].weight]) == {"momentum_buffer"}
    assert set(optimizer.state[model["tokens"].weight]) == {"step", "exp_avg", "exp_avg_sq"}


def test_first_steps_by_hand() -> None:
    """A matrix moves by decay and an orthogonal matrix, a vector by lr * sign(gradient) without decay."""
    model = nn.Linear(2, 4, dtype=torch.float64)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    optimizer = MuonAdamW(param_groups(model), lr=0.1, weight_decay=0.5, adamw_lr=0.01)
    gradient = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    model.weight.grad, model.bias.grad = gradient, torch.tensor([2.0, -3.0, 0.5, -9.0], dtype=torch.float64)
    optimizer.step()
    # nesterov: g + .95 (.05 g - g) is a multiple of g; rows / columns = 2
    expected = 1 - 0.1 * 0.5 - 0.1 * 2**0.5 * orthogonalize(gradient)
    assert torch.allclose(model.weight, expected, atol=1e-12)
    assert torch.allclose(model.bias, torch.tensor([0.99, 1.01, 0.99, 1.01], dtype=torch.float64), atol=1e-8)


def test_a_kernel_moves_as_the_matrix_it_is() -> None:
    conv, linear = nn.Conv2d(2, 6, (3, 1), bias=False), nn.Linear(6, 6, bias=False)
    linear.weight.data = conv.weight.data.flatten(1).clone()
    conv.weight.grad = torch.randn(6, 2, 3, 1).to(memory_format=torch.channels_last)
    linear.weight.grad = conv.weight.grad.flatten(1).clone()
    for model in (conv, linear):
        MuonAdamW(param_groups(model)).step()
    assert torch.allclose(conv.weight.flatten(1), linear.weight, atol=1e-7)


def test_parameters_without_a_gradient_stay() -> None:
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = MuonAdamW(param_groups(model))
    assert optimizer.step() is None
    model.up.weight.grad, model.up.bias.grad = torch.ones(8, 4), torch.ones(8)
    optimizer.step()
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
    assert moved == ["up.weight", "up.bias"]
    assert len(optimizer.state) == 2


@pytest.mark.parametrize("kind", ["matrix", "embedding"])  # the vectors are dispensable here
def test_it_learns_a_regression_and_each_rule_takes_part(kind: str) -> None:
    data = batches(300)

    def last_loss(without: str = "") -> float:
        groups = param_groups(model := net())
        groups = [g | {"lr": 0.0} if g["kind"] == without else g for g in groups]
        return sum(train(model, MuonAdamW(groups, lr=0.005, adamw_lr=0.01, weight_decay=0.0), data)[-10:]) / 10

    learned = last_loss()
    assert learned < 0.01  # from 5.0
    assert last_loss(without=kind) > 0.1


def test_one_schedule_scales_both_rates() -> None:
    optimizer = MuonAdamW(param_groups(net()), lr=0.02, adamw_lr=0.004)
    schedule = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    optimizer.step()
    schedule.step()
    assert {g["kind"]: g["lr"] for g in optimizer.param_groups} == {"matrix": 0.01, "embedding": 0.002, "vector": 0.002}


def test_it_resumes_to_the_bit() -> None:
    data = batches(8)
    whole = net()
    train(whole, MuonAdamW(param_groups(whole), lr=0.03), data)
    first = net()
    optimizer = MuonAdamW(param_groups(first), lr=0.03)
    train(first, optimizer, data[:3])
    file = io.BytesIO()
    torch.save({"net": first.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = Net()
    resumed = MuonAdamW(param_groups(second), lr=9.0, adamw_lr=9.0)  # the state's rates hold
    second.load_state_dict(saved["net"])
    resumed.load_state_dict(saved["optimizer"])
    train(second, resumed, data[3:])
    for p, q in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(p, q)
    cold = Net()
    cold.load_state_dict(saved["net"])
    train(cold, MuonAdamW(param_groups(cold), lr=0.03), data[3:])
    assert not torch.equal(cold.up.weight, whole.up.weight)  # the state matters


class System(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def configure_optimizers(self) -> Any:
        optimizer = MuonAdamW(param_groups(self.net), lr=0.03)
        schedule = LambdaLR(optimizer, lambda step: 0.9**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])


def test_lightnings_automatic_optimization_gives_the_same_weights(tmp_path: Any) -> None:
    data = batches(6)
    system, model = System(), net()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(system, DataLoader(data, batch_size=None))
    assert trainer.global_step == 6
    optimizer = MuonAdamW(param_groups(model), lr=0.03)
    schedule = LambdaLR(optimizer, lambda step: 0.9**step)
    for batch in data:
        train(model, optimizer, [batch])
        schedule.step()
    for p, q in itertools.zip_longest(system.net.parameters(), model.parameters()):
        assert torch.equal(p, q)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MuonAdamW(net().parameters()), "group 0 has kind None"),
        (lambda: MuonAdamW([{"params": [nn.Parameter(torch.ones(2, 2))], "kind": "matrics"}]), "'matrics'"),
        (lambda: MuonAdamW([{"params": [nn.Parameter(torch.ones(2))], "kind": "matrix"}]), "fewer than 2 axes"),
        (lambda: MuonAdamW(param_groups(net()), lr=-0.1), "lr -0.1"),
        (lambda: MuonAdamW(param_groups(net()), momentum=1.0), "momentum 1.0"),
        (lambda: MuonAdamW(param_groups(net()), betas=(0.9, 1.5)), r"betas\[1\] 1.5"),
    ],
)
def test_bad_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
