"""Batches of images and texts: which captions, how they become ids, what counts as equal, what is refused."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from datamodules.augment import Augmentation
from datamodules.image_text import ImageTextDataModule
from datamodules.sources.base import ImageTextSource
from datamodules.sources.image_base import encoded_images
from datamodules.tokenizers.bpe import BPETokenizer
from datamodules.tokenizers.bytes import ByteTokenizer

CAPTIONS = {
    "train": [["a dark square", "night"], ["grey"], ["a light square", "day", "noon"], ["grey"], ["white"], ["a dark square"]],
    "validation": [["grey", "night"], ["fog"], ["night"]],
}
LEVELS = {"train": [10, 100, 200, 100, 255, 20], "validation": [90, 30, 60]}
GROUPS = {"train": ["a"] * 6, "validation": ["b", "c", "b"]}


class Greys(ImageTextSource):
    """Small images of one grey each."""

    def __init__(self, captions: dict[str, list[list[str]]] = CAPTIONS, name: str = "greys") -> None:
        self.captions, self.name = captions, name

    def load(self) -> datasets.DatasetDict:
        made = {}
        for split, captions in self.captions.items():
            rows = encoded_images(Image.new("L", (6, 4), level) for level in LEVELS[split][: len(captions)])
            rows = rows.add_column("captions", captions).add_column("group", GROUPS[split][: len(captions)])
            made[split] = rows.add_column("row", [f"{split} {i}" for i in range(len(captions))])
        return datasets.DatasetDict(made)

    def fingerprint(self) -> str:
        return f"{self.name} {self.captions}"

    def describe(self) -> str:
        return self.name


@pytest.fixture
def make(tmp_path: Path) -> Any:
    def made(source: ImageTextSource | None = None, **options: Any) -> ImageTextDataModule:
        tokenizer = options.pop("tokenizer", BPETokenizer(300, lowercase=True))
        options = {"batch_size": 2, "image_size": (4, 6), "max_seq_len": 24, "cache_dir": str(tmp_path), **options}
        data = ImageTextDataModule(source or Greys(), tokenizer, **options)
        data.prepare()
        return data

    return made


def batch(data: ImageTextDataModule, split: str, indices: list[int], epoch: int = 0) -> Any:
    chosen = np.array(indices)
    return data.dataset(split)[epoch, chosen, chosen]


def text(data: ImageTextDataModule, ids: torch.Tensor) -> str:
    """What a row of ids says, its end tokens and padding shown."""
    return data.tokenizer.decode(ids.tolist(), skip_special_tokens=False).strip()


def test_a_batch_of_training(make: Any) -> None:
    data = make()
    got = batch(data, "train", [1, 4])
    assert [text(data, ids).replace("[PAD]", "") for ids in got["input_ids"]] == ["grey[EOS]", "white[EOS]"]
    assert got["images"].shape == (2, 3, 4, 6) and got["images"][0, 0, 0, 0] == pytest.approx(2 * 100 / 255 - 1)
    assert (got["num_pairs"], got["micro_batch_size"], got["index"].tolist()) == (2, 2, [1, 4])
    assert not {"prompts", "pairs"} & got.keys()


def test_captions_and_templates_are_drawn_by_seed_epoch_and_sample(make: Any) -> None:
    data = make(templates=["{}", "a picture of {}"], seed=1)
    drawn = {epoch: batch(data, "train", [2, 0], epoch) for epoch in range(40)}
    texts = {text(data, got["input_ids"][0]).split("[EOS]")[0] for got in drawn.values()}
    assert texts == {f"{start}{caption}" for start in ("", "a picture of ") for caption in ("a light square", "day", "noon")}
    alone = batch(data, "train", [2], 7)
    assert torch.equal(alone["caption_numbers"][0], drawn[7]["caption_numbers"][0])
    again = make(templates=["{}", "a picture of {}"], seed=1)
    assert all(torch.equal(batch(again, "train", [2, 0], e)["input_ids"], got["input_ids"]) for e, got in drawn.items())
    other = make(templates=["{}", "a picture of {}"], seed=2)
    same = [
        torch.equal(batch(other, "train", [2, 0], e)["caption_numbers"], got["caption_numbers"]) for e, got in drawn.items()
    ]
    assert 3 < sum(same) < 30


def test_equal_captions_and_images_have_equal_numbers(make: Any) -> None:
    got = batch(make(), "train", [1, 3, 4])
    assert got["caption_numbers"][0] == got["caption_numbers"][1] != got["caption_numbers"][2]
    assert got["image_numbers"][0] == got["image_numbers"][1] != got["image_numbers"][2]
    encoded = batch(make(memory_limit_gb=0), "train", [1, 3, 4])
    assert torch.equal(encoded["image_numbers"], got["image_numbers"]) and torch.equal(encoded["images"], got["images"])


def test_a_batch_of_evaluation_brings_each_caption_once_in_every_prompt(make: Any) -> None:
    data = make(templates=["{}", "the word {}"])
    one, two = batch(data, "validation", [0, 1]), batch(data, "validation", [2])
    first = [text(data, ids).split("[EOS]")[0] for ids in one["input_ids"]]
    assert first == ["grey", "fog"]  # the first caption, in the first template
    prompts = [[text(data, ids).split("[EOS]")[0] for ids in caption] for caption in one["prompts"]]
    assert prompts == [[c, f"the word {c}"] for c in ("grey", "night", "fog")]
    assert one["new_captions"].tolist() == [0, 1, 2] and one["is_class"].tolist() == [True, True, False]
    assert one["pairs"].tolist() == [[0, 0], [0, 1], [1, 2]] and two["pairs"].tolist() == [[2, 1]]
    assert two["prompts"].shape[0] == len(two["new_captions"]) == 0
    assert data.groups == ["a", "b", "c"] and one["groups"].tolist() == [1, 2]


def test_a_caption_that_is_too_long_is_cut_and_counted(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    captions = {"train": [["a"], ["ab" * 5], ["abcdefghijkl"]], "validation": [["a"]]}
    data = make(Greys(captions), tokenizer=ByteTokenizer(["[PAD]", "[EOS]"]), max_seq_len=12)
    assert "train: 1 captions longer than max_seq_len 12 are cut off" in capsys.readouterr().out
    got = batch(data, "train", [0, 1, 2])["input_ids"]
    assert got.shape == (3, 12) and (got[1:, -1] == data.eos_id).all()
    assert text(data, got[2]) == "abcdefghij[EOS]" and (got[0, 3:] == data.tokenizer.pad_id).all()
    make(Greys(captions), tokenizer=ByteTokenizer(["[PAD]", "[EOS]"]), max_seq_len=13, templates=["{}", "a {}"])
    assert "train: 2 captions longer" in capsys.readouterr().out


def test_braces_in_a_caption_are_text(make: Any) -> None:
    data = make(Greys({"train": [["{0} {}"], ["x"]], "validation": [["x"]]}), templates=["<{}>"])
    assert text(data, batch(data, "train", [0])["input_ids"][0]) == "<{0} {}>[EOS]"


def test_the_dataset_pickles_small_and_reads_the_same_in_a_worker(make: Any) -> None:
    for limit in (2.0, 0.0):
        dataset = make(memory_limit_gb=limit).dataset("train")
        _ = dataset[0, np.array([0]), np.array([0])]
        content = pickle.dumps(dataset)
        again = pickle.loads(content)[3, np.array([0, 2]), np.array([0, 2])]  # noqa: S301
        assert len(content) < 100_000
        assert torch.equal(again["input_ids"], dataset[3, np.array([0, 2]), np.array([0, 2])]["input_ids"])


def test_the_cache_is_used_and_follows_what_changes_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    calls = []
    load = Greys.load
    monkeypatch.setattr(Greys, "load", lambda self: calls.append(self.name) or load(self))
    make(templates=["a {}"], max_seq_len=9, seed=4)
    assert not calls
    make(image_size=8)
    make(Greys(name="others"))
    make(tokenizer=BPETokenizer(280))
    assert calls == ["greys", "others", "greys"]


def test_a_rank_takes_its_whole_share_and_the_model_cuts_it(make: Any) -> None:
    data = make(batch_size=4, micro_batch_size=1)
    data.trainer = SimpleNamespace(world_size=2, global_rank=1, max_steps=3)
    assert data.accumulation(2) == 1
    (got, *_) = iter(data.train_dataloader())
    assert len(got["images"]) == 2 and got["micro_batch_size"] == 1
    with pytest.raises(ValueError, match="not a multiple of 3 devices x micro_batch_size 1"):
        data.accumulation(3)


@pytest.mark.parametrize(
    "options,message",
    [
        ({"batch_size": 1}, "batch_size is 1; a pair is compared with others, so it must be at least 2"),
        ({"eval_batch_size": 1}, "eval_batch_size is 1; a pair"),
        ({"templates": ["a photo"]}, "the template 'a photo' must have one {}"),
        ({"templates": ["{} {}"]}, "must have one {}"),
        ({"templates": []}, "templates is empty"),
        ({"augmentation": Augmentation(mixup=0.2)}, "mixup and cutmix are for classes"),
        ({"augmentation": Augmentation(erasing=2)}, "erasing 2 is no probability"),
        ({"tokenizer": BPETokenizer(300, ["[PAD]"])}, r"lacks \[EOS\]"),
        ({"tokenizer": ByteTokenizer(["[EOS]"])}, r"lacks \[PAD\]"),
        ({"image_size": 0}, "image_size 0 must be at least 1"),
    ],
)
def test_what_is_refused(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_no_such_split(make: Any) -> None:
    with pytest.raises(ValueError, match="greys has no test split; it has train, validation"):
        make().dataset("test")
