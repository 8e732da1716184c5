"""The same numbers as torch's own linear map, whichever library computes them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_models.nn import linear as module
from lit_models.nn.linear import Linear, linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 4, 5), (2, 3, 4, 5), (1, 1, 5)])
def test_values_and_gradients_equal_torchs(shape: tuple[int, ...], bias: bool) -> None:
    ours, theirs = Linear(5, 7, bias=bias), nn.Linear(5, 7, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(shape)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    outputs = [ours(inputs[0]), theirs(inputs[1])]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)
    for y in outputs:
        (y**2).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5)


def test_strided_inputs_and_frozen_weights() -> None:
    x = torch.randn(6, 5, 4, requires_grad=True)
    weight = torch.randn(14, 5)[::2]
    y = linear(x.transpose(1, 2), weight)
    torch.testing.assert_close(y, F.linear(x.transpose(1, 2), weight), rtol=1e-5, atol=1e-6)
    y.sum().backward()
    torch.testing.assert_close(x.grad, (torch.ones(6, 4, 7) @ weight).transpose(1, 2), rtol=1e-5, atol=1e-5)
    assert weight.grad is None


@pytest.mark.skipif(not module._ONEDNN, reason="this torch has no oneDNN")
def test_only_plain_float32_on_cpus_takes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(module, "_product", lambda *args: taken.append(args) or F.linear(*args))
    linear(torch.randn(2, 3), torch.randn(4, 3))
    assert len(taken) == 1
    linear(torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.randn(2, 3), torch.randn(4, 3)).dtype is torch.bfloat16
    assert len(taken) == 1


def test_empty_batches() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    y = linear(torch.randn(0, 3), weight)
    y.sum().backward()
    assert y.shape == (0, 4) and weight.grad is not None and not weight.grad.any()
