"""Classes of images, with a ViT."""

from typing import Any

from lit_models.image_classifier import LitImageClassifier
from lit_models.nn.vit import ViT


class LitViT(LitImageClassifier):
    """`LitImageClassifier` with a ViT, plain or hybrid.

    Source: Dosovitskiy et al. 2021.
    """

    net: ViT

    def __init__(self, net: ViT, *args: Any, **options: Any) -> None:
        super().__init__(net, *args, **options)

    def flops_per_unit(self) -> float:
        return self.net.flops_per_image
