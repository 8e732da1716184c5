"""Classes of images, with a ResNet."""

from typing import Any

from lit_models.image_classifier import LitImageClassifier
from lit_models.nn.resnet import ResNet


class LitResNet(LitImageClassifier):
    """`LitImageClassifier` with a ResNet. Batch norm is the one place where an image's result depends on its micro-batch.

    Source: He et al. 2016.
    """

    net: ResNet

    def __init__(self, net: ResNet, *args: Any, **options: Any) -> None:
        super().__init__(net, *args, **options)
