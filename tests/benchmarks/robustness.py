"""From icons of fonts seen in training to fonts never seen: a CLIP without labels beside a supervised classifier.

    python -m pipeline fit --config configs/clip.yaml
    python -m pipeline fit --config configs/vit_icons.yaml
    python -m tests.benchmarks.robustness --clip runs/clip --vit runs/vit_icons

Both have learned from the same icons, and both choose among the same captions: those of a group's icons that training knows.
The classifier's other logits are left out. The CLIP is asked with each template alone and with all of them, and beside both
stands the nearest training icon by its pixels. Accuracy is the chance of a right first choice where choices tie.
"""

import argparse
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from datamodules.image_text import ImageTextDataModule
from datamodules.image_text_pairs import Texts
from datamodules.sources.icons import SEEN, Icons
from datamodules.tokenizers.base import load_tokenizer
from lit_models.clip import ensemble, right_pairs, zero_shot_task
from lit_models.metrics.retrieval import recall_at
from lit_models.nn.clip import CLIP
from lit_models.nn.vit import ViT
from lit_models.nn.weights import find_checkpoint

BATCH = 512


def load(kind: type[nn.Module], run_dir: str) -> tuple[Any, dict[str, Any]]:
    """A network and what its checkpoint carries."""
    checkpoint = torch.load(find_checkpoint(run_dir), map_location="cpu", weights_only=True)
    net = kind(**checkpoint["hyper_parameters"]["net"])
    net.load_state_dict({name.removeprefix("net."): value for name, value in checkpoint["state_dict"].items()})
    return net.eval(), checkpoint["assets"]


def rows_of(data: ImageTextDataModule, split: str) -> tuple[Tensor, dict[str, Tensor], list[str]]:
    """The images (N, 3, H, W) of a split, what belongs together as in LitCLIP's `epoch_rows`, and its captions."""
    dataset = data.dataset(split)
    batches = [dataset[0, part, part] for part in np.array_split(np.arange(len(dataset)), -(-len(dataset) // BATCH))]
    names = {"index": "index", "groups": "groups", "pairs": "pairs", "captions": "new_captions", "is_class": "is_class"}
    rows = {name: torch.cat([batch[key] for batch in batches]) for name, key in names.items()}
    captions = [dataset.caption(int(number)) for number in rows["captions"]]
    return torch.cat([batch["images"] for batch in batches]), {**rows, "images": rows["index"]}, captions


def training_icons(data: ImageTextDataModule) -> tuple[Tensor, list[str]]:
    """The images (N, 3, H, W) of the training split, and the caption of each."""
    dataset = data.dataset("train")
    every = np.arange(len(dataset))
    return dataset.images(0, every, every), [dataset.caption(int(dataset.own(i)[0])) for i in every]


def in_batches(function: Any, x: Tensor) -> Tensor:
    return torch.cat([function(part) for part in x.split(BATCH)])


@torch.no_grad()
def compare(
    clip_dir: str, vit_dir: str | None, templates: list[str], cache_dir: str | None = None
) -> dict[str, dict[str, float]]:
    """group -> way -> accuracy."""
    clip, assets = load(CLIP, clip_dir)
    vit, classes = (None, {})
    if vit_dir:
        vit, vit_assets = load(ViT, vit_dir)
        classes = {name: i for i, name in enumerate(vit_assets["classes"])}
    tokenizer = load_tokenizer(assets["tokenizer"])
    height, width = assets["image_size"]
    options = {"mean": assets["mean"], "std": assets["std"], "cache_dir": cache_dir}
    data = ImageTextDataModule(Icons(), tokenizer, 2, (height, width), **options)
    data.prepare()
    training, training_captions = training_icons(data)
    made: dict[str, dict[str, float]] = {}
    for split in ("validation", "test"):
        images, rows, captions = rows_of(data, split)
        right, features = right_pairs(rows), in_batches(clip.encode_image, images)
        prompts = Texts(tokenizer, templates, clip.text.positions.shape[1]).prompts(captions)
        texts = in_batches(lambda part: clip.encode_text(part.flatten(0, 1)).unflatten(0, part.shape[:2]), prompts)  # (M, P, E)
        logits = None if vit is None else in_batches(vit, images)
        for number, group in enumerate(data.groups):
            chosen, known = zero_shot_task(rows, right, number)
            if len(known) < 2:
                continue
            name, answers = (f"{SEEN}, {split}" if group == SEEN else group), right[chosen][:, known]
            own = made[name] = {"icons": len(chosen), "classes": len(known)}
            own["nearest pixels"] = nearest(images[chosen], training, [captions[i] for i in known], answers, training_captions)
            for i, template in enumerate(templates):
                own[f"CLIP, {template!r}"] = recall_at(features[chosen], texts[known, i], answers, ks=(1,))[1]
            own["CLIP, all prompts"] = recall_at(features[chosen], ensemble(texts[known]), answers, ks=(1,))[1]
            if logits is not None:
                columns = logits[chosen][:, [classes[captions[i]] for i in known]]
                own["classifier"] = recall_at(columns, torch.eye(len(known)), answers, ks=(1,))[1]
    return made


def nearest(images: Tensor, training: Tensor, names: list[str], right: Tensor, captions: list[str]) -> float:
    """Share of images whose nearest training icon, of those with one of the names, has a right one."""
    numbers = {name: i for i, name in enumerate(names)}
    kept = [i for i, caption in enumerate(captions) if caption in numbers]
    of_kept = torch.tensor([numbers[captions[i]] for i in kept])
    found = torch.cdist(images.flatten(1), training[kept].flatten(1)).argmin(1)
    return float(right[torch.arange(len(images)), of_kept[found]].float().mean())


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clip", required=True, help="run folder of configs/clip.yaml")
    parser.add_argument("--vit", help="run folder of configs/vit_icons.yaml")
    parser.add_argument("--templates", nargs="+", default=["{}", "{} icon", "an icon of a {}", "a {} symbol"])
    args = parser.parse_args(argv)
    made = compare(args.clip, args.vit, args.templates)
    table = Table("", *made)
    for way in next(iter(made.values())):
        cells = [own[way] for own in made.values()]
        table.add_row(way, *(str(cell) if isinstance(cell, int) else f"{cell:.3f}" for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    main()
