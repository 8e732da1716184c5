import io
import json
import os
import pickle

import datasets
import pytest
from PIL import Image

from datamodules.image_decoding import decode
from datamodules.sources.image_hub import HubImages

NAMES = ["cat", "ant", "bee"]  # not the order of the alphabet


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def png(value=0):
    file = io.BytesIO()
    Image.new("L", (3, 2), value).save(file, "PNG")
    return file.getvalue()


def hub(folder, names=NAMES, image=None, **labels):
    """A data set as the hub has it: a Parquet file for each split, the classes' names in its metadata."""
    (folder / "data").mkdir(parents=True)
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = datasets.Features({"img": image or datasets.Image(), "fine_label": label})
    for split, numbers in labels.items():
        images = [{"bytes": png(i), "path": f"{i}.png"} for i in range(len(numbers))]
        images = images if image is None else [picture["bytes"] for picture in images]
        rows = datasets.Dataset.from_dict({"img": images, "fine_label": numbers}, features=features)
        rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def source(name, **options):
    return HubImages(name, image="img", label="fine_label", **options)


def test_own_splits_names_and_bytes(tmp_path):
    images = source(hub(tmp_path, train=[2, 0, 2], valid=[0], test=[2, 1]))
    assert images.classes() is None
    splits = images.load()
    assert images.classes() == NAMES
    assert {split: rows["label"][:] for split, rows in splits.items()} == {
        "train": ["bee", "cat", "bee"], "validation": ["cat"], "test": ["bee", "ant"],
    }  # fmt: skip
    assert splits["validation"]["row"][:] == ["valid, row 1"] and splits["train"].column_names == ["image", "label", "row"]
    assert splits["train"][1]["image"] == {"bytes": png(1), "path": "1.png"} and not splits["train"].features["image"].decode
    assert splits["train"].cache_files  # mapped from the disk, not held in memory


def test_validation_is_cut_or_named(tmp_path):
    name = hub(tmp_path, train=sorted([0, 1] * 50), test=[0, 1])
    splits = source(name, val_fraction=0.2).load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 80, "validation": 20, "test": 2}
    for row in splits["validation"]:  # bytes, label and row stay together
        number = int(row["row"].split()[-1]) - 1
        assert decode(row["image"], "")[0, 0, 0] == number and row["label"] == NAMES[number // 50]
    assert {split: len(rows) for split, rows in source(name, validation="test").load().items()} == {
        "train": 100,
        "validation": 2,
    }
    with pytest.raises(ValueError, match=r"has no split 'dev' for validation: its splits are train, test"):
        source(name, validation="dev").load()


def test_a_column_of_bytes_and_labels_without_names(tmp_path):
    images = source(hub(tmp_path, None, datasets.Value("binary"), train=[7, 11] * 10, test=[-1, -1]))
    splits = images.load()
    assert set(splits["train"]["label"]) == {"7", "11"} and images.classes() is None
    assert splits["test"]["label"][:] == [None, None]
    assert splits["test"][1]["image"] == {"bytes": png(1), "path": None}


def test_a_folder_of_image_files(tmp_path):
    for split in ("train", "test"):
        for i, label in enumerate(("red", "blue") * 5):
            path = tmp_path / split / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(i))
    images = HubImages(str(tmp_path))
    splits = images.load()
    assert images.classes() == ["blue", "red"] and len(splits["test"]) == 10
    assert {decode(row["image"], "")[0, 0, 0] for row in splits["test"] if row["label"] == "red"} == {0, 2, 4, 6, 8}


def test_what_is_refused_names_the_set(tmp_path):
    name = hub(tmp_path / "a", train=[0, 1])
    with pytest.raises(ValueError, match=r"the data set .*/a: train has no column 'image': its columns are img, fine_label"):
        HubImages(name).load()
    with pytest.raises(
        ValueError, match=r"the data set .*/a: train: column 'fine_label' holds ClassLabel.*images were expected"
    ):
        HubImages(name, image="fine_label", label="img").load()
    with pytest.raises(ValueError, match=r"the data set .*/b: train, row 2 has no label .*: every row of the train split"):
        source(hub(tmp_path / "b", train=[0, -1, 1])).load()
    with pytest.raises(FileNotFoundError, match=r"the data set .*none cannot be found or reached"):
        HubImages(str(tmp_path / "none")).load()
    (tmp_path / "c").mkdir()
    rows = [{"image": None, "label": 0}]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "c" / "train.parquet")
    with pytest.raises(ValueError, match=r"the data set .*/c: train, row 1: column 'image' holds no image"):
        HubImages(str(tmp_path / "c")).load()


def test_fingerprint_follows_options_and_the_state_of_a_local_folder(tmp_path):
    name = hub(tmp_path / "a", train=[0, 1])
    options = [{}, {"config": "x"}, {"validation": "v"}, {"test": "t"}, {"val_fraction": 0.2}, {"revision": "1"}]
    seen = {source(name, **option).fingerprint() for option in options} | {HubImages(name).fingerprint()}
    assert len(seen) == 7 and source(name).fingerprint() in seen
    os.utime(tmp_path / "a" / "data" / "train-00000-of-00001.parquet", ns=(0, 0))
    assert source(name).fingerprint() not in seen
    assert HubImages("uoft-cs/cifar10").fingerprint() != HubImages("uoft-cs/cifar100").fingerprint()


def test_describe_and_pickle(tmp_path):
    assert HubImages("timm/resisc45", "x").describe() == "the data set timm/resisc45 (x)"
    images = source(hub(tmp_path, train=[0, 1, 2] * 5))
    splits = images.load()
    again = pickle.loads(pickle.dumps(images))  # noqa: S301
    assert len(pickle.dumps(images)) < 1000 and json.dumps(again.load()["train"]["row"][:]) == json.dumps(
        splits["train"]["row"][:]
    )
