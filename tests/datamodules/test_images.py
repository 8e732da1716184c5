"""The datamodule of images: what is in a batch, whatever the batch; the cache; broken images and labels."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from datamodules.augment import Augmentation
from datamodules.images import ImageDataModule
from datamodules.sources.image_folder import ImageFiles, ImageFolder
from datamodules.sources.mnist import MNIST5K

MIXING = {"crop_padding": 2, "flip": True, "rand_augment": 1, "erasing": 0.3, "mixup": 0.4, "cutmix": 1.0}


@pytest.fixture
def folder(tmp_path):
    """Two classes of 12 images of several sizes, of one colour each: 10 * (number of the image)."""
    for name, start in (("cat", 0), ("dog", 12)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(start, start + 12):
            Image.new("RGB", (20 + i % 3, 16 + i % 2), (10 * i, 0, 255 - 10 * i)).save(tmp_path / f"photos/{name}/{i:02}.png")
    return tmp_path / "photos"


@pytest.fixture
def noise(folder):
    """The same with random pixels."""
    for i, path in enumerate(sorted(folder.rglob("*.png"))):
        pixels = np.random.default_rng(i).integers(0, 256, (16 + i % 2, 20 + i % 3, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


def module(folder, tmp_path, **options):
    changes = {name: options.pop(name) for name in [*options] if name in Augmentation.__annotations__}
    options = {"batch_size": 4, "image_size": 16, "cache_dir": str(tmp_path / "cache"), "seed": 3, **options}
    made = ImageDataModule(ImageFolder(str(folder), val_fraction=0.25), augmentation=Augmentation(**changes), **options)
    made.prepare()
    return made


def batch_of(dataset, indices, epoch=0):
    indices = np.asarray(indices)
    return dataset[epoch, indices, indices]


@pytest.mark.parametrize("memory_limit_gb", [2.0, 0.0], ids=["decoded", "encoded"])
def test_images_are_normalised_and_labels_are_numbers(folder, tmp_path, memory_limit_gb):
    data = module(folder, tmp_path, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.5), memory_limit_gb=memory_limit_gb)
    assert data.classes == ["cat", "dog"] and data.num_classes == 2
    rows = data.source.load()["validation"]
    batch = batch_of(data.dataset("validation"), range(len(rows)))
    assert batch["images"].shape == (6, 3, 16, 16) and batch["images"].dtype == torch.float32 and batch["num_images"] == 6
    for row, image, label in zip(rows, batch["images"], batch["labels"], strict=True):
        number = int(row["row"][-6:-4])
        assert data.classes[label] == row["label"] == ("cat" if number < 12 else "dog")
        red, blue = 10 * number / 255, 1 - 10 * number / 255
        expected = torch.tensor([(red - 0.4) / 0.2, (0 - 0.5) / 0.25, (blue - 0.6) / 0.5])
        torch.testing.assert_close(image, expected.view(3, 1, 1).expand(3, 16, 16), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [MIXING, {**MIXING, "min_scale": 0.4, "memory_limit_gb": 0.0}, {"min_scale": 0.4}],
    ids=["all", "encoded", "crops"],
)
def test_a_sample_is_the_same_in_any_batch_and_worker(noise, tmp_path, options):
    data = module(noise, tmp_path, **options)
    dataset, everything = data.dataset("train"), np.arange(18)
    whole = batch_of(dataset, everything, epoch=2)
    names = [name for name, value in whole.items() if isinstance(value, torch.Tensor)]
    assert ("label_weight" in names) == ("mixup" in options)
    for chosen in ([7], [3, 15, 4]):
        part = dataset[2, np.array(chosen), everything]
        assert all(torch.equal(part[name], whole[name][chosen]) for name in names)
    assert not torch.equal(batch_of(dataset, everything, epoch=3)["images"], whole["images"])
    loader = DataLoader(
        dataset, sampler=[(2, everything, everything)], batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    assert torch.equal(next(iter(loader))["images"], whole["images"])
    assert len(pickle.dumps(dataset)) < 10_000


def test_evaluation_is_not_augmented(folder, tmp_path):
    plain, augmented = module(folder, tmp_path), module(folder, tmp_path, **MIXING, min_scale=0.2)
    batches = [batch_of(data.dataset("validation"), range(6), epoch=1) for data in (plain, augmented)]
    assert torch.equal(batches[0]["images"], batches[1]["images"]) and "label_weight" not in batches[1]


def test_micro_batches_make_up_the_global_batch(noise, tmp_path):
    def served(**options):
        data = module(noise, tmp_path, **MIXING, **options)
        data.trainer = SimpleNamespace(world_size=1, global_rank=0, max_steps=5)
        return list(data.train_dataloader())

    whole, micro = served(), served(micro_batch_size=2)
    assert len(whole) == 5 and len(micro) == 10
    for name in ("images", "labels", "other_labels", "label_weight"):
        assert torch.equal(torch.cat([b[name] for b in whole]), torch.cat([b[name] for b in micro]))


def test_a_cached_set_is_not_decoded_again_until_it_changes(folder, tmp_path, monkeypatch):
    before = batch_of(module(folder, tmp_path).dataset("validation"), range(6))["images"]
    with monkeypatch.context() as patched:
        patched.setattr("datamodules.images.write_decoded", lambda *args: pytest.fail("decoded again"))
        assert torch.equal(batch_of(module(folder, tmp_path).dataset("validation"), range(6))["images"], before)
    for path in folder.rglob("*.png"):
        Image.new("RGB", (33, 40), "white").save(path)
    after = module(folder, tmp_path).dataset("validation")
    assert torch.equal(batch_of(after, range(6))["images"], torch.ones(6, 3, 16, 16))


def test_images_are_cut_at_the_centre_to_a_rectangle(tmp_path):
    image = Image.new("RGB", (60, 20), "white")
    image.paste("black", (25, 0, 35, 20))  # the middle third of what is left by a cut to 30 x 20
    for name in ("a", "b"):
        (tmp_path / "wide" / name).mkdir(parents=True)
        for i in range(3):
            image.save(tmp_path / "wide" / name / f"{i}.png")
    data = ImageDataModule(ImageFolder(str(tmp_path / "wide")), 2, (10, 15), cache_dir=str(tmp_path / "cache"))
    pixels = batch_of(data.dataset("train"), [0])["images"][0, 0]
    assert pixels.shape == (10, 15)
    assert (pixels[:, 6:9] < -0.9).all() and (pixels[:, :4] > 0.9).all() and (pixels[:, 11:] > 0.9).all()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_broken_image_is_named(folder, tmp_path, num_workers):
    path = folder / "dog" / "13.png"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"13\.png"):
        module(folder, tmp_path)
    data = module(folder, tmp_path, memory_limit_gb=0.0)
    keys = [(0, np.array([i]), np.array([i])) for i in range(18)]
    with pytest.raises(ValueError, match=r"13\.png"):
        list(DataLoader(data.dataset("train"), sampler=keys, batch_size=None, num_workers=num_workers))
        list(DataLoader(data.dataset("validation"), sampler=keys[:6], batch_size=None, num_workers=num_workers))


def test_one_class_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"all labels are 'cat', where two classes or more are needed"):
        for path in (folder / "dog").iterdir():
            path.unlink()
        (folder / "dog").rmdir()
        module(folder, tmp_path)


def test_unlabelled_images_take_the_classes_of_a_checkpoint(folder, tmp_path):
    checkpoint = tmp_path / "best.ckpt"
    torch.save({"assets": {"classes": ["cat", "dog"]}}, checkpoint)
    files = ImageFiles(str(folder / "cat"))
    data = ImageDataModule(files, 4, 16, init_from=str(checkpoint), cache_dir=str(tmp_path / "cache"))
    assert data.classes == ["cat", "dog"] and len(data.dataset("test")) == 12
    columns = {"index": [0, 1], "prediction": [1, 0], "probability": [0.75, 0.5], "label": [-100, -100]}
    table = data.readable("test", columns)
    assert table["input"] == [str(folder / "cat" / f"{i:02}.png") for i in (0, 1)]
    assert table["prediction"] == ["dog", "cat"] and "label" not in table
    with pytest.raises(ValueError, match="classes are not known"):
        ImageDataModule(files, 4, 16, cache_dir=str(tmp_path / "other")).prepare()
    with pytest.raises(ValueError, match="has no train split"):
        data.dataset("train")


def test_sizes_are_checked(folder, tmp_path):
    for options, message in (
        ({"image_size": 0}, "image_size 0 must be at least 1"),
        ({"std": (0.5, 0.0, 0.5)}, "std .* must be above 0"),
        ({"crop_padding": -1}, "crop_padding -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"train_fraction": 1.5}, "train_fraction 1.5 is not in"),
    ):
        with pytest.raises(ValueError, match=message):
            module(folder, tmp_path, **options)


def test_a_fraction_of_each_class_is_the_same_for_all_seeds(tmp_path):
    whole, tenth, other = (
        ImageDataModule(MNIST5K(), 10, 28, cache_dir=str(tmp_path), seed=seed, train_fraction=fraction).dataset("train")
        for seed, fraction in ((0, 1.0), (0, 0.1), (1, 0.1))
    )
    counts = np.bincount(whole.labels)
    assert np.bincount(tenth.labels).tolist() == [round(0.1 * count) for count in counts.tolist()]
    assert np.array_equal(tenth.rows, other.rows)
    part, full = batch_of(tenth, range(20))["images"], batch_of(whole, tenth.rows[:20])["images"]
    assert torch.equal(part, full)
    assert len(ImageDataModule(MNIST5K(), 10, 28, cache_dir=str(tmp_path)).dataset("test")) == 1000


def test_digits(tmp_path):
    data = ImageDataModule(MNIST5K(), 10, 28, cache_dir=str(tmp_path))
    assert [len(data.dataset(split)) for split in ("train", "validation", "test")] == [3500, 500, 1000]
    assert data.classes == [str(i) for i in range(10)]
    labels = torch.cat([torch.from_numpy(data.dataset(s).labels) for s in ("train", "validation", "test")])
    assert torch.equal(labels.bincount(), torch.full((10,), 500))
