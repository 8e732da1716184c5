"""Fine-tuning data from tables: exact batches, what is cut, which classes there are, tables of predictions."""

import itertools
import json
import pickle

import numpy as np
import pytest
import torch

from datamodules.sentences import SentenceDataModule, cut_to
from datamodules.sources.tables import SentenceTable
from datamodules.sources.words import WordFiles
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.words import WordDataModule, fitting

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
PAD, CLS, SEP, _ = range(4)


def b(text):
    return [4 + byte for byte in text.encode()]


@pytest.fixture
def make(tmp_path):
    """Makes a datamodule of sentences, pairs or words, whichever the rows of the splits are."""

    def make(tokenizer=None, init_from=None, max_seq_len=16, labels=True, **splits):
        for split, rows in splits.items():
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = {split: str(tmp_path / f"{split}.jsonl") for split in splits}
        first = next(iter(splits.values()))[0]
        per_word = "words" in first
        options |= {"text_pair": "text_pair"} if "text_pair" in first else {}
        options |= {} if labels else {"labels" if per_word else "label": None}
        source = (WordFiles if per_word else SentenceTable)(**options)
        kind, cache = WordDataModule if per_word else SentenceDataModule, str(tmp_path / "cache")
        return kind(source, tokenizer or ByteTokenizer(SPECIAL), 2, max_seq_len, init_from, cache_dir=cache)

    return make


@pytest.fixture
def checkpoint(tmp_path):
    """A trained model's, with its tokenizer and classes."""

    def checkpoint(*classes, special=SPECIAL):
        assets = {"tokenizer": ByteTokenizer(special).to_json(), **({"classes": list(classes)} if classes else {})}
        torch.save({"assets": assets}, tmp_path / "model.ckpt")
        return str(tmp_path / "model.ckpt")

    return checkpoint


def rows(*labels):
    return [{"text": f"s{i}", "label": label} for i, label in enumerate(labels)]


def sentence(words, labels=None):
    return {"words": words.split(), **({} if labels is None else {"labels": labels.split()})}


def batch_of(data, split="train"):
    indices = np.arange(len(data.dataset(split)))
    batch = data.dataset(split)[0, indices, indices]
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def test_a_batch_of_sentences(make):
    train = [{"text": "ab", "label": "x"}, {"text": " c  \n d ", "label": "y"}, {"text": "e", "label": "x"}]
    data = make(train=train, validation=rows("x"))
    assert batch_of(data) == {
        "input_ids": [[CLS, *b(" ab"), SEP, PAD], [CLS, *b(" c d"), SEP], [CLS, *b(" e"), SEP, PAD, PAD]],
        "segment_ids": [[0] * 6] * 3,
        "attention_mask": [[True] * 5 + [False], [True] * 6, [True] * 4 + [False] * 2],
        "labels": [0, 1, 0],
        "num_tokens": 15,
        "index": [0, 1, 2],
    }
    assert data.dataset("train").lengths(0).tolist() == [5, 6, 4] and data.num_classes == 2
    one = data.dataset("train")[0, np.array([2, 0]), np.array([2, 0])]
    assert one["labels"].dtype == one["input_ids"].dtype == one["segment_ids"].dtype == torch.int64
    assert one["input_ids"].tolist() == [[CLS, *b(" e"), SEP, PAD], [CLS, *b(" ab"), SEP]] and one["index"].tolist() == [2, 0]


def test_a_batch_of_pairs(make):
    train = [{"text": "ab", "text_pair": "c", "label": 10}, {"text": "d", "text_pair": "e", "label": 9}]
    found = batch_of(make(train=train, validation=train))
    assert found["input_ids"] == [[CLS, *b(" ab"), SEP, *b(" c"), SEP], [CLS, *b(" d"), SEP, *b(" e"), SEP, PAD]]
    assert found["segment_ids"] == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 0]]
    assert found["attention_mask"] == [[True] * 8, [True] * 7 + [False]]
    assert found["labels"] == [1, 0] and found["num_tokens"] == 15


def test_a_batch_of_words_is_labelled_at_first_tokens(make):
    data = make(train=[sentence("ab c", "N V"), sentence("def", "O")], validation=[sentence("a", "N")])
    assert data.classes == ["N", "O", "V"]
    assert batch_of(data) == {
        "input_ids": [[CLS, *b(" ab"), *b(" c"), SEP], [CLS, *b(" def"), SEP, PAD]],
        "segment_ids": [[0] * 7] * 2,
        "attention_mask": [[True] * 7, [True] * 6 + [False]],
        "labels": [[-100, 0, -100, -100, 2, -100, -100], [-100, 1, -100, -100, -100, -100, -100]],
        "word_starts": [[False, True, False, False, True, False, False], [False, True] + [False] * 5],
        "num_tokens": 13,
        "index": [0, 1],
    }
    assert data.dataset("train")[0, np.array([1]), np.array([1])]["labels"].tolist() == [[-100, 1, -100, -100, -100, -100]]
    assert len(pickle.dumps(data.dataset("train"))) < 10_000


def test_cut_to_takes_tokens_from_the_longer_part_one_by_one():
    for first, second, budget in itertools.product(range(1, 14), range(1, 14), range(2, 28)):
        parts = [list(range(first)), list(range(100, 100 + second))]
        expected = [list(part) for part in parts]
        while sum(map(len, expected)) > budget:
            longer = len(expected[1]) - len(expected[0]) or first - second  # of equal ones that which was shorter
            expected[longer > 0].pop()
        assert cut_to(parts, budget) == expected, (first, second, budget)
        assert cut_to(parts[:1], budget) == [parts[0][:budget]]


def test_truncation_is_counted_and_printed(make, capsys):
    train = [{"text": "x" * n, "label": n % 2} for n in (12, 13, 14, 40)]  # with a space in front, [CLS] and [SEP]: 15 to 43
    for _ in range(2):  # from the cache too
        data = make(train=train, validation=rows(0))
        assert data.dataset("train").lengths(0).tolist() == [15, 16, 16, 16]
        assert batch_of(data)["input_ids"][3] == [CLS, *b(" " + "x" * 13), SEP]
        what = "train: 2 rows of more than max_seq_len 16 tokens are cut off at the end"
        assert capsys.readouterr().out == f"{data.source.describe()}: {what}\n"


def test_a_pair_is_cut_at_the_longer_one(make):
    train = [{"text": "abc", "text_pair": "x" * 40, "label": 0}, {"text": "y" * 40, "text_pair": "z" * 40, "label": 1}]
    found = batch_of(make(train=train, validation=train))
    assert found["input_ids"][0] == [CLS, *b(" abc"), SEP, *b(" " + "x" * 8), SEP]
    assert found["input_ids"][1] == [CLS, *b(" " + "y" * 5), SEP, *b(" " + "z" * 6), SEP]
    assert found["segment_ids"] == [[0] * 6 + [1] * 10, [0] * 8 + [1] * 8]


def test_a_long_sentence_is_split_between_words_without_loss_of_a_label(make, capsys):
    rng = np.random.default_rng(0)
    sizes = [rng.integers(1, 13, n).tolist() for n in rng.integers(1, 30, 50)]
    train = [{"words": ["w" * n for n in row], "labels": [str(i) for i in rng.integers(0, 5, len(row))]} for row in sizes]
    data = make(train=train, validation=train[:1])
    found, dataset = batch_of(data), data.dataset("train")
    assert max(dataset.lengths(0)) <= 16
    seen = [([], []) for _ in train]
    columns = (dataset.origin.tolist(), found["input_ids"], found["labels"], found["word_starts"])
    for (row, first), ids, classes, starts in zip(*columns, strict=True):
        assert len(seen[row][0]) == first and [label != -100 for label in classes] == starts
        assert [i == b(" ")[0] for i in ids] == starts
        seen[row][0].extend(bytes(i - 4 for i in ids if i > 3).decode().split())
        seen[row][1].extend(data.classes[label] for label in classes if label != -100)
    assert seen == [(row["words"], row["labels"]) for row in train]
    split = sum(sum(row) + len(row) > 14 for row in sizes)
    assert split > 10 and f"train: {split} rows of more than max_seq_len 16 tokens are cut between" in capsys.readouterr().out


def test_a_word_longer_than_a_sequence_keeps_its_label(make):
    data = make(train=[sentence("a " + "w" * 40 + " c", "N O V")], validation=[sentence("a", "N")])
    found = batch_of(data)
    assert found["input_ids"][1] == [CLS, *b(" " + "w" * 13), SEP]
    assert [[label for label in row if label != -100] for row in found["labels"]] == [[0], [1], [2]]
    assert list(fitting([[1] * 3, [2] * 2, [3] * 9], 5)) == [(0, [[1] * 3, [2] * 2]), (2, [[3] * 5])]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([10, 9, 0, 100], ["0", "9", "10", "100"]),
        (["10", "-1", "9"], ["-1", "9", "10"]),
        (["10", "9", "x"], ["10", "9", "x"]),
        (["pos", "neg", "Pos"], ["Pos", "neg", "pos"]),
    ],
)
def test_classes_are_numbered_by_value_or_by_name(make, labels, classes):
    data = make(train=rows(*labels), validation=rows(labels[0]))
    assert data.classes == classes == data.assets()["classes"] and data.num_classes == len(classes)
    assert batch_of(data)["labels"] == [classes.index(str(label)) for label in labels]
    words = make(train=[{"words": ["w"] * len(labels), "labels": labels}], validation=[{"words": ["w"], "labels": labels[:1]}])
    assert words.classes == classes


@pytest.mark.parametrize("split", ["validation", "test"])
def test_an_unknown_label_is_refused_with_its_row(make, split):
    for train, wrong in ((rows("yes", "no"), rows("maybe")), ([sentence("a b", "yes no")], [sentence("c d", "yes maybe")])):
        with pytest.raises(ValueError, match=rf"{split}\.jsonl, line 2: the label 'maybe' is none of the classes no, yes$"):
            make(train=train, **{"validation": train, split: train[:1] + wrong}).prepare()


def test_a_single_class_is_refused(make):
    for train in (rows("yes", "yes"), [sentence("a b", "yes yes")]):
        with pytest.raises(ValueError, match=r"train\.jsonl.*: all labels are 'yes', where two classes or more are needed$"):
            make(train=train, validation=train).prepare()


def test_a_test_split_alone_has_the_trained_models_classes(make, checkpoint):
    for test in (rows("b", "c", "b"), [sentence("s0 s1 s2", "b c b")]):
        data = make(test=test, init_from=checkpoint("c", "a", "b"))
        assert data.classes == ["c", "a", "b"]
        labels = np.ravel(batch_of(data, "test")["labels"])
        assert labels[labels != -100].tolist() == [2, 0, 2]
        with pytest.raises(ValueError, match=r"test\.jsonl, line \d: the label 'b' is none of the classes c, a$"):
            make(test=test, init_from=checkpoint("c", "a")).prepare()
        with pytest.raises(ValueError, match=r"test\.jsonl has no train split, so that its classes are not known$"):
            make(test=test, init_from=checkpoint()).prepare()
        with pytest.raises(ValueError, match=r"test\.jsonl has no train split; it has test$"):
            data.dataset("train")
    own = make(train=rows("x", "y"), validation=rows("x"), init_from=checkpoint("c", "a", "b"))  # another task
    assert own.classes == ["x", "y"] and own.assets()["tokenizer"] == ByteTokenizer(SPECIAL).to_json()


def test_a_tokenizer_without_cls_is_refused(make, checkpoint):
    lacking = [name for name in SPECIAL if name != "[CLS]"]
    for options in ({"tokenizer": ByteTokenizer(lacking)}, {"init_from": checkpoint(special=lacking)}):
        with pytest.raises(ValueError, match=r"the tokenizer lacks \[CLS\]: give it the special_tokens \[\[PAD\], .*\]$"):
            make(train=rows(0, 1), validation=rows(0), **options).prepare()


def test_sentences_and_pairs_as_tables(make, checkpoint):
    columns = {"index": [1, 2], "prediction": [0, 1], "probability": [0.5, 1.0], "label": [1, 0]}
    known = {"index": [1, 2], "prediction": ["x", "y"], "probability": [0.5, 1.0]}
    data = make(train=rows("x", "y", "x"), validation=rows("y", "x"))
    assert data.readable("train", columns) == {**known, "input": ["s1", "s2"], "label": ["y", "x"]}
    test = [{"text": f"a{i}", "text_pair": f"b{i}"} for i in range(3)]
    data = make(test=test, labels=False, init_from=checkpoint("x", "y"))
    assert batch_of(data, "test")["labels"] == [-100, -100, -100]
    table = data.readable("test", {**columns, "label": [-100, -100]})
    assert table == {**known, "input": ["a1", "a2"], "input_pair": ["b1", "b2"]}
    assert list(table) == ["index", "input", "input_pair", "prediction", "probability"]


@pytest.mark.parametrize("labelled", [True, False])
def test_words_as_a_table_with_split_sentences(make, checkpoint, labelled):
    texts = ["a bb " + "c" * 10 + " d", "e"]
    test = [sentence(text, " ".join("N" for _ in text.split()) if labelled else None) for text in texts]
    data = make(test=test, labels=labelled, init_from=checkpoint("N", "V"))
    assert data.dataset("test").origin.tolist() == [[0, 0], [0, 2], [1, 0]]
    labels = np.where(np.array(batch_of(data, "test")["word_starts"]), 0 if labelled else -100, -100)
    assert batch_of(data, "test")["labels"] == labels.tolist()
    label = [0 if labelled else -100] * 5
    columns = {"index": [0, 0, 1, 1, 2], "prediction": [0, 1, 0, 1, 0], "probability": [0.5] * 5, "label": label}
    assert data.readable("test", columns) == {
        "index": [0, 0, 0, 0, 1], "word": [0, 1, 2, 3, 0], "input": ["a", "bb", "c" * 10, "d", "e"],
        "prediction": ["N", "V", "N", "V", "N"], "probability": [0.5] * 5, **({"label": ["N"] * 5} if labelled else {}),
    }  # fmt: skip
