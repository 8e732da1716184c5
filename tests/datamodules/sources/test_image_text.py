"""Tables, folders, hub sets and shards of images with captions: what is read, and what is refused by name."""

import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from datamodules.image_decoding import decode
from datamodules.sources.image_text_base import Captioned, captions_in, one_for_each
from datamodules.sources.image_text_folder import ImageTextFolder
from datamodules.sources.image_text_hub import HubImageText
from datamodules.sources.image_text_table import ImageTextTable
from datamodules.sources.webdataset import WebDataset


def png(level: int) -> bytes:
    Image.new("L", (3, 2), level).save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def level(row: dict[str, Any]) -> int:
    pixels = decode(row["image"], row["row"])
    assert (pixels == pixels[0, 0, 0]).all()
    return int(pixels[0, 0, 0])


def test_captions_of_a_row() -> None:
    assert captions_in("row 1", {"a": " a \n cat "}, ["a"]) == ["a cat"]
    assert captions_in("row 1", {"a": ["x", "y", "x"]}, ["a"]) == ["x", "y"]
    assert captions_in("row 1", {"a": "x", "b": None, "c": " ", "d": "z"}, ["a", "b", "c", "d"]) == ["x", "z"]
    for cell, message in [
        ("  ", "row 1: column 'a' has an empty caption"),
        (None, "empty caption"),
        (["x", ""], "empty caption"),
    ]:
        with pytest.raises(ValueError, match=message):
            captions_in("row 1", {"a": cell}, ["a"])
    for cell in (7, [b"x"]):
        with pytest.raises(ValueError, match="row 1: column 'a' holds .*, where a caption was expected"):
            captions_in("row 1", {"a": cell}, ["a"])
    for row in ({"a": [], "b": None}, {"a": None, "b": ""}):
        with pytest.raises(ValueError, match="row 1 has no caption in a, b"):
            captions_in("row 1", row, ["a", "b"])


def test_rows_of_one_image_are_one_example() -> None:
    rows = [Captioned([c], "", f"row {i}") for i, c in enumerate("abca")]
    firsts, merged = one_for_each(["x", "y", "x", "x"], rows)
    assert firsts == [0, 1] and [row.captions for row in merged] == [["a", "c"], ["b"]] and merged[1].row == "row 1"
    assert rows[0].captions == ["a"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for i in range(10):
        write(tmp_path / f"images/{i}.png", png(i))
    rows = [f"images/{i}.png,picture {i},g{i % 2}" for i in range(10)]
    return write(tmp_path / "train.csv", "\n".join(["image,caption,font", *rows, "images/3.png,another,g1", ""]))


def test_a_table_of_paths(table: Path) -> None:
    source = ImageTextTable(str(table), group="font", val_fraction=0.2)
    splits = source.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 8, "validation": 2}
    by_level = {level(row): row for rows in splits.values() for row in rows}
    assert by_level[3]["captions"] == ["picture 3", "another"] and by_level[4]["captions"] == ["picture 4"]
    assert by_level[3]["group"] == "g1" and by_level[3]["row"].endswith("images/3.png")
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert again.load()["validation"]["row"][:] == splits["validation"]["row"][:]
    before = source.fingerprint()
    assert before == again.fingerprint() != ImageTextTable(str(table), val_fraction=0.2).fingerprint()
    write(table.parent / "images/5.png", png(55))
    assert source.fingerprint() != before


@pytest.mark.parametrize(
    "rows,message",
    [
        (["image,caption", "images/0.png,"], "train.csv, row 1: column 'caption' has an empty caption"),
        (["image,caption", "images/0.png,x", "images/no.png,y"], "row 2: there is no image .*images/no.png"),
        (["image,caption", ",x"], "row 1: column 'image' holds '', where the path of an image"),
        (["image,text", "images/0.png,x"], "has no column 'caption': its columns are image, text"),
        (["image,caption"], "has no rows"),
        (["image,caption", "images/0.png,x"], "no validation rows can be cut from 1 training image"),
    ],
)
def test_what_a_table_is_refused_for(rows: list[str], message: str, table: Path) -> None:
    write(table, "\n".join(rows) + "\n")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ImageTextTable(str(table)).load()


def test_json_lines_and_parquet(table: Path) -> None:
    lines = [{"file": f"images/{i}.png", "a": [f"{i}"], "b": "b" if i else None} for i in range(4)]
    jsonl = write(table.with_name("t.jsonl"), "\n".join(map(json.dumps, lines)))
    rows = ImageTextTable(str(jsonl), image="file", captions=["a", "b"], val_fraction=0.25).load()
    found = {level(row): row["captions"] for split in rows.values() for row in split}
    assert found == {0: ["0"], 1: ["1", "b"], 2: ["2", "b"], 3: ["3", "b"]}
    parquet = table.with_name("t.parquet")
    contents = [png(i) for i in (0, 1, 2, 1)]
    datasets.Dataset.from_dict({"image": contents, "caption": ["x", "y", "z", "w"]}).to_parquet(parquet)
    splits = ImageTextTable(str(parquet), validation=str(jsonl.with_name("v.jsonl"))).paths
    assert set(splits) == {"train", "validation"}
    made = ImageTextTable(str(parquet), val_fraction=0.4).load()
    found = {level(row): row["captions"] for split in made.values() for row in split}
    assert found == {0: ["x"], 1: ["y", "w"], 2: ["z"]}  # equal bytes are one image
    images = [{"bytes": None, "path": str(table.with_name("images") / f"{i}.png")} for i in range(3)]
    datasets.Dataset.from_dict({"image": [i["path"] for i in images], "caption": list("abc")}).to_parquet(parquet)
    paths = ImageTextTable(str(parquet), val_fraction=0.4).load()
    assert {level(row) for split in paths.values() for row in split} == {0, 1, 2}


def test_a_folder(tmp_path: Path) -> None:
    for i in range(4):
        write(tmp_path / f"train/sub/{i}.png", png(i))
        write(tmp_path / f"train/sub/{i}.txt", f"  picture {i}\n\nnumber  {i}\n")
    source = ImageTextFolder(str(tmp_path / "train"), val_fraction=0.3)
    splits = source.load()
    found = {level(row): row["captions"] for split in splits.values() for row in split}
    assert found == {i: [f"picture {i}", f"number {i}"] for i in range(4)} and len(splits["validation"]) == 1
    before = source.fingerprint()
    text = write(tmp_path / "train/sub/2.txt", "")
    assert source.fingerprint() != before
    with pytest.raises(ValueError, match=r"2.txt is empty: text was expected"):
        source.load()
    text.unlink()
    with pytest.raises(ValueError, match=r"2.png has no captions: 2.txt was expected beside it"):
        source.load()
    write(text, "x")
    write(tmp_path / "train/lonely.txt", "x")
    with pytest.raises(ValueError, match=r"lonely.txt has captions, but there is no image"):
        source.load()
    with pytest.raises(FileNotFoundError, match="no folder"):
        ImageTextFolder(str(tmp_path / "none")).load()
    with pytest.raises(ValueError, match="lies within"):
        ImageTextFolder(str(tmp_path / "train"), str(tmp_path / "train/sub")).load()


def test_a_hub_set(tmp_path: Path) -> None:
    features = datasets.Features({
        "image": datasets.Image(), "caption_0": datasets.Value("string"), "caption_1": datasets.Value("string"),
        "style": datasets.Value("string"),
    })  # fmt: skip
    for split, count in (("train", 6), ("test", 3)):
        rows = {"image": [{"bytes": png(i), "path": None} for i in range(count)], "style": ["s"] * count}
        rows |= {f"caption_{k}": [f"{split} {i} {k}" for i in range(count)] for k in (0, 1)}
        path = tmp_path / f"set/data/{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    source = HubImageText(str(tmp_path / "set"), captions=["caption_0", "caption_1"], group="style", val_fraction=0.2)
    splits = source.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 5, "validation": 1, "test": 3}
    assert splits["test"][2]["captions"] == ["test 2 0", "test 2 1"] and splits["test"][2]["group"] == "s"
    assert level(splits["test"][2]) == 2 and splits["test"][2]["row"] == "test, row 3"
    assert (
        source.fingerprint()
        == HubImageText(
            str(tmp_path / "set"), None, "image", ["caption_0", "caption_1"], "style", None, None, 0.2
        ).fingerprint()
    )  # noqa: E501
    with pytest.raises(ValueError, match="set.* has no column 'caption': its columns are"):
        HubImageText(str(tmp_path / "set")).load()
    with pytest.raises(FileNotFoundError):
        HubImageText(str(tmp_path / "none")).load()


def shard(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_shards(tmp_path: Path) -> None:
    for n in range(2):
        members: dict[str, bytes] = {}
        for i in range(4):
            members[f"a/{i:03}.txt"] = f"shard {n}\nnumber {i}\n".encode()
            members[f"a/{i:03}.PNG"] = png(10 * n + i)
            members[f"a/{i:03}.json"] = json.dumps({"caption": f"c{i}", "all": ["x", "y"]}).encode()
        shard(tmp_path / f"s-{n}.tar", members)
    source = WebDataset(str(tmp_path / "s-*.tar"), val_fraction=0.25)
    splits = source.load()
    found = {level(row): row["captions"] for split in splits.values() for row in split}
    assert found == {10 * n + i: [f"shard {n}", f"number {i}"] for n in range(2) for i in range(4)}
    assert len(splits["validation"]) == 2
    assert {row["row"] for split in splits.values() for row in split} == {
        f"{tmp_path}/s-{n}.tar, a/{i:03}" for n in range(2) for i in range(4)
    }
    assert splits["train"][0]["image"]["bytes"] is None  # they stay in the shard
    for field, expected in (("caption", ["c2"]), ("all", ["x", "y"])):
        made = WebDataset(str(tmp_path / "s-0.tar"), captions=f"json.{field}", val_fraction=0.25).load()
        assert {level(row): row["captions"] for split in made.values() for row in split}[2] == expected
    before = source.fingerprint()
    shard(tmp_path / "s-1.tar", {"k.png": png(77), "k.txt": b"new"})
    assert source.fingerprint() != before
    assert 77 in {level(row) for split in source.load().values() for row in split}


@pytest.mark.parametrize(
    "members,captions,message",
    [
        ({"a.txt": b"x"}, "txt", r"s.tar, a has no image: members a with one of .png"),
        ({"a.png": png(1)}, "txt", r"s.tar, a has no caption: a member a.txt was expected"),
        ({"a.png": png(1), "a.txt": b"\n"}, "txt", r"s.tar, a has no caption"),
        ({"a.png": png(1), "a.txt": b"\xff"}, "txt", "s.tar, a: the caption is not UTF-8"),
        ({"a.png": png(1), "a.json": b"{"}, "json.text", "s.tar, a: the .json is no JSON"),
        ({"a.png": png(1), "a.json": b"{}"}, "json.text", "s.tar, a: the .json has no field 'text'"),
        ({"a.png": png(1), "a.json": b'{"text": 3}'}, "json.text", "s.tar, a: column 'json.text' holds 3"),
        ({}, "txt", "s.tar has no members"),
    ],
)
def test_what_a_shard_is_refused_for(members: dict[str, bytes], captions: str, message: str, tmp_path: Path) -> None:
    path = shard(tmp_path / "s.tar", members)
    with pytest.raises(ValueError, match=message):
        WebDataset(str(path), captions=captions).load()


def test_broken_and_missing_shards(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file := io.BytesIO(), "PNG")
    path = shard(tmp_path / "s.tar", {"a.txt": b"x", "a.png": file.getvalue()})
    write(path, path.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"s.tar is (cut off|no .tar archive, or a broken one)"):
        WebDataset(str(path)).load()
    with pytest.raises(ValueError, match=r"s.tar is no .tar archive"):
        WebDataset(str(write(path, b"hello" * 500))).load()
    with pytest.raises(FileNotFoundError):
        WebDataset(str(tmp_path / "none.tar")).load()
    with pytest.raises(ValueError, match="captions 'jpg' is neither txt nor json.FIELD"):
        WebDataset(str(path), captions="jpg")
