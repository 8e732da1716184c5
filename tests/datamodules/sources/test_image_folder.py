import os
import pickle
import re
import shutil

import pytest
from PIL import Image

from datamodules.image_decoding import decode
from datamodules.sources.image_folder import ImageFiles, ImageFolder

COLOURS = {"blue": (0, 0, 255), "red": (255, 0, 0)}


def draw(folder, label, *names):
    """Images of one colour in the folder of their class."""
    for name in names:
        path = folder / label / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 2), COLOURS.get(label)).save(path)
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    draw(tmp_path / "train", "red", *(f"{i}.png" for i in range(12)), "deep/er/a.PNG")
    return draw(tmp_path / "train", "blue", *(f"{i}.{s}" for i, s in enumerate(("png", "bmp", "gif", "tif", "tiff", "webp"))))


def test_classes_are_sub_folders_and_files_are_found_at_any_depth(folder):
    splits = ImageFolder(folder, validation=None).load()
    rows = [row for split in splits.values() for row in split]
    assert list(splits) == ["train", "validation"] and len(rows) == 19
    names = {os.path.relpath(row["row"], folder) for row in rows}
    assert names >= {"red/deep/er/a.PNG", "blue/5.webp"}
    for row in rows:
        assert row["image"] == {"bytes": None, "path": row["row"]}
        assert row["row"].startswith(os.path.join(folder, row["label"]))
        assert decode(row["image"], row["row"])[0, 0].tolist() == pytest.approx(COLOURS[row["label"]], abs=6)


def test_own_splits_keep_every_file_in_order(folder, tmp_path):
    test, validation = draw(tmp_path / "t", "blue", "x.png"), draw(tmp_path / "v", "red", "b.png", "a.png")
    splits = ImageFolder(folder, validation, test).load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 19, "validation": 2, "test": 1}
    assert splits["validation"]["row"][:] == [f"{validation}/red/a.png", f"{validation}/red/b.png"]
    assert splits["train"]["label"][:] == ["blue"] * 6 + ["red"] * 13


def test_validation_is_cut_and_each_class_keeps_one(tmp_path):
    draw(tmp_path / "train", "red", *(f"{i}.png" for i in range(38)))
    folder = draw(tmp_path / "train", "blue", "a.png", "b.png")
    first, again = (ImageFolder(folder, val_fraction=0.9).load() for _ in range(2))
    assert {split: len(rows) for split, rows in first.items()} == {"train": 4, "validation": 36}
    assert set(first["train"]["label"]) == {"red", "blue"} and first["train"]["row"][:] == again["train"]["row"][:]
    assert not set(first["train"]["row"]) & set(first["validation"]["row"])


def test_hidden_and_other_files_are_left_out_and_links_followed(folder, tmp_path):
    draw(tmp_path / "train", ".cache", "a.png")
    draw(tmp_path / "train", "red", "._0.png", ".thumbs/0.png")
    (tmp_path / "train" / "red" / "notes.txt").write_text("no image")
    draw(tmp_path / "else", "green", "a.png", "b.png")
    (tmp_path / "train" / "green").symlink_to(tmp_path / "else" / "green", target_is_directory=True)
    (tmp_path / "train" / "blue" / "more").symlink_to(tmp_path / "else" / "green", target_is_directory=True)
    rows = [row for split in ImageFolder(folder).load().values() for row in split]
    assert len(rows) == 23 and {row["label"] for row in rows} == {"blue", "green", "red"}


def test_folders_that_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="none does not exist: a folder with a sub-folder of images for each class"):
        ImageFolder(str(tmp_path / "none")).load()
    with pytest.raises(ValueError, match=r"0\.png is a file: a folder"):
        ImageFolder(f"{folder}/red/0.png").load()
    with pytest.raises(ValueError, match=r"train/blue has no sub-folder \(6 images and 0 other files\): a folder"):
        ImageFolder(f"{folder}/blue").load()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty has no sub-folder \(0 other files\)"):
        ImageFolder(str(tmp_path / "empty")).fingerprint()
    (tmp_path / "train" / "green").mkdir()
    (tmp_path / "train" / "green" / "a.svg").touch()
    with pytest.raises(ValueError, match=r"train/green holds no image \(1 other files\): images end in \.png, \.jpg, \.jpeg"):
        ImageFolder(folder).load()


def test_classes_that_train_lacks_are_named(folder, tmp_path):
    other = draw(tmp_path / "other", "reds", "a.png")
    for split in ("validation", "test"):
        with pytest.raises(ValueError, match=r"other has 'reds', which is no class of .*train; did you mean 'red'\?"):
            ImageFolder(folder, **{split: other}).load()


@pytest.mark.parametrize("inner", ["", "red"])
def test_one_folder_within_another(folder, inner):
    with pytest.raises(ValueError, match=r"\(test\) lies within .*train \(train\): its images would be in both splits"):
        ImageFolder(folder, test=os.path.join(folder, inner)).load()
    with pytest.raises(ValueError, match=r"train \(train\) lies within .* \(test\)"):
        ImageFolder(folder, test=os.path.dirname(folder)).load()


def test_one_image_cannot_be_shared_out(tmp_path):
    with pytest.raises(ValueError, match=r"no validation rows can be cut from 1 training rows.* name a validation split"):
        ImageFolder(draw(tmp_path / "train", "red", "a.png")).load()
    with pytest.raises(ValueError, match="val_fraction 1 must lie between 0 and 1"):
        ImageFolder("train", val_fraction=1)


def test_fingerprint_follows_names_sizes_times_and_options_not_place(folder, tmp_path):
    first = ImageFolder(folder).fingerprint()
    copy = str(shutil.copytree(folder, tmp_path / "copy"))  # with their times
    assert ImageFolder(copy).fingerprint() == first == ImageFolder(folder + "/").fingerprint()
    seen = {first, ImageFolder(folder, val_fraction=0.2).fingerprint(), ImageFolder(folder, copy).fingerprint()}
    assert ImageFolder(folder, copy, val_fraction=0.2).fingerprint() in seen  # not used
    os.utime(f"{copy}/red/0.png", ns=(0, 0))
    seen.add(ImageFolder(copy).fingerprint())
    os.rename(f"{copy}/red/0.png", f"{copy}/blue/9.png")
    seen.add(ImageFolder(copy).fingerprint())
    assert len(seen) == 5
    with open(f"{copy}/blue/9.png", "ab") as file:
        file.write(b"\0")
    os.utime(f"{copy}/blue/9.png", ns=(0, 0))
    assert ImageFolder(copy).fingerprint() not in seen


def test_files_without_labels_are_a_test_split(folder):
    splits = ImageFiles([f"{folder}/red/0.png", f"{folder}/blue", f"{folder}/red/deep/**/*", f"{folder}/red/*.png"]).load()
    assert list(splits) == ["test"] and splits["test"].column_names == ["image", "label", "row"]
    rows = splits["test"]["row"][:]
    assert len(rows) == 19 and rows == sorted(rows) and splits["test"]["label"][:] == [None] * 19
    assert splits["test"][0]["image"] == {"bytes": None, "path": f"{folder}/blue/0.png"}


def test_a_file_that_is_named_is_taken_as_it_is(tmp_path):
    path = tmp_path / "image[1].upload"
    Image.new("RGB", (4, 2)).save(path, "PNG")
    assert ImageFiles(str(path)).load()["test"]["row"][:] == [str(path)]


def test_files_that_are_not_there(folder, tmp_path):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").touch()
    for name, message in [
        ("none.png", "none.png does not exist: an image, a folder of images or a glob"),
        ("text", "the folder .*text holds no image \\(1 other files\\): images end in .png"),
        ("text/*", "no image matches .*text/\\* \\(1 other files\\)"),
        ("*.webp", "no image matches .*webp \\(0 other files\\)"),
    ]:
        source = ImageFiles([folder, str(tmp_path / name)])
        for call in (source.load, source.fingerprint):
            with pytest.raises(FileNotFoundError, match=message):
                call()
    with pytest.raises(ValueError, match="paths is empty"):
        ImageFiles([])


def test_fingerprint_of_files_follows_their_state(folder):
    first = ImageFiles(folder).fingerprint()
    assert ImageFiles([folder, f"{folder}/*/*.png"]).fingerprint() == first
    os.utime(f"{folder}/red/0.png", ns=(0, 0))
    assert ImageFiles(folder).fingerprint() != first


def test_describe_and_pickle(folder):
    assert ImageFolder("a", "b").describe() == "the images below a and b"
    assert ImageFiles(["a", "b", "c", "d"]).describe() == "the images a, b, c and 1 more"
    source = pickle.loads(pickle.dumps(ImageFolder(folder)))  # noqa: S301
    source.load()
    assert len(pickle.dumps(source)) < 1000 and source.classes() is None
    assert re.fullmatch("[0-9a-f]{64}", source.fingerprint())
