"""The classical baselines: what each model learns from a few lines, and the command on files and on rated reviews."""

from pathlib import Path

import numpy as np
import pytest

from datamodules.sources.labels import Example, to_splits
from datamodules.sources.reviews import RatedReviews
from tests.benchmarks import baselines
from tests.benchmarks.baseline_models import (
    FrequentLabel,
    JaccardThreshold,
    LinearTagger,
    PairFeatures,
    features,
    jaccard,
    overlap,
    shape,
)
from tests.benchmarks.baselines import bag_of_words, classified, main, majority, table

SENTENCES = [["Anna", "Berg", "sleeps"], ["in", "Oslo", "she", "sleeps"], ["Anna", "walks", "in", "Rome"]]
LABELS = [["B-PER", "I-PER", "O"], ["O", "B-LOC", "O", "O"], ["B-PER", "O", "O", "B-LOC"]]


def cells(printed: str) -> list[list[str]]:
    """Of each row below the header: the split it is tested on, its examples, its scores."""
    start = printed.splitlines()[1].index("tested on")
    return [line[start:].split() for line in printed.splitlines()[2:]]


def test_most_frequent_label_of_a_word() -> None:
    model = FrequentLabel(unknown="O")
    model.fit([["may", "may", "May"], ["may"]], [["verb", "noun", "month"], ["noun"]])
    assert model.predict([["may", "May", "MAY"], ["june"]]) == [["noun", "month", "O"], ["O"]]
    model = FrequentLabel(unknown="O", known=False)
    model.fit(SENTENCES, LABELS)
    assert model.predict(SENTENCES[:1]) == [["O", "O", "O"]]


def test_linear_tagger_learns_its_sentences_and_words_by_their_neighbours() -> None:
    model = LinearTagger(seed=0)
    model.fit(SENTENCES, LABELS)
    assert model.predict(SENTENCES) == LABELS
    assert model.predict([["she", "walks", "in", "Bonn"]]) == [["O", "O", "O", "B-LOC"]]


def test_features_see_the_neighbours_and_the_shape() -> None:
    assert [shape(word) for word in ("U.N.", "Smith-2", "Ångström", "1996", "--")] == ["X.X.", "Xx-d", "Xx", "d", "-"]
    first, _, last = features(["In", "Oslo", "2024"])
    assert first["first"] and first["-1"] == "<" and first["+1"] == "oslo" and first["+1, shape"] == "Xx"
    assert not last["first"] and last["-1 and 0"] == "Oslo 2024" and last["shapes"] == "Xx d >"


def test_jaccard_threshold_makes_the_fewest_errors() -> None:
    assert jaccard(("The cat sat.", "the cat ran")) == 0.5 and jaccard(("!", "?")) == 0.0
    pairs = [("a b c d", "a b c d"), ("a b c d", "a b c e"), ("a b c d", "a b e f"), ("a b", "c d")]
    model = JaccardThreshold("same", "different").fit(pairs, ["same", "same", "different", "different"])
    assert model.threshold_ == 0.6
    assert model.predict([("x y z", "x y z"), ("x", "y")]).tolist() == ["same", "different"]
    none = JaccardThreshold("same", "different").fit(pairs, ["different"] * 4)
    assert none.predict(pairs).tolist() == ["different"] * 4


def test_pair_features_are_two_blocks_and_the_overlap() -> None:
    pairs = [("a man is not running", "a man is running"), ("the dog runs", "the dog runs fast")]
    assert overlap(pairs[0]) == [0.8, 1, 0, 1.0] and overlap(pairs[1]) == [0.75, 0, 1, 0.0]
    model = PairFeatures().fit(pairs)
    found = model.transform(pairs).toarray()
    width = len(model.tf_idf_.vocabulary_)
    assert found.shape == (2, 2 * width + 4)
    assert np.array_equal(model.transform([pair[::-1] for pair in pairs]).toarray()[:, :width], found[:, width : 2 * width])


def test_a_table_is_aligned_and_leaves_out_what_a_row_lacks() -> None:
    lines = table([("a model", "test", 1234, {"accuracy": 0.5}), ("b", "validation", 5, {"f1": 1.0})]).split("\n")
    assert len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["a", "model", "test", "1,234", "0.5000"] and lines[2].split()[-1] == "1.0000"
    assert lines[1].index("0.5000") < lines[2].index("1.0000")


def test_words_tell_a_thousand_reviews_better_than_the_majority() -> None:
    splits = RatedReviews(num_train=1000).load()
    assert len(splits["train"]) == 1000
    scores = {
        name: [row[3]["accuracy"] for row in classified(name, model, splits)]
        for name, model in {"words": bag_of_words(), "majority": majority()}.items()
    }
    assert all(0.65 < accuracy < 0.8 for accuracy in scores["words"])
    assert all(0.45 < accuracy < 0.55 for accuracy in scores["majority"])


def test_command_on_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "sst2"
    folder.mkdir()
    lines = ["1\ta good film", "0\ta bad film", "1\ta good plot", "0\ta bad plot", "1\tgood indeed"]
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").write_text("label\tsentence\n" + "\n".join(lines) + "\n")
    main(["sst2", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.startswith("sst2: scikit-learn ") and ", seed 0, " in printed
    assert [row[:3] for row in cells(printed)] == [
        ["validation", "5", "0.6000"], ["test", "5", "0.6000"], ["validation", "5", "1.0000"], ["test", "5", "1.0000"],
    ]  # fmt: skip


def test_command_on_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sick").mkdir()
    header = "sentence_A\tsentence_B\tentailment_judgment\n"
    kinds = ["a man runs\ta man runs\tENTAILMENT\n", "a man runs\tno man runs\tCONTRADICTION\n", "a man runs\ta dog\tNEUTRAL\n"]
    for name, copies in (("train", 20), ("trial", 2)):
        (tmp_path / f"sick/{name}.tsv").write_text(header + "".join(kinds) * copies)
    main(["sick", "--data", str(tmp_path)])
    rows = cells(capsys.readouterr().out)
    assert [row[:2] for row in rows] == [["validation", "6"], ["test", "6"]] * 2
    assert rows[1][2] == "0.3333" and rows[2][2] == rows[3][2] == "1.0000"


def test_command_on_entities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "conll2003").mkdir()
    text = "\n\n".join(
        "\n".join(f"{word} {label}" for word, label in zip(*both, strict=True)) for both in zip(SENTENCES, LABELS, strict=True)
    )
    for name in ("train", "valid", "test"):
        (tmp_path / f"conll2003/{name}.txt").write_text(text + "\n")
    main(["conll2003", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[-1] == "span_f1"
    assert [row[-1] for row in cells(printed)] == ["1.0000"] * 4


SAME = [{"text": f"in the year {i} he came", "text_pair": f"he came in year {i}", "label": "same"} for i in range(9)]
OTHER = [{"text": f"in the year {i} he came", "text_pair": f"she went to {i}", "label": "different"} for i in range(9)]
RESTORED = [{"words": ["rome", "is", "old"], "labels": ["title+none", "lower+none", "lower+period"]}] * 9


@pytest.mark.parametrize(
    ("name", "source", "examples"),
    [("pairs", "BiblePairs", SAME + OTHER), ("punctuation", "WikipediaRestoration", RESTORED)],
)
def test_command_on_what_comes_with_packages(
    name: str, source: str, examples: list[Example], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    splits = to_splits({split: examples for split in ("train", "validation", "test")}, val_fraction=0)
    monkeypatch.setattr(baselines, source, lambda: type("Toy", (), {"load": lambda self: splits})())
    main([name])
    found = cells(capsys.readouterr().out)
    assert len(found) == 4 and found[2][-1] == found[3][-1] == "1.0000" and float(found[0][-1]) < 0.7


def test_an_unknown_set_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["imdb"])
    assert "punctuation" in capsys.readouterr().err
