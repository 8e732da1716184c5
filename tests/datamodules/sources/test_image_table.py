import io
import json
import os
import pickle
import shutil

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from datamodules.image_decoding import decode
from datamodules.sources.image_table import ImageTable

NAMES = ["cat", "ant", "bee"]  # not the order of the alphabet


def png(value=0):
    file = io.BytesIO()
    Image.new("L", (3, 2), value).save(file, "PNG")
    return file.getvalue()


def parquet(path, labels, names=None, **options):
    """As `datasets` writes it: images as structs of bytes and path, the classes' names in the metadata."""
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    features = datasets.Features({"id": datasets.Value("int64"), "image": datasets.Image(), "label": label})
    images = [{"bytes": png(i % 256), "path": f"{i}.png"} for i in range(len(labels))]
    columns = {"id": range(len(labels)), "image": images, "label": labels}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(path, **options)
    return str(path)


def plain(path, images, labels, kind=None):
    """As other programs write it."""
    pyarrow.parquet.write_table(pa.table({"img": pa.array(images, kind), "label": labels}), path)
    return str(path)


def paths(folder, suffix=".csv", labels=("red", "blue") * 6):
    """A table beside a folder of images."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    rows = [{"image": f"images/{i}.png", "label": label} for i, label in enumerate(labels)]
    for i in range(len(rows)):
        (folder / "images" / f"{i}.png").write_bytes(png(i))
    table = folder / f"t{suffix}"
    mark = {".csv": ",", ".tsv": "\t"}.get(suffix)
    lines = [mark.join(rows[0]), *(mark.join(map(str, row.values())) for row in rows)] if mark else map(json.dumps, rows)
    table.write_text("\n".join(lines) + "\n")
    return str(table)


def test_parquet_of_datasets_keeps_order_and_names(tmp_path):
    train = parquet(tmp_path / "train.parquet", [2, 0, 2] * 200, NAMES, batch_size=100)
    test = parquet(tmp_path / "test.parquet", [0, 1], NAMES)
    source = ImageTable(train, str(shutil.copy(test, tmp_path / "val.parquet")), test)
    assert source.classes() is None
    splits = source.load()
    assert source.classes() == NAMES  # with the one that never occurs in training
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 600, "validation": 2, "test": 2}
    assert splits["train"].features == splits["test"].features
    assert not splits["train"].features["image"].decode and splits["train"].column_names == ["image", "label", "row"]
    for i in (0, 1, 255, 256, 599):
        row = splits["train"][i]
        assert (row["label"], row["row"]) == (["bee", "cat", "bee"][i % 3], f"{train}, row {i + 1}")
        assert row["image"] == {"bytes": png(i % 256), "path": f"{i}.png"}


def test_rows_are_cut_for_validation_by_digest(tmp_path):
    name = parquet(tmp_path / "t.parquet", sorted([0, 1] * 50), NAMES)
    first, again = (ImageTable(name, val_fraction=0.2).load() for _ in range(2))
    assert {split: len(rows) for split, rows in first.items()} == {"train": 80, "validation": 20}
    assert first["validation"]["row"][:] == again["validation"]["row"][:] and set(first["validation"]["label"]) == {
        "cat",
        "ant",
    }
    for split in first.values():
        for row in split:  # bytes, label and row stay together
            number = int(row["row"].split()[-1]) - 1
            assert decode(row["image"], "")[0, 0, 0] == number and row["label"] == NAMES[number // 50]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.struct({"bytes": pa.binary()})])
def test_plain_bytes_and_names_as_strings(tmp_path, kind):
    images = [png(i) for i in range(20)]
    cells = [{"bytes": image} for image in images] if pa.types.is_struct(kind) else images
    labels = pa.array(["red", "blue"] * 10).dictionary_encode()  # as pandas writes categories
    source = ImageTable(plain(tmp_path / "t.parquet", cells, labels, kind), image="img")
    rows = [row for split in source.load().values() for row in split]
    assert sorted(row["image"]["bytes"] for row in rows) == sorted(images) and source.classes() is None
    assert {row["label"] for row in rows} == {"red", "blue"} and rows[0]["image"]["path"] is None


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_paths_relative_to_the_table(tmp_path, monkeypatch, suffix):
    table = paths(tmp_path / "a", suffix)
    monkeypatch.chdir(tmp_path)
    for name, folder in ((table, f"{tmp_path}/a"), (f"a/t{suffix}", "a")):
        splits = ImageTable(name, validation=paths(tmp_path / "b")).load()
        assert splits["train"]["label"][:] == ["red", "blue"] * 6
        assert splits["train"]["row"][:] == [f"{folder}/images/{i}.png" for i in range(12)]
        row = splits["train"][7]
        assert row["image"] == {"bytes": None, "path": row["row"]} and decode(row["image"], "")[0, 0, 0] == 7


def test_labels_may_be_missing_in_test_only(tmp_path):
    none, train = parquet(tmp_path / "none.parquet", [-1, -1], NAMES), parquet(tmp_path / "t.parquet", [0, 1] * 9, NAMES)
    assert ImageTable(train, test=none).load()["test"]["label"][:] == [None, None]
    assert ImageTable(train, test=paths(tmp_path / "a", ".jsonl", [None, -1])).load()["test"]["label"][:] == [None, None]
    some = parquet(tmp_path / "some.parquet", [0, -1], NAMES)
    with pytest.raises(ValueError, match=r"some\.parquet, row 2 has no label .*: every row of the validation split needs one"):
        ImageTable(train, some).load()
    with pytest.raises(ValueError, match=r"images/2\.png has no label .*: every row of the train split needs one"):
        ImageTable(paths(tmp_path / "b", ".csv", ["red", "blue", ""])).load()


def test_labels_that_are_no_class_name_their_row(tmp_path):
    table = pyarrow.parquet.read_table(parquet(tmp_path / "t.parquet", [0] * 9, NAMES))
    table = table.set_column(2, table.schema.field(2), pa.array([0] * 8 + [3]))  # its schema carries the names
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet, row 9 has the label 3, but there are 3 classes, numbered from 0"):
        ImageTable(str(tmp_path / "t.parquet")).load()
    with pytest.raises(ValueError, match=r"t\.jsonl, line 2 has the label \[1\]: a name or a whole number was expected"):
        ImageTable(paths(tmp_path / "a", ".jsonl", [0, [1]])).load()


def test_columns_that_are_missing_or_hold_no_images(tmp_path):
    name = parquet(tmp_path / "t.parquet", [0, 1])
    with pytest.raises(ValueError, match=r"t\.parquet has no column 'img': its columns are id, image, label; did you mean"):
        ImageTable(name, image="img").load()
    with pytest.raises(ValueError, match=r"t\.csv has no column 'labels': its columns are image, label; did you mean 'label'"):
        ImageTable(paths(tmp_path), label="labels").load()
    with pytest.raises(ValueError, match=r"t\.parquet: column 'id' holds Value\('int64'\), where images were expected"):
        ImageTable(name, image="id").load()
    with pytest.raises(ValueError, match=r"p\.parquet: column 'img' holds Value\('string'\), where images were expected"):
        ImageTable(plain(tmp_path / "p.parquet", ["a.png"], [0]), image="img").load()


def test_rows_without_an_image(tmp_path):
    images = [png()] * 300 + [None]
    with pytest.raises(ValueError, match=r"a\.parquet, row 301: column 'img' holds no bytes of an image"):
        ImageTable(plain(tmp_path / "a.parquet", images, [0] * 301), image="img").load()
    structs = [{"bytes": png(), "path": "a.png"}, {"bytes": None, "path": "b.png"}]
    with pytest.raises(ValueError, match=r"b\.parquet, row 2: column 'img' holds no bytes of an image"):
        ImageTable(plain(tmp_path / "b.parquet", structs, [0, 1]), image="img").load()
    table = paths(tmp_path)
    (tmp_path / "images" / "3.png").unlink()
    for call in (ImageTable(table).load, ImageTable(table).fingerprint):
        with pytest.raises(FileNotFoundError, match=r"t\.csv, row 4: there is no image .*/images/3\.png; paths are relative"):
            call()
    (tmp_path / "u.jsonl").write_text('{"image": "images/1.png", "label": 1}\n{"image": null, "label": 1}\n')
    with pytest.raises(ValueError, match=r"u\.jsonl, line 2: column 'image' holds None, where the path of an image"):
        ImageTable(str(tmp_path / "u.jsonl")).load()


def test_tables_that_cannot_be_read(tmp_path):
    name = parquet(tmp_path / "t.parquet", [0, 1])
    content = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[:-60])
    (tmp_path / "none.parquet").touch()
    for broken in ("cut", "none"):
        with pytest.raises(ValueError, match=rf"{broken}\.parquet is not readable as Parquet: "):
            ImageTable(str(tmp_path / f"{broken}.parquet")).load()
    with pytest.raises(ValueError, match=r"no_rows\.parquet has no rows"):
        ImageTable(parquet(tmp_path / "no_rows.parquet", [])).load()
    with pytest.raises(ValueError, match=r"t\.xlsx has the suffix '\.xlsx': a table ends in \.csv"):
        ImageTable(str(shutil.copy(name, tmp_path / "t.xlsx"))).load()
    odd = pyarrow.parquet.read_table(name).replace_schema_metadata({"huggingface": "{"})
    pyarrow.parquet.write_table(odd, tmp_path / "odd.parquet")
    with pytest.raises(ValueError, match=r"odd\.parquet is no table that datasets reads: "):
        ImageTable(str(tmp_path / "odd.parquet")).load()


def test_fingerprint_follows_table_options_and_the_files_it_names(tmp_path):
    name, table = parquet(tmp_path / "t.parquet", [0, 1]), paths(tmp_path / "a")
    same = str(shutil.copy(name, tmp_path / "u.parquet"))
    first = ImageTable(name).fingerprint()
    assert ImageTable(same).fingerprint() == first
    others = [
        ImageTable(name, image="id"), ImageTable(name, label="id"), ImageTable(name, val_fraction=0.2), ImageTable(name, same),
        ImageTable(parquet(tmp_path / "v.parquet", [1, 0])), ImageTable(table),
    ]  # fmt: skip
    assert len({first, *(other.fingerprint() for other in others)}) == 7
    before, moved = ImageTable(table).fingerprint(), shutil.copytree(tmp_path / "a", tmp_path / "moved")
    assert ImageTable(str(moved / "t.csv")).fingerprint() == before
    os.utime(moved / "images" / "3.png", ns=(0, 0))
    assert ImageTable(str(moved / "t.csv")).fingerprint() != before


def test_many_rows_stay_arrow_and_the_source_small(tmp_path):
    generator = np.random.default_rng(0)
    images = [generator.bytes(2000) for _ in range(20_000)]
    name = plain(tmp_path / "t.parquet", images, generator.integers(0, 10, 20_000))
    source = ImageTable(name, image="img")
    splits = source.load()
    assert splits["train"].num_rows + splits["validation"].num_rows == 20_000
    assert splits["train"].data.nbytes > 20_000 * 2000 and len(pickle.dumps(source)) < 1000
    assert source.describe() == f"the rows of {name}"
