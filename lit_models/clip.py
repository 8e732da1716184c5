"""Images and texts in one space, with CLIP."""

from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from datamodules.batch import ImageTextBatch
from lit_models.base import LitBase, Loss
from lit_models.losses.contrastive import contrast, gather, sigmoid_contrast
from lit_models.metrics.retrieval import recall_at
from lit_models.nn.clip import CLIP


class LitCLIP(LitBase):
    """Each pair against all others of the batch: the mean over pairs of the cross-entropies in both directions, in nats.

    In training the others are those of all ranks, with the gradient of one process that has the whole batch. A device takes
    micro_batch_size pairs at once: of a larger batch features are computed twice, first without and then with a graph, so that
    memory is bounded and the loss still sees the whole (Gao et al. 2021, section 3). Equal captions or images in a batch are no
    negatives of each other. In evaluation the others are those of the same batch, of whatever rank.

    Evaluation gives recall@1, 5 and 10 both ways among all captions and images of the split, recall@10 also for the captions
    alone that are new to training, and for each of the data's groups zero_shot: the share of its images whose caption is the
    nearest of those of the group's captions that training knows too.
    Ties count as chance would have them.

    Source: Radford et al. 2021 (CLIP), section 2.3; loss sigmoid: Zhai et al. 2023 (SigLIP).

    Args:
        loss: softmax or sigmoid; the runner links the network's logit_bias to it.
        groups: names of the data's parts in the order of their numbers; the runner links them to the data's.

    Raises:
        ValueError: loss is unknown, or the network has no logit_bias for the sigmoid loss, or has one without it.
    """

    unit = "pairs"
    counted = "pair"
    net: CLIP

    def __init__(
        self, net: CLIP, *args: Any, loss: Literal["softmax", "sigmoid"] = "softmax", groups: list[str] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        if loss not in ("softmax", "sigmoid"):
            raise ValueError(f"loss {loss!r} is none of softmax, sigmoid")
        if (net.logit_bias is not None) != (loss == "sigmoid"):
            raise ValueError(f"loss {loss} needs a network with logit_bias {loss == 'sigmoid'}".lower())
        super().__init__(net, *args, **options)
        self.loss, self.groups = loss, groups or [""]

    def step(self, batch: ImageTextBatch) -> Loss:
        images, texts = self._features(batch)
        all_images, all_texts = images, texts
        numbers = all_numbers = torch.stack((batch["image_numbers"], batch["caption_numbers"]))  # (2, B)
        own = torch.arange(len(images), device=images.device)
        if self.training and self.trainer.world_size > 1:
            all_images, all_texts, all_numbers = gather(images), gather(texts), gather(numbers.T).T
            own = own + len(images) * self.global_rank
        equal = (numbers[:, :, None] == all_numbers[:, None]).any(0)  # (B, N)
        to_texts, to_images = self.net.logits(images, all_texts), self.net.logits(all_images, texts).T
        count = torch.full((), len(images), device=images.device)
        if self.loss == "sigmoid":
            text_loss, text_right = sigmoid_contrast(to_texts, own, equal)
            image_loss, image_right = sigmoid_contrast(to_images, own, equal)
        else:
            text_loss, text_right = contrast(to_texts, own, equal)
            image_loss, image_right = contrast(to_images, own, equal)
        metrics = {
            "image_to_text_loss": (text_loss.detach(), count), "text_to_image_loss": (image_loss.detach(), count),
            "image_to_text_accuracy": (text_right, count), "text_to_image_accuracy": (image_right, count),
        }  # fmt: skip
        if self.training:
            metrics["logit_scale"] = (self.net.scale.detach() * count, count)
            return Loss((text_loss + image_loss) / 2, count, metrics)
        return Loss((text_loss + image_loss) / 2, count, metrics, rows=self._rows(batch, images))

    def _features(self, batch: ImageTextBatch) -> tuple[Tensor, Tensor]:
        """(B, E) of the images and of the texts."""
        images, input_ids, size = batch["images"], batch["input_ids"], batch["micro_batch_size"]
        if not torch.is_grad_enabled() or len(images) <= size:
            return self.net(images, input_ids)
        # With the graph of one chunk at a time: checkpoint keeps the results only, and computes again in backward.
        chunks = zip(images.split(size), input_ids.split(size), strict=True)
        parts = [checkpoint(self.net, *chunk, use_reentrant=False) for chunk in chunks]
        image_parts, text_parts = zip(*parts, strict=True)
        return torch.cat(image_parts), torch.cat(text_parts)

    def _rows(self, batch: ImageTextBatch, images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        pairs, new = batch["pairs"], batch["new_captions"]
        # A pair's key is unique in a split: both numbers are below 2^31.
        rows = {"pairs": (pairs[:, 0] * 2**31 + pairs[:, 1], pairs), "groups": (batch["index"], batch["groups"])}
        rows |= {"images": (batch["index"], images), "index": (batch["index"], batch["index"])}
        if len(new):
            prompts = batch["prompts"]
            features = self.net.encode_text(prompts.flatten(0, 1)).unflatten(0, prompts.shape[:2])  # (M, P, E)
            rows |= {"texts": (new, ensemble(features)), "captions": (new, new), "is_class": (new, batch["is_class"])}
        return rows

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        rows = self.epoch_rows
        if "images" not in rows:
            return {}
        images, texts, right = rows["images"].float(), rows["texts"].float(), right_pairs(rows)
        made = {f"image_to_text_recall_at_{k}": value for k, value in recall_at(images, texts, right).items()}
        made |= {f"text_to_image_recall_at_{k}": value for k, value in recall_at(texts, images, right.T).items()}
        new = ~rows["is_class"]
        if new.any():
            made["image_to_text_recall_at_10_new"] = recall_at(images, texts, right & new, ks=(10,))[10]
            made["text_to_image_recall_at_10_new"] = recall_at(texts[new], images, right.T[new], ks=(10,))[10]
        for number, name in enumerate(self.groups):
            chosen, classes = zero_shot_task(rows, right, number)
            if len(classes) > 1:
                accuracy = recall_at(images[chosen], texts[classes], right[chosen][:, classes], ks=(1,))[1]
                made[zero_shot_name(name)] = accuracy
        return made

    def monitored(self, data: Any) -> list[str]:
        names = ["loss", "image_to_text_loss", "text_to_image_loss", "image_to_text_accuracy", "text_to_image_accuracy"]
        names += [f"{way}_recall_at_{k}" for way in ("image_to_text", "text_to_image") for k in (1, 5, 10, "10_new")]
        groups = data.zero_shot_groups("validation")
        return [f"val/{name}" for name in (*names, *(zero_shot_name(group) for group in groups))]

    def units(self, batch: ImageTextBatch) -> int:
        return batch["num_pairs"]

    def predict_step(self, batch: ImageTextBatch, batch_idx: int) -> dict[str, Tensor]:
        """The cosine similarity of each image and its first caption: index, similarity, each (B,)."""
        images, texts = self.net(batch["images"], batch["input_ids"])
        return {"index": batch["index"], "similarity": (images.float() * texts.float()).sum(-1)}

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.net.clamp_logit_scale()


def zero_shot_name(group: str) -> str:
    return f"zero_shot_{group}" if group else "zero_shot"


def ensemble(features: Tensor) -> Tensor:
    """(M, P, E) features of P prompts each -> (M, E) of length 1. Source: Radford et al. 2021, section 3.1.4."""
    return F.normalize(features.mean(1), dim=-1)


def right_pairs(rows: dict[str, Tensor]) -> Bool[Tensor, "I C"]:
    """Which captions are which images' own, in the order of `rows`' images and captions."""
    right = torch.zeros(len(rows["images"]), len(rows["captions"]), dtype=torch.bool)
    own, numbers = rows["pairs"].T.contiguous()
    right[torch.searchsorted(rows["index"], own), torch.searchsorted(rows["captions"], numbers)] = True
    return right


def zero_shot_task(rows: dict[str, Tensor], right: Bool[Tensor, "I C"], group: int) -> tuple[Tensor, Tensor]:
    """The places of a group's images that have a caption which training knows, and of those captions: the classes."""
    known = right & rows["is_class"] & (rows["groups"] == group)[:, None]
    return known.any(1).nonzero()[:, 0], known.any(0).nonzero()[:, 0]
