import csv
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from datamodules.sources.hub_labels import HubSentences, HubWords

NAMES = ["negative", "neutral", "positive"]  # not the order of the alphabet in `TAGS`
TAGS = ["O", "B-PER", "I-PER"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def parquet(folder, features, **splits):
    """A data set as the hub has it: a Parquet file for each split, the classes' names in its metadata."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split, columns in splits.items():
        rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
        rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return str(folder)


def sentences(folder, names=NAMES, **labels):
    features = {"idx": datasets.Value("int32"), "sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=names)}
    columns = {
        s: {"idx": range(len(ls)), "sentence": [f"{s} {i}" for i in range(len(ls))], "label": ls} for s, ls in labels.items()
    }
    return parquet(folder, features, **columns)


def words(folder, **tags):
    features = {"tokens": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(datasets.ClassLabel(names=TAGS))}
    columns = {s: {"tokens": [[f"w{i}" for i in range(len(t))] for t in ts], "ner_tags": ts} for s, ts in tags.items()}
    return parquet(folder, features, **columns)


def test_names_come_from_the_features_in_their_order(tmp_path):
    source = HubSentences(sentences(tmp_path, train=[2, 0, 2], validation=[0], test=[2]), text="sentence")
    assert source.classes() is None
    loaded = source.load()
    assert source.classes() == NAMES  # with the one that never occurs
    assert loaded["train"].to_dict() == {
        "text": ["train 0", "train 1", "train 2"],
        "label": ["positive", "negative", "positive"],
        "row": ["train, row 1", "train, row 2", "train, row 3"],
    }
    assert loaded["validation"]["label"][:] == ["negative"] and loaded["test"]["label"][:] == ["positive"]
    assert {n: f.dtype for n, f in loaded["test"].features.items()} == {
        "text": "large_string",
        "label": "string",
        "row": "string",
    }


def test_minus_one_is_no_label(tmp_path):
    name = sentences(tmp_path / "a", train=[0, 1] * 10, test=[-1, -1])
    assert HubSentences(name, text="sentence").load()["test"]["label"][:] == [None, None]
    with pytest.raises(
        ValueError, match=r"the data set .*: train, row 2 has no label .*: every row of the train split needs one"
    ):
        HubSentences(sentences(tmp_path / "b", train=[0, -1, 1]), text="sentence").load()
    with pytest.raises(ValueError, match=r"dev, row 1 has no label .*: every row of the validation split needs one"):
        HubSentences(
            sentences(tmp_path / "c", train=[0, 1], validation=[0], dev=[-1]), text="sentence", validation="dev"
        ).load()
    with pytest.raises(ValueError, match=r"test, row 3 has no label .*: label all of them or none"):
        HubSentences(sentences(tmp_path / "d", train=[0] * 9, test=[0, 1, -1]), text="sentence").load()


def test_validation_is_cut_by_digest(tmp_path):
    name = sentences(tmp_path, train=sorted([0, 1] * 50))
    first, again = (HubSentences(name, text="sentence", val_fraction=0.2).load() for _ in range(2))
    assert {split: len(rows) for split, rows in first.items()} == {"train": 80, "validation": 20}
    assert first["validation"]["row"][:] == again["validation"]["row"][:]
    assert set(first["validation"]["label"]) == {"negative", "neutral"}
    assert not set(first["train"]["text"]) & set(first["validation"]["text"])


def test_csv_and_json_lines_in_a_local_folder(tmp_path):
    rows = [{"text": f"text {i}", "label": i % 2, "name": "ab"[i % 2]} for i in range(20)]
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "csv").mkdir()
    with (tmp_path / "csv" / "train.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    for kind in ("json", "csv"):
        numbered, named = HubSentences(str(tmp_path / kind)), HubSentences(str(tmp_path / kind), label="name")
        assert set(numbered.load()["train"]["label"]) == {"0", "1"} and set(named.load()["train"]["label"]) == {"a", "b"}
        assert numbered.classes() is None and named.classes() is None


def test_a_missing_column_lists_the_columns(tmp_path):
    name = sentences(tmp_path, train=[0, 1])
    columns = "its columns are idx, sentence, label"
    with pytest.raises(ValueError, match=rf"the data set .*: split train has no column 'text': {columns}"):
        HubSentences(name).load()
    with pytest.raises(ValueError, match=rf"no column 'labels': {columns}; did you mean 'label'\?"):
        HubSentences(name, text="sentence", label="labels").load()


def test_bad_cells_name_the_row(tmp_path):
    features = {"text": datasets.Value("string"), "label": datasets.Value("int64")}
    for texts, message in [(["a", " "], "train, row 2: column 'text' is empty"), (["a", None], "train, row 2: .* is missing")]:
        name = parquet(tmp_path / str(len(message)), features, train={"text": texts, "label": [0, 1]})
        with pytest.raises(ValueError, match=message):
            HubSentences(name).load()
    with pytest.raises(ValueError, match=r"train, row 1: column 'label' holds 0 \(int\), where text was expected"):
        HubSentences(name, text="label", label="label").load()


def test_words(tmp_path):
    source = HubWords(words(tmp_path, train=[[1, 2, 0], [0]], validation=[[0, 1]], test=[[-1, -1]]))
    loaded = source.load()
    assert source.classes() == TAGS
    assert loaded["train"].to_dict() == {
        "words": [["w0", "w1", "w2"], ["w0"]],
        "labels": [["B-PER", "I-PER", "O"], ["O"]],
        "row": ["train, row 1", "train, row 2"],
    }
    assert loaded["test"]["labels"][:] == [[None, None]]
    assert str(loaded["train"].features["words"]) == str(loaded["train"].features["labels"]) == "List(Value('string'))"


def test_words_that_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"train, row 2 has no label for word 2 "):
        HubWords(words(tmp_path / "a", train=[[0], [0, -1]])).load()
    with pytest.raises(ValueError, match=r"the data set .*: train, row 2 has no words: a sentence was expected"):
        HubWords(words(tmp_path / "b", train=[[0], []])).load()
    with pytest.raises(ValueError, match=r"split train has no column 'pos_tags': its columns are tokens, ner_tags"):
        HubWords(words(tmp_path / "c", train=[[0]]), labels="pos_tags").load()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.jsonl").write_text('{"tokens": ["a", "b"], "ner_tags": ["O"]}\n')
    with pytest.raises(ValueError, match=r"train, row 1 has 2 words and 1 labels"):
        HubWords(str(tmp_path / "d")).load()
    with pytest.raises(ValueError, match=r"train, row 1: column 'sentence' holds 'train 0' \(str\), where a list"):
        HubWords(sentences(tmp_path / "e", train=[0]), words="sentence", labels="label").load()


def test_a_number_without_a_name(tmp_path):
    name = sentences(tmp_path, train=[0, 1])
    path = tmp_path / "data" / "train-00000-of-00001.parquet"
    table = pyarrow.parquet.read_table(path)  # its schema carries the names
    pyarrow.parquet.write_table(table.set_column(2, table.schema.field(2), pyarrow.array([0, 3])), path)
    with pytest.raises(ValueError, match=r"train, row 2 has the label 3, but there are 3 classes, numbered from 0"):
        HubSentences(name, text="sentence").load()


def test_words_without_labels(tmp_path):
    loaded = HubWords(words(tmp_path, train=[[0]], test=[[0, 1]]), labels=None).load()
    assert list(loaded) == ["test"] and loaded["test"]["labels"][:] == [[None, None]]
