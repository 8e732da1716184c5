"""The rules of labels, through the source of tables; those of words have the same ones."""

import json
import math
from collections import Counter

import pytest

from datamodules.sources.labels import to_splits
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


def labelled(*labels):
    """Rows with texts of their own and these labels."""
    return [{"text": f"a text {i}", "label": label} for i, label in enumerate(labels)]


def test_class_names_are_strings(tmp_path):
    name = write(tmp_path / "t.jsonl", labelled("good", 3, True, 2.0, " padded ", "-1"))
    assert SentenceTable(validation=name).load()["validation"]["label"][:] == ["good", "3", "True", "2", "padded", "-1"]


@pytest.mark.parametrize("label", [None, "", "  ", -1, -1.0, math.nan])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_missing_label_names_the_row(tmp_path, label, split):
    name = write(tmp_path / "t.jsonl", labelled("x", label, "y"))
    with pytest.raises(ValueError, match=rf"t\.jsonl, line 2 has no label \(.*\): every row of the {split} split needs one"):
        SentenceTable(**{split: name}).load()


def test_a_label_key_that_only_some_lines_have(tmp_path):
    name = write(tmp_path / "t.jsonl", [{"text": "a"}, {"text": "b", "label": "x"}])
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1 has no label"):
        SentenceTable(name).load()


def test_a_test_split_has_all_labels_or_none(tmp_path):
    train, none = write(tmp_path / "train.csv", ROWS), write(tmp_path / "none.jsonl", labelled(None, -1, ""))
    assert SentenceTable(train, test=none).load()["test"]["label"][:] == [None] * 3
    some = write(tmp_path / "some.jsonl", labelled("x", "y", None, None))
    with pytest.raises(ValueError, match=r"some\.jsonl, line 3 has no label .*: label all of them or none"):
        SentenceTable(train, test=some).load()
    with pytest.raises(ValueError, match=r"none\.jsonl, line 1 has no label .*: label all of them or none"):
        SentenceTable(train, test=[none, write(tmp_path / "copy.csv", ROWS)]).load()


def test_without_labels_there_is_a_test_split_only(tmp_path):
    name = write(tmp_path / "t.csv", [{"text": text} for text in TEXTS])
    loaded = SentenceTable(test=name, label=None).load()
    assert list(loaded) == ["test"] and loaded["test"].column_names == ["text", "label", "row"]
    assert loaded["test"]["label"][:] == [None] * 40 and loaded["test"].features["label"].dtype == "string"
    with pytest.raises(ValueError, match="label is null: .* a test split only, not train and validation"):
        SentenceTable(name, name, label=None)


def test_the_cut_is_a_share_by_digest_and_always_the_same(tmp_path):
    rows = sorted(ROWS, key=lambda row: row["label"]) * 5  # 200 rows, sorted by class as files often are
    first = SentenceTable(write(tmp_path / "t.csv", rows), val_fraction=0.25).load()
    again = SentenceTable(write(tmp_path / "t.jsonl", rows), val_fraction=0.25).load()
    assert {s: len(split) for s, split in first.items()} == {"train": 150, "validation": 50}
    for split in ("train", "validation"):
        assert first[split]["text"][:] == again[split]["text"][:]
        numbers = [int(where.split()[-1]) for where in first[split]["row"]]
        assert numbers == sorted(numbers)
    taken = [set(first[split]["row"]) for split in ("train", "validation")]
    assert not taken[0] & taken[1] and len(taken[0] | taken[1]) == 200
    assert Counter(first["validation"]["label"])["bad"] in range(10, 26)  # 70 of 200 rows are bad


def test_the_digest_is_of_number_and_text(tmp_path):
    def cut(text):
        rows = [{"text": text, "label": "x"}] * 100
        return SentenceTable(write(tmp_path / "t.csv", rows)).load()["validation"]["row"][:]

    assert cut("one text") != cut("another")
    assert cut("one text") != [f"{tmp_path / 't.csv'}, row {i}" for i in range(1, 11)]


def test_the_last_row_of_a_class_stays_in_training(tmp_path):
    labels = [f"rare {i}" for i in range(20)] + ["common"] * 20
    loaded = SentenceTable(write(tmp_path / "t.csv", labelled(*labels)), val_fraction=0.45).load()
    assert set(loaded["train"]["label"]) == set(labels) and set(loaded["validation"]["label"]) == {"common"}
    assert len(loaded["validation"]) == 18
    twos = SentenceTable(write(tmp_path / "t.csv", labelled(*labels[:20], *labels[:20])), val_fraction=0.9).load()
    assert sorted(twos["train"]["label"]) == sorted(twos["validation"]["label"]) == sorted(labels[:20])
    with pytest.raises(ValueError, match="no validation rows can be cut from 2 training rows.* name a validation split"):
        SentenceTable(write(tmp_path / "s.csv", labelled("x", "y"))).load()


def test_an_empty_split():
    with pytest.raises(ValueError, match="the test split has no rows"):
        to_splits({"test": []}, 0.1)
