"""Which splits of a data set are used, and what names it, for labelled sentences and words."""

import datasets
import pytest

from datamodules.sources.hub_labels import HubSentences, HubWords, choose_splits

NAMES = ["negative", "neutral", "positive"]


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


def test_splits_by_names_of_their_own(tmp_path):
    """As nyu-mll/glue mnli."""
    features = {"premise": datasets.Value("string"), "hypothesis": datasets.Value("string")}
    features["label"] = datasets.ClassLabel(names=NAMES)
    splits = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
    columns = {s: {"premise": [s], "hypothesis": [s + "?"], "label": [-1 if "test" in s else 1]} for s in splits}
    name = parquet(tmp_path, features, **columns)
    source = HubSentences(name, text="premise", text_pair="hypothesis", validation="validation_matched", test="test_matched")
    loaded = source.load()
    assert {s: (rows["text_pair"][0], rows["label"][0]) for s, rows in loaded.items()} == {
        "train": ("train?", "neutral"),
        "validation": ("validation_matched?", "neutral"),
        "test": ("test_matched?", None),
    }
    assert loaded["validation"]["row"][:] == ["validation_matched, row 1"]
    with pytest.raises(
        ValueError, match=r"has no split 'validation_match' for validation: .*; did you mean 'validation_matched'\?"
    ):
        HubSentences(name, text="premise", validation="validation_match").load()


def test_without_labels_only_the_test_split_is_read(tmp_path):
    name = sentences(tmp_path, train=[0, -1], test=[0])
    loaded = HubSentences(name, text="sentence", label=None).load()
    assert {s: rows["label"][:] for s, rows in loaded.items()} == {"test": [None]}
    assert HubSentences(name, text="sentence", label=None, test="train").load()["test"]["text"][:] == ["train 0", "train 1"]
    with pytest.raises(ValueError, match="label is null: .* a test split only, not validation"):
        HubSentences(name, label=None, validation="train")
    with pytest.raises(ValueError, match="has no split test, only train"):
        HubSentences(sentences(tmp_path / "train", train=[0]), text="sentence", label=None).load()


@pytest.mark.parametrize(
    ("present", "options", "chosen"),
    [
        (["test", "train"], {}, {"train": "train", "test": "test"}),
        (["train", "dev", "test"], {}, {"train": "train", "validation": "dev", "test": "test"}),
        (["train", "valid"], {}, {"train": "train", "validation": "valid"}),
        (["train", "test"], {"validation": "test"}, {"train": "train", "validation": "test"}),
        (["train", "validation", "test"], {"test": "validation"}, {"train": "train", "test": "validation"}),
        (["test"], {}, {"test": "test"}),
    ],
)
def test_which_splits_are_used(present, options, chosen):
    options = {"validation": None, "test": None} | options
    assert choose_splits("set", present, **options) == chosen


@pytest.mark.parametrize(
    ("present", "options", "message"),
    [
        (["train", "test"], {"validation": "train"}, "set: split 'train' cannot be both train and validation"),
        (["train", "a"], {"validation": "a", "test": "a"}, "set: split 'a' cannot be both validation and test"),
        (["a", "b"], {}, "set has no split train, validation or test, only a, b"),
        (["train", "test"], {"test": "tests"}, r"no split 'tests' for test: its splits are train, test; did you mean 'test'\?"),
    ],
)
def test_splits_that_cannot_be_used(present, options, message):
    with pytest.raises(ValueError, match=message):
        choose_splits("set", present, **({"validation": None, "test": None} | options))


def test_absent_or_unreachable_is_one_line(monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError)\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    for source in (HubSentences("a/b", "c"), HubWords("a/b", "c")):
        with pytest.raises(FileNotFoundError, match=r"the data set a/b \(c\) cannot be .* reached: .*a local folder") as error:
            source.load()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("fraction", [0, 1])
def test_val_fraction_out_of_range(fraction):
    for kind in (HubSentences, HubWords):
        with pytest.raises(ValueError, match=f"val_fraction {fraction} must lie"):
            kind("a/b", val_fraction=fraction)


def test_options_reach_the_hub(monkeypatch):
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or datasets.DatasetDict()
    )
    for kind in (HubSentences, HubWords):
        with pytest.raises(ValueError, match="has no split train, validation or test"):
            kind("a/b", "c", revision="d").load()
    assert asked == [(("a/b", "c"), {"revision": "d"})] * 2


def test_fingerprint_follows_files_and_options(tmp_path):
    name = sentences(tmp_path, train=[0, 1, 2])
    first = HubSentences(name).fingerprint()
    options = [
        {"config": "x"}, {"text": "x"}, {"text_pair": "x"}, {"label": "x"}, {"label": None}, {"validation": "x"}, {"test": "x"},
        {"val_fraction": 0.2}, {"revision": "x"},
    ]  # fmt: skip
    assert len({first, *(HubSentences(name, **option).fingerprint() for option in options)}) == 10
    for option in ({"words": "x"}, {"labels": "x"}, {"revision": "x"}):
        assert HubWords(name, **option).fingerprint() != HubWords(name).fingerprint()
    sentences(tmp_path, train=[0, 1])
    assert HubSentences(name).fingerprint() != first
    assert HubSentences("a/b", "c").describe() == "the data set a/b (c)"
