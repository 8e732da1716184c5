"""The residual network against torchvision's."""

import pytest
import torch
from torchvision.models import resnet18, resnet50

from lit_models.nn.resnet import ResNet

SIZES = {"resnet18": (resnet18, {}), "resnet50": (resnet50, {"block": "bottleneck", "layers": (3, 4, 6, 3)})}


def renamed(state):
    """torchvision's names to ours."""
    out = {}
    for name, value in state.items():
        first, _, rest = name.partition(".")
        if first in ("conv1", "bn1"):
            name = name.replace("conv1", "conv").replace("bn1", "norm")
        elif first.startswith("layer"):
            rest = rest.replace("downsample", "shortcut").replace(".bn", ".norm")
            name = f"stages.{int(first[5:]) - 1}.{rest}"
        else:
            name = name.replace("fc", "head")
        out[name] = value
    return out


def pair(name, dtype, num_classes=7):
    torch.manual_seed(0)
    make, options = SIZES[name]
    theirs = make(num_classes=num_classes).to(dtype)
    ours = ResNet(num_classes, **options).to(dtype)
    for module in theirs.modules():  # zeros and ones would hide a mixed-up norm
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.5, 0.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.running_mean, -0.5, 0.5)
    ours.load_state_dict(renamed(theirs.state_dict()))
    return ours, theirs


def differences(ours, theirs, images, train):
    """Largest differences of logits, gradients and buffers, relative to the largest value of each."""
    labels = torch.arange(len(images)) % 7
    grads = {}
    for net in (ours, theirs):
        net.train(train)
        net.zero_grad()
        logits = net(images)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        own = {name: p.grad for name, p in net.named_parameters()}
        own |= {f"buffer {name}": b for name, b in net.named_buffers() if b.is_floating_point()}
        grads[net is ours] = {"logits": logits.detach(), **own}
    expected = {"logits": grads[False].pop("logits"), **renamed_keys(grads[False])}
    assert expected.keys() == grads[True].keys()
    return max(float((grads[True][n] - v).abs().max() / v.abs().max().clamp(min=1e-30)) for n, v in expected.items())


def renamed_keys(values):
    return {
        ("buffer " if name.startswith("buffer ") else "") + next(iter(renamed({name.removeprefix("buffer "): 0}))): value
        for name, value in values.items()
    }


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", SIZES)
def test_equals_torchvision(name, train):
    ours, theirs = pair(name, torch.float64)
    images = torch.randn(4, 3, 64, 48, dtype=torch.float64)
    assert differences(ours, theirs, images, train) < 1e-9
    with torch.no_grad():
        ours.conv.weight[0, 0, 3, 3] += 0.1
    assert differences(ours, theirs, images, train) > 1e-6


def test_equals_torchvision_in_single_precision():
    ours, theirs = pair("resnet18", torch.float32)
    images = torch.randn(4, 3, 64, 48)
    with torch.no_grad():
        ours.eval(), theirs.eval()
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_published_sizes(name, count):
    with torch.device("meta"):
        net = ResNet(1000, **SIZES[name][1])
    assert sum(p.numel() for p in net.parameters()) == count


def test_the_small_stem_keeps_the_resolution_and_stages_halve_it():
    net = ResNet(10, stem="cifar", layers=(1, 1, 1), width=8)
    shapes = []
    for stage in net.stages:
        stage.register_forward_hook(lambda module, args, out: shapes.append(tuple(out.shape[1:])))
    assert net(torch.randn(2, 3, 32, 24)).shape == (2, 10)
    assert shapes == [(8, 32, 24), (16, 16, 12), (32, 8, 6)]


def test_every_residual_branch_starts_as_zero():
    net = ResNet(10, stem="cifar", layers=(1,), width=8).eval()
    x = torch.randn(2, 8, 8, 8).relu()
    assert torch.equal(net.stages[0](x), x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": ()}, r"layers \[\] is not positive"),
        ({"layers": (2, 0)}, r"layers \[2, 0\] is not positive"),
        ({"width": 0}, "width 0 is not positive"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ResNet(10, **options)
