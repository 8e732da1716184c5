import json

import datasets
import pytest

from datamodules.sources.hub import HubText
from datamodules.sources.stdlib import StdlibDocs


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def texts():
    return StdlibDocs().load()["train"]["text"][:20]


def write(folder, **splits):
    """A data set as one has it on disk: a Parquet file for each split."""
    folder.mkdir(exist_ok=True)
    for split, rows in splits.items():
        datasets.Dataset.from_dict({"label": list(range(len(rows))), "body": rows}).to_parquet(folder / f"{split}.parquet")
    return str(folder)


def test_own_validation_split(tmp_path, texts):
    name = write(tmp_path / "set", train=texts[:10], validation=texts[10:15], test=texts[15:])
    splits = HubText(name, column="body").load()
    assert {s: rows["text"][:] for s, rows in splits.items()} == {
        "train": texts[:10],
        "validation": texts[10:15],
        "test": texts[15:],
    }
    assert splits["train"].column_names == ["text"]


def test_validation_is_the_end_of_train(tmp_path, texts):
    splits = HubText(write(tmp_path / "set", train=texts), column="body").load()
    assert {s: rows["text"][:] for s, rows in splits.items()} == {"train": texts[:18], "validation": texts[18:]}


def test_blank_rows_go(tmp_path, texts):
    splits = HubText(write(tmp_path / "set", train=["", *texts[:2], None, " \n"]), column="body").load()
    assert [rows["text"][:] for rows in splits.values()] == [texts[:1], texts[1:2]]


def test_json_lines_with_a_column_called_text(tmp_path, texts):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert HubText(str(tmp_path)).load()["train"]["text"][:] == texts[:18]


def test_missing_column_lists_the_columns(tmp_path, texts):
    with pytest.raises(ValueError, match=r"no column 'text': its columns are label, body"):
        HubText(write(tmp_path / "set", train=texts)).load()


def test_a_column_of_numbers(tmp_path, texts):
    with pytest.raises(ValueError, match="'label' of .* holds int64, where string was expected"):
        HubText(write(tmp_path / "set", train=texts), column="label").load()


def test_no_text_at_all(tmp_path):
    with pytest.raises(ValueError, match="is empty in split train"):
        HubText(write(tmp_path / "set", train=["", " "]), column="body").load()


def test_no_training_split(tmp_path, texts):
    with pytest.raises(ValueError, match="has no split train, only test"):
        HubText(write(tmp_path / "set", test=texts), column="body").load()


def test_one_row_cannot_be_cut(tmp_path, texts):
    with pytest.raises(ValueError, match="one row"):
        HubText(write(tmp_path / "set", train=texts[:1]), column="body").load()


def test_absent_or_unreachable_is_one_line(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError)\nmore lines")

    with pytest.raises(FileNotFoundError, match=r"the data set /nowhere/set cannot be found"):
        HubText("/nowhere/set").load()
    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(FileNotFoundError, match=r"the data set a/b \(c\) cannot be .* reached: .*a local folder") as error:
        HubText("a/b", "c").load()
    assert "\n" not in str(error.value)


def test_a_broken_file_is_one_line(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"not Parquet")
    with pytest.raises(ValueError, match="does not load") as error:
        HubText(str(tmp_path)).load()
    assert "\n" not in str(error.value)


def test_fingerprint_follows_files_and_options(tmp_path, texts):
    name = write(tmp_path / "set", train=texts)
    first = HubText(name, column="body").fingerprint()
    assert HubText(name, column="label").fingerprint() != first
    assert HubText(name, column="body", revision="abc").fingerprint() != first
    write(tmp_path / "set", train=texts[:-1])
    assert HubText(name, column="body").fingerprint() != first
