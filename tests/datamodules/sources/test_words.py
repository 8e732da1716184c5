import json
import pickle

import pyarrow
import pyarrow.parquet
import pytest

from datamodules.sources.words import WordFiles

SENTENCES = [(["Anna", "lives", "in", f"Town{i}"], ["B-PER", "O", "O", "B-LOC"]) for i in range(30)]
SENTENCES += [(["#", '"', ",", "-DOCSTART"], ["O"] * 4)]  # neither a comment nor a quote nor a mark between documents


def lines(path, sentences=SENTENCES, gap=" ", line_end="\n", bom=""):
    """A word a line, as CoNLL-2003 has them."""
    blocks = ["".join(f"{w}{gap}{tag}{line_end}" for w, tag in zip(*s, strict=True)) for s in sentences]
    path.write_bytes((bom + line_end.join(blocks)).encode())
    return str(path)


def lists(path, rows):
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def raw(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def as_pairs(rows):
    return list(zip(rows["words"], rows["labels"], strict=True))


@pytest.mark.parametrize("suffix", [".txt", ".conll", ".bio", ".iob", ".iob2", ".TXT"])
@pytest.mark.parametrize(
    "style", [{}, {"gap": "\t"}, {"gap": "  \t -X- _ "}, {"line_end": "\r\n", "bom": "\ufeff"}, {"gap": " NN B-NP "}]
)
def test_a_word_a_line(tmp_path, suffix, style):
    name = lines(tmp_path / f"train{suffix}", **style)
    rows = WordFiles(validation=name, words="ignored", labels="here").load()["validation"]
    assert as_pairs(rows) == SENTENCES
    assert rows["row"][:] == [f"{name}, line {5 * i + 1}" for i in range(31)]
    assert str(rows.features["words"]) == str(rows.features["labels"]) == "List(Value('string'))"


@pytest.mark.parametrize("suffix", [".jsonl", ".ndjson", ".json", ".parquet"])
def test_two_columns_of_lists(tmp_path, suffix):
    rows = [{"id": i, "tokens": words, "tags": labels} for i, (words, labels) in enumerate(SENTENCES)]
    loaded = WordFiles(test=lists(tmp_path / f"t{suffix}", rows), words="tokens", labels="tags").load()["test"]
    assert as_pairs(loaded) == SENTENCES
    assert loaded["row"][11] == f"{tmp_path / 't'}{suffix}, {'row' if suffix == '.parquet' else 'line'} 12"


def test_marks_between_documents_and_blank_lines(tmp_path):
    name = raw(tmp_path / "t.txt", "\n\n-DOCSTART- -X- O O\n\na X\n-DOCSTART-\nb Y\n \t\n\n\nc Z\nd Z\n\n-DOCSTART- O\n\n\n")
    loaded = WordFiles(test=name).load()["test"]
    assert as_pairs(loaded) == [(["a"], ["X"]), (["b"], ["Y"]), (["c", "d"], ["Z", "Z"])]
    assert loaded["row"][:] == [f"{name}, line {i}" for i in (5, 7, 11)]


def test_other_white_space_belongs_to_a_word(tmp_path):
    words = ["10\u00a0000", "a\u3000b", "c\u2028d", "e\x85f"]
    loaded = WordFiles(test=lines(tmp_path / "t.txt", [(words, ["O"] * 4)])).load()["test"]
    assert as_pairs(loaded) == [(words, ["O"] * 4)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.txt", "a X\nb Y\n\nc\n", r"t\.txt, line 4 has 1 columns, but line 1 has 2"),
        ("t.conll", "-DOCSTART- O\n\na NN X\nb Y\n", r"t\.conll, line 4 has 2 columns, but line 3 has 3"),
        ("t.bio", "a X\nb c Y\n", r"t\.bio, line 2 has 3 columns, but line 1 has 2"),
        ("t.txt", "\na\nb\n", r"t\.txt, line 2 has one column: a word and, last, its label were expected"),
        ("t.txt", "", r"t\.txt is empty"),
        ("t.txt", "-DOCSTART- O\n\n", r"t\.txt holds no sentence"),
        ("t.txt", "caf\u00e9 O\n".encode("latin-1"), r"t\.txt is not UTF-8 at byte 3 \(0xe9\)"),
        ("t.csv", "words,labels\na,X\n", r"t\.csv has the suffix '\.csv': a file of words ends in \.txt, .*, \.parquet"),
        ("t.jsonl", '{"words": ["a", "b"], "labels": ["X"]}', r"t\.jsonl, line 1 has 2 words and 1 labels: one label for each"),
        ("t.jsonl", '{"words": ["a"], "labels": ["X"]}\n{"words": [], "labels": []}', r"t\.jsonl, line 2 has no words"),
        ("t.jsonl", '{"words": "a b", "labels": ["X"]}', r"t\.jsonl, line 1: column 'words' holds 'a b' \(str\), where a list"),
        ("t.jsonl", '{"words": ["a"], "labels": "X"}', r"t\.jsonl, line 1: column 'labels' holds 'X' \(str\), where a list"),
        ("t.jsonl", '{"words": null, "labels": ["X"]}', r"t\.jsonl, line 1: column 'words' is missing, where a list"),
        ("t.jsonl", '{"words": ["a", 5], "labels": [1, 2]}', r"t\.jsonl, line 1: word 2 of column 'words' holds 5 \(int\)"),
        ("t.jsonl", '{"words": ["a", " "], "labels": [1, 2]}', r"t\.jsonl, line 1: word 2 of column 'words' is empty"),
        ("t.jsonl", '{"words": ["a"], "labels": [0.5]}', r"t\.jsonl, line 1: word 1 has the label 0\.5: a name or a whole"),
        (
            "t.jsonl",
            '{"word": ["a"], "labels": [1]}',
            r"t\.jsonl has no column 'words': its columns are word, labels; .* 'word'\?",
        ),
        ("t.jsonl", '{"words": ["a"], "tags": [1]}', r"t\.jsonl has no column 'labels': its columns are words, tags"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        WordFiles(test=raw(tmp_path / name, content)).load()
    assert str(error.value).startswith(str(tmp_path / name)) and "\n" not in str(error.value)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_missing_label_names_the_sentence_and_the_word(tmp_path, split):
    row = {"words": ["a", "b"], "labels": ["X", "Y"]}
    for lacking, word in [(["X", None], 2), (["X", ""], 2), ([-1, "Y"], 1), (None, 1)]:
        name = lists(tmp_path / "t.jsonl", [row, {**row, "labels": lacking}])
        with pytest.raises(
            ValueError, match=rf"t\.jsonl, line 2 has no label for word {word} \(.* the {split} split needs one"
        ):
            WordFiles(**{split: name}).load()


def test_a_test_split_has_all_labels_or_none(tmp_path):
    none = {"words": ["a", "b"], "labels": [None, None]}
    some = {"words": ["a", "b"], "labels": ["X", None]}
    loaded = WordFiles(test=lists(tmp_path / "t.jsonl", [none, {"words": ["c"], "labels": None}])).load()["test"]
    assert loaded["labels"][:] == [[None, None], [None]]
    with pytest.raises(ValueError, match=r"t\.jsonl, line 1 has no label for word 2 .*: label all of them or none"):
        WordFiles(test=lists(tmp_path / "t.jsonl", [some])).load()


@pytest.mark.parametrize("content", ["a\nb\n\nc\n", "a X\nb Y\n\nc Z\n"])
def test_words_without_labels(tmp_path, content):
    name = raw(tmp_path / "t.txt", content)
    loaded = WordFiles(test=name, labels=None).load()
    assert list(loaded) == ["test"] and as_pairs(loaded["test"]) == [(["a", "b"], [None, None]), (["c"], [None])]
    assert str(loaded["test"].features["labels"]) == "List(Value('string'))"
    with pytest.raises(ValueError, match="labels is null: .* a test split only, not train"):
        WordFiles(name, labels=None)


def test_lists_without_labels(tmp_path):
    name = lists(tmp_path / "t.parquet", [{"words": ["a", "b"]}])
    assert as_pairs(WordFiles(test=name, labels=None).load()["test"]) == [(["a", "b"], [None, None])]


def test_the_cut_is_by_digest_and_whole_sentences(tmp_path):
    sentences = SENTENCES[:30] * 2
    first = WordFiles(lines(tmp_path / "t.txt", sentences), val_fraction=0.2).load()
    again = WordFiles(lines(tmp_path / "u.bio", sentences, gap="\t"), val_fraction=0.2).load()
    assert {split: len(rows) for split, rows in first.items()} == {"train": 48, "validation": 12}
    assert [as_pairs(first[s]) for s in first] == [as_pairs(again[s]) for s in again]
    parts = [set(first[split]["row"]) for split in first]
    upper = [([word.upper() for word in words], labels) for words, labels in sentences]
    other = WordFiles(lines(tmp_path / "t.txt", upper), val_fraction=0.2).load()
    assert set(other["validation"]["row"]) != parts[1]
    assert not parts[0] & parts[1] and len(parts[0] | parts[1]) == 60


def test_a_sentence_with_the_last_word_of_a_class_stays_in_training(tmp_path):
    rare = [(["x", "y", "y"], ["O", f"B-{i}", f"B-{i}"]) for i in range(20)]
    loaded = WordFiles(lines(tmp_path / "t.txt", rare + SENTENCES), val_fraction=0.4).load()
    assert {f"B-{i}" for i in range(20)} <= {label for labels in loaded["train"]["labels"] for label in labels}
    assert len(loaded["validation"]) == 20


def test_paths_and_splits(tmp_path):
    train, test = lines(tmp_path / "train.txt"), lines(tmp_path / "test.txt")
    assert list(WordFiles(train, test=test).load()) == ["train", "validation", "test"]
    assert len(WordFiles(validation=str(tmp_path / "*.txt")).load()["validation"]) == 62
    with pytest.raises(FileNotFoundError, match=r"none\.txt does not exist"):
        WordFiles(str(tmp_path / "none.txt")).load()
    with pytest.raises(ValueError, match="no files are given"):
        WordFiles()
    with pytest.raises(ValueError, match="val_fraction 1 must lie between"):
        WordFiles(train, val_fraction=1)


def test_fingerprint_follows_content_and_options(tmp_path):
    name = lines(tmp_path / "t.txt")
    first = WordFiles(name).fingerprint()
    others = [
        WordFiles(name, words="w"), WordFiles(name, labels="l"), WordFiles(name, val_fraction=0.2), WordFiles(test=name),
        WordFiles(test=name, labels=None), WordFiles(lines(tmp_path / "u.txt", SENTENCES[:-1])),
    ]  # fmt: skip
    assert len({first, *(other.fingerprint() for other in others)}) == 7
    assert WordFiles(lines(tmp_path / "copy.txt")).fingerprint() == first
    assert WordFiles(name).describe() == f"the rows of {name}" and len(pickle.dumps(WordFiles(name))) < 1000
