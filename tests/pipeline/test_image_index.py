"""The index of features: what is computed, what is known, and whose features are whose."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from datamodules.image_cache import fit
from datamodules.image_decoding import decode
from datamodules.token_cache import default_cache_dir
from datamodules.tokenizers.bpe import BPETokenizer
from lit_models.nn.clip import CLIP
from pipeline.image_index import image_features
from pipeline.trained import Trained

ASSETS = {"image_size": [16, 24], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]}


def trained(path: Path, content: bytes = b"weights") -> Trained[CLIP]:
    torch.manual_seed(0)
    net = CLIP(
        (16, 24), 300, 1, max_seq_len=8, projection_dim=8, patch_size=8, image_num_layers=1, image_num_heads=2,
        image_embed_dim=16, text_num_layers=1, text_num_heads=2, text_embed_dim=16,
    )  # fmt: skip
    path.write_bytes(content)
    return Trained(net.eval(), BPETokenizer(), ASSETS, path)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trained[CLIP]:
    """A CLIP, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return trained(tmp_path / "model.ckpt")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Six noisy images of several sizes in a folder, and a seventh below it."""
    draws, folder = np.random.default_rng(0), tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for i in range(7):
        pixels = draws.integers(0, 256, (20 + i, 30 - i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / ("more" if i == 6 else "") / f"{i}.png")
    return folder


def own_features(model: Trained[CLIP], file: str) -> torch.Tensor:
    """Of one file, by the plainest way."""
    pixels = torch.from_numpy(fit(decode({"bytes": None, "path": file}, file), (16, 24))).movedim(-1, 0) / 255
    mean, std = (torch.tensor(ASSETS[name]).view(3, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        return model.net.encode_image(((pixels - mean) / std)[None])[0]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()


def index() -> Path:
    (path,) = (default_cache_dir() / "image_index").iterdir()
    return path


def test_each_image_has_its_own_features(pictures: Path, model: Trained[CLIP]) -> None:
    for batch_size in (3, 256):  # the second time they come from the index
        files, features = image_features(model, str(pictures), batch_size)
        assert len(files) == 7 and files == sorted(files) and str(pictures / "more/6.png") in files
        for file, row in zip(files, features, strict=True):
            torch.testing.assert_close(row, own_features(model, file), atol=1e-5, rtol=0)
    assert (features[0] - features[1]).abs().max() > 1e-3


def test_links_have_the_features_of_what_they_name(pictures: Path, model: Trained[CLIP], tmp_path: Path) -> None:
    """The order of links is another than that of their files, and a link's file may have no suffix."""
    folder = tmp_path / "links"
    folder.mkdir()
    (pictures / "5.png").rename(pictures / "blob")
    for name, target in {"a": "blob", "b": "1.png", "c": "3.png"}.items():
        (folder / f"{name}.png").symlink_to(pictures / target)
    files, features = image_features(model, str(folder), 256)
    assert files == [str(folder / f"{name}.png") for name in "abc"]
    for file, row in zip(files, features, strict=True):
        torch.testing.assert_close(row, own_features(model, file), atol=1e-5, rtol=0)


def test_relative_paths(
    pictures: Path, model: Trained[CLIP], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(pictures / "more")
    last = (pictures / "5.png").rename(pictures / "z.png")  # it sorts before "6.png", and after it when both are absolute
    files, features = image_features(model, ["6.png", "../0.png", str(last)], 256)
    for file, row in zip(files, features, strict=True):
        assert Path(file).is_absolute()
        torch.testing.assert_close(row, own_features(model, file), atol=1e-5, rtol=0)
    said(capsys)
    image_features(model, str(pictures), 256)
    assert said(capsys) == "7 images: 4 computed now, 3 known from before"  # an image is the same however it is named


def test_only_what_is_new_or_changed_is_computed(
    pictures: Path, model: Trained[CLIP], capsys: pytest.CaptureFixture[str]
) -> None:
    files, features = image_features(model, str(pictures), 5)
    assert said(capsys) == "7 images: 7 computed now, 0 known from before"
    again, kept = image_features(model, str(pictures / "*.png"), 5)
    assert said(capsys) == "6 images: 0 computed now, 6 known from before"
    assert again == [file for file in files if "/more/" not in file]
    assert torch.equal(kept, features[[files.index(file) for file in again]])
    Image.new("RGB", (9, 9), "white").save(files[3])
    os.utime(files[3], ns=(1, 1))
    _, changed = image_features(model, str(pictures), 5)
    assert said(capsys) == "7 images: 1 computed now, 6 known from before"
    torch.testing.assert_close(changed[3], own_features(model, files[3]), atol=1e-5, rtol=0)
    assert torch.equal(changed[:3], features[:3]) and torch.equal(changed[4:], features[4:])
    with np.load(index(), allow_pickle=False) as arrays:
        assert len(arrays["features"]) == 7  # what the file was before is forgotten
    os.utime(files[2], ns=(2, 2))  # the same size, another time
    image_features(model, str(pictures), 5)
    assert said(capsys) == "7 images: 1 computed now, 6 known from before"


@pytest.mark.parametrize("damage", [lambda content: content[:200], lambda content: b"", lambda content: content[:-40]])
def test_a_damaged_index_is_made_anew(
    damage: object, pictures: Path, model: Trained[CLIP], capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(damage)
    _, features = image_features(model, str(pictures), 5)
    said(capsys)
    index().write_bytes(damage(index().read_bytes()))
    _, rebuilt = image_features(model, str(pictures), 5)
    assert said(capsys).startswith("7 images: 7 computed now") and torch.equal(rebuilt, features)
    image_features(model, str(pictures), 5)
    assert said(capsys).startswith("7 images: 0 computed now")


def test_another_checkpoint_has_another_index(
    pictures: Path, model: Trained[CLIP], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image_features(model, str(pictures), 5)
    copied = trained(tmp_path / "copied.ckpt")
    said(capsys)
    image_features(copied, str(pictures), 5)
    assert said(capsys).startswith("7 images: 0 computed now")  # the same weights, wherever they lie
    image_features(trained(tmp_path / "model.ckpt", b"others"), str(pictures), 5)
    assert said(capsys).startswith("7 images: 7 computed now")


def test_a_broken_image_is_named_and_nothing_is_written(pictures: Path, model: Trained[CLIP]) -> None:
    (pictures / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno")
    with pytest.raises(ValueError, match="broken.png"):
        image_features(model, str(pictures), 3)
    assert not (default_cache_dir() / "image_index").exists()
