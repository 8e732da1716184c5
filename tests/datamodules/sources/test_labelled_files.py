"""Paths and splits, through the source of tables; that of words has the same ones."""

import json
import pickle
import shutil

import pytest

from datamodules.sources.tables import SentenceTable

TEXTS = [f"one {i} of many" for i in range(40)]
ROWS = [{"id": i, "text": text, "label": "good" if i % 3 else "bad"} for i, text in enumerate(TEXTS)]


def write(path, rows):
    """Rows as JSON lines, or as a CSV."""
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(row) for row in rows]
    if path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_only_the_splits_that_are_given_exist(tmp_path):
    names = {s: write(tmp_path / f"{s}.csv", ROWS) for s in ("test", "validation", "train")}
    assert list(SentenceTable(**names).load()) == ["train", "validation", "test"]
    assert list(SentenceTable(test=names["test"]).load()) == ["test"]
    assert list(SentenceTable(names["train"], test=names["test"]).load()) == ["train", "validation", "test"]
    assert SentenceTable(**names).load()["train"]["text"][:] == TEXTS  # nothing is cut off


def test_no_path_and_an_empty_list():
    with pytest.raises(ValueError, match="no files are given: name those of train"):
        SentenceTable()
    with pytest.raises(ValueError, match="test is an empty list"):
        SentenceTable("t.csv", test=[])


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 10])
def test_val_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match=rf"val_fraction {fraction} must lie between 0 and 1"):
        SentenceTable("t.csv", val_fraction=fraction)


def test_lists_and_globs_each_file_once_sorted(tmp_path):
    for i in range(3):
        write(tmp_path / "parts" / f"{i}.csv", ROWS[10 * i : 10 * i + 10])
    glob, one = str(tmp_path / "parts" / "*.csv"), str(tmp_path / "parts" / "1.csv")
    assert SentenceTable(validation=[one, glob]).load()["validation"]["text"][:] == TEXTS[:30]
    assert SentenceTable(validation=[one, glob]).fingerprint() == SentenceTable(validation=glob).fingerprint()


def test_paths_that_lead_nowhere(tmp_path):
    write(tmp_path / "t.csv", ROWS)
    for name, kind, message in [
        ("none.csv", FileNotFoundError, r"none\.csv does not exist: a file, a list of files or a glob"),
        ("*.tsv", FileNotFoundError, r"no file matches .*\*\.tsv"),
        ("", ValueError, r"is a folder: name its files, or a glob such as .*\*\.jsonl"),
    ]:
        source = SentenceTable(str(tmp_path / name))
        for call in (source.load, source.fingerprint):
            with pytest.raises(kind, match=message):
                call()
    with pytest.raises(ValueError, match=r"t\.csv is in both train and test"):
        SentenceTable(str(tmp_path / "t.csv"), test=str(tmp_path / "*.csv")).load()


def test_fingerprint_follows_content_and_options_not_place(tmp_path):
    name, copy = write(tmp_path / "t.csv", ROWS), write(tmp_path / "copy" / "u.csv", ROWS)
    first = SentenceTable(name).fingerprint()
    assert SentenceTable(copy).fingerprint() == first
    tsv = str(shutil.copy(name, tmp_path / "t.tsv"))
    others = [
        SentenceTable(name, text="id"), SentenceTable(name, text_pair="id"), SentenceTable(name, label="id"),
        SentenceTable(name, val_fraction=0.2), SentenceTable(name, copy), SentenceTable(validation=name),
        SentenceTable(test=name), SentenceTable(test=name, label=None), SentenceTable(tsv),
        SentenceTable(write(tmp_path / "short.csv", ROWS[:-1])),
    ]  # fmt: skip
    assert len({first, *(other.fingerprint() for other in others)}) == 11
    assert SentenceTable(name, copy, val_fraction=0.2).fingerprint() == SentenceTable(name, copy).fingerprint()  # not used


def test_describe_is_short_and_pickles_are_small(tmp_path):
    source = SentenceTable("a.csv", ["b.csv", "c.csv"], "d.csv")
    assert source.describe() == "the rows of a.csv, b.csv, c.csv and 1 more"
    assert len(pickle.dumps(source)) < 1000 and source.classes() is None
