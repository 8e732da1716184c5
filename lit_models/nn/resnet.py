"""Residual networks of convolutions."""

from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

EXPANSION = 4
"""Channels that leave a bottleneck, over those within it."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Source: He et al. 2016, figure 2.
    """

    def __init__(self, in_channels: int, width: int, stride: int):
        super().__init__()
        self.conv1 = _conv(in_channels, width, 3, stride)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(in_channels, width, stride)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + (x if self.shortcut is None else self.shortcut(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the 3x3 one has the stride.

    Source: He et al. 2016, figure 5; the stride as in torchvision's resnet50.
    """

    def __init__(self, in_channels: int, width: int, stride: int):
        super().__init__()
        self.conv1 = _conv(in_channels, width, 1)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, EXPANSION * width, 1)
        self.norm3 = nn.BatchNorm2d(EXPANSION * width)
        self.shortcut = _shortcut(in_channels, EXPANSION * width, stride)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C2 H2 W2"]:
        h = F.relu(self.norm1(self.conv1(x)))
        h = F.relu(self.norm2(self.conv2(h)))
        return F.relu(self.norm3(self.conv3(h)) + (x if self.shortcut is None else self.shortcut(x)))


@final
class ResNet(nn.Module):
    """Stages of residual blocks, each at half the resolution and twice the width of the one before, then a mean and a head.

    ResNet-18 is the default; ResNet-50 has block bottleneck and layers (3, 4, 6, 3). Batch norm makes an image's result depend
    on its batch: in training, micro-batches and ranks each have statistics of their own (`trainer.sync_batchnorm` joins the
    ranks'), so that a ResNet alone of all networks here is not the same on any number of them.

    Source: He et al. 2016, in torchvision's form; the cifar stem as in its section 4.2.

    Args:
        layers: blocks in each stage.
        width: channels of the first stage.
        stem: imagenet, a 7x7 convolution and max pooling that leave a quarter of height and width; or cifar, 3x3 of stride 1.

    Raises:
        ValueError: a size is not positive.
    """

    heads: tuple[str, ...] = ("head",)
    """Modules that belong to a task: a warm start from another task's network may leave them out or start them anew."""

    def __init__(
        self,
        num_classes: int,
        *,
        in_channels: int = 3,
        block: Literal["basic", "bottleneck"] = "basic",
        layers: tuple[int, ...] = (2, 2, 2, 2),
        width: int = 64,
        stem: Literal["imagenet", "cifar"] = "imagenet",
    ):
        super().__init__()
        sizes = {"num_classes": num_classes, "in_channels": in_channels, "width": width, "layers": min(layers, default=0)}
        for name, value in sizes.items():
            if value <= 0:
                raise ValueError(f"{name} {list(layers) if name == 'layers' else value} is not positive")
        self.pool = stem == "imagenet"
        self.conv = _conv(in_channels, width, 7, 2) if stem == "imagenet" else _conv(in_channels, width, 3)
        self.norm = nn.BatchNorm2d(width)
        kind: type[BasicBlock] | type[Bottleneck] = BasicBlock if block == "basic" else Bottleneck
        expansion = 1 if block == "basic" else EXPANSION
        channels = width
        self.stages = nn.ModuleList()
        for i, num_blocks in enumerate(layers):
            stage = nn.Sequential()
            for j in range(num_blocks):
                stage.append(kind(channels, width * 2**i, 2 if i > 0 and j == 0 else 1))
                channels = width * 2**i * expansion
            self.stages.append(stage)
        self.head = nn.Linear(channels, num_classes)
        self._init_weights()

    def features(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """The mean over the places of the last stage."""
        x = images.contiguous(memory_format=torch.channels_last)  # faster on CPUs and on GPUs with tensor cores
        x = F.relu(self.norm(self.conv(x)))
        if self.pool:
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B num_classes"]:
        return self.head(self.features(images))

    def _init_weights(self) -> None:
        """Convolutions as He et al. 2015, by the outputs; a residual branch starts as zero (Goyal et al. 2017, section 5.1)."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(module, BasicBlock):
                nn.init.zeros_(module.norm2.weight)
            if isinstance(module, Bottleneck):
                nn.init.zeros_(module.norm3.weight)


def _conv(in_channels: int, out_channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))
