"""Files are written in each set's own format; where torchvision checks a digest, it is told that of these files."""

import gzip
import hashlib
import os
import pickle
import struct
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import scipy.io
import torchvision

from datamodules.image_decoding import decode
from datamodules.sources.torchvision_sets import TorchvisionSet

GENERATOR = np.random.default_rng(0)
GREY = {split: GENERATOR.integers(0, 256, (size, 28, 28), dtype=np.uint8) for split, size in (("train", 40), ("t10k", 6))}


def mnist(root, name="MNIST"):
    """The idx files: magic number, sizes, bytes."""
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for split, images in GREY.items():
        head = struct.pack(">IIII", 0x803, *images.shape)
        (folder / f"{split}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = bytes(i % 10 for i in range(len(images)))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, len(labels)) + labels)
    return str(root)


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()  # noqa: S324


@pytest.mark.parametrize(
    ("name", "first"), [("MNIST", ["0", "1", "2"]), ("FashionMNIST", ["T-shirt/top", "Trouser"]), ("KMNIST", ["o", "ki", "su"])]
)
def test_grey_images_come_back_to_the_bit(tmp_path, name, first):
    source = TorchvisionSet(name, mnist(tmp_path, name), val_fraction=0.25)
    assert source.classes() is None
    splits = source.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 30, "validation": 10, "test": 6}
    assert splits["train"].column_names == ["image", "label", "row"] and not splits["train"].features["image"].decode
    names = source.classes()
    assert names[: len(first)] == first and len(names) == 10
    for split, rows in splits.items():
        own, images = ("test", GREY["t10k"]) if split == "test" else ("train", GREY["train"])
        for row in rows:
            number = int(row["row"].removeprefix(f"{name} {own}, row ")) - 1
            assert (decode(row["image"], row["row"]) == images[number][:, :, None]).all()
            assert row["label"] == names[number % 10]


def test_cifar10(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    pixels = GENERATOR.integers(0, 256, (24, 3072), dtype=np.uint8)
    lists = {"train_list": [], "test_list": []}
    for i in range(6):
        kind, name = ("test_list", "test_batch") if i == 5 else ("train_list", f"data_batch_{i + 1}")
        batch = {"data": pixels[4 * i : 4 * i + 4], "labels": [i, 1, 2, 3]}
        (folder / name).write_bytes(pickle.dumps(batch))
        lists[kind].append([name, md5(folder / name)])
    names = [f"class {i}" for i in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    for kind, files in lists.items():
        monkeypatch.setattr(torchvision.datasets.CIFAR10, kind, files)
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(folder / "batches.meta")}
    monkeypatch.setattr(torchvision.datasets.CIFAR10, "meta", meta)
    source = TorchvisionSet("CIFAR10", str(tmp_path))
    splits = source.load()
    assert source.classes() == names and len(splits["train"]) + len(splits["validation"]) == 20
    row = splits["test"][0]
    assert (row["label"], row["row"]) == ("class 5", "CIFAR10 test, row 1")
    assert (decode(row["image"], "") == pixels[20].reshape(3, 32, 32).transpose(1, 2, 0)).all()  # in colour
    (folder / "test_batch").write_bytes(b"")
    with pytest.raises(ValueError, match="the data set CIFAR10 in .* cannot be read: Dataset not found or corrupted"):
        source.load()


def test_svhn_is_read_by_split_and_has_digits_for_names(tmp_path, monkeypatch):
    pixels, files = GENERATOR.integers(0, 256, (32, 32, 3, 6), dtype=np.uint8), {}
    for split in ("train", "test"):
        path = tmp_path / f"{split}_32x32.mat"
        scipy.io.savemat(path, {"X": pixels, "y": np.array([[10], [1], [2], [1], [2], [1]])})  # 10 stands for 0
        files[split] = ["", path.name, md5(path)]
    monkeypatch.setattr(torchvision.datasets.SVHN, "split_list", files)
    source = TorchvisionSet("SVHN", str(tmp_path))
    splits = source.load()
    assert source.classes() == list("0123456789") and splits["test"]["label"][:] == ["0", "1", "2", "1", "2", "1"]
    assert (decode(splits["test"][4]["image"], "") == pixels[..., 4]).all()


def test_missing_files_say_what_to_do(tmp_path):
    source = TorchvisionSet("MNIST", str(tmp_path))
    place = f"put its files into {tmp_path}/MNIST/raw"
    for call in (source.load, source.fingerprint):
        with pytest.raises(
            FileNotFoundError, match=rf"the data set MNIST in .* is not there: set download to true, or {place}"
        ):
            call()


def test_a_download_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"file://{tmp_path}/none/"])
    with pytest.raises(FileNotFoundError, match="MNIST in .* could not be downloaded: .*No such file or directory") as error:
        TorchvisionSet("MNIST", str(tmp_path / "new"), download=True).load()
    assert "\n" not in str(error.value)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A web server on this machine with the packed files, which torchvision is told to fetch."""
    folder = Path(mnist(tmp_path / "site")) / "MNIST" / "raw"
    packed = {path.name + ".gz": gzip.compress(path.read_bytes()) for path in folder.iterdir()}
    for name, content in packed.items():
        (folder / name).write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", [(name, md5(folder / name)) for name in packed])
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("site")
def test_a_download_is_done_once(tmp_path, monkeypatch):
    source = TorchvisionSet("MNIST", str(tmp_path / "new"), download=True)
    before = source.fingerprint()
    splits = source.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 36, "validation": 4, "test": 6}
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [])
    assert source.fingerprint() == before and source.load()["test"]["row"][:] == splits["test"]["row"][:]


def test_broken_files_are_not_called_missing(tmp_path):
    mnist(tmp_path)
    images = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-60])
    with pytest.raises(ValueError, match="the data set MNIST in .* cannot be read: ."):
        TorchvisionSet("MNIST", str(tmp_path)).load()


def test_options_that_are_refused():
    with pytest.raises(ValueError, match=r"name 'CIFAR' is none of MNIST, .*; did you mean 'CIFAR10'\?"):
        TorchvisionSet("CIFAR", "data")
    with pytest.raises(ValueError, match="val_fraction 0 must lie between 0 and 1"):
        TorchvisionSet("MNIST", "data", val_fraction=0)


def test_fingerprint_follows_files_and_options(tmp_path):
    root = mnist(tmp_path)
    first = TorchvisionSet("MNIST", root).fingerprint()
    others = {TorchvisionSet("MNIST", root, val_fraction=0.2).fingerprint(), TorchvisionSet("MNIST", root, True).fingerprint()}
    assert TorchvisionSet("MNIST", root + "/").fingerprint() == first and len({first, *others}) == 3
    os.utime(tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte", ns=(0, 0))
    assert TorchvisionSet("MNIST", root).fingerprint() not in {first, *others}


def test_describe_and_pickle(tmp_path):
    source = TorchvisionSet("MNIST", mnist(tmp_path))
    splits = source.load()
    assert source.describe() == f"the data set MNIST in {tmp_path}" and len(pickle.dumps(source)) < 1000
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert again.load()["validation"]["row"][:] == splits["validation"]["row"][:]
