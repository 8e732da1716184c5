"""From a pre-trained BERT to a table of predictions, as a user goes, on sentences, pairs and words; and what is refused."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.reading import read_csv, run_pipeline, train_rows

SMALL = [
    "--model.init_args.net.num_layers", "1", "--model.init_args.net.num_heads", "2", "--model.init_args.net.embed_dim", "16",
    "--model.init_args.net.max_seq_len", "32", "--data.init_args.batch_size", "8", "--trainer.accelerator", "cpu",
    "--trainer.max_steps", "4", "--trainer.val_check_interval", "2", "--trainer.log_every_n_steps", "1",
    "--trainer.callbacks", "[]", "--data.init_args.tokenizer.init_args.vocab_size", "300",
]  # fmt: skip
SOURCE = "--data.init_args.source"


def pretraining(documents: Path) -> list[str]:
    files = [f"{SOURCE}.class_path", "datamodules.sources.files.TextFiles", f"{SOURCE}.init_args.paths", str(documents)]
    return ["fit", "--config", "configs/bert.yaml", *SMALL, *files]


@pytest.fixture(scope="module")
def pretrained(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("pretrained") / "bert"
    ran = run_pipeline(*pretraining(documents), "--run_dir", run, XDG_CACHE_HOME=str(run.parent / "cache"))
    assert ran.returncode == 0, ran.stderr
    return run


@pytest.fixture
def reviews(tmp_path: Path) -> dict[str, Path]:
    """Tables; the last without labels."""
    rows = [(f"a {word} film number {i}", "good" if i % 2 else "bad") for i, word in enumerate(["fine", "poor"] * 12)]
    for name, part in {"train": rows, "dev": rows[:7], "test": rows[3:10]}.items():
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("review", "verdict"), *part])
    (tmp_path / "new.jsonl").write_text("".join(json.dumps({"review": text}) + "\n" for text, _ in rows[:5]))
    return {name: tmp_path / name for name in ("train.csv", "dev.csv", "test.csv", "new.jsonl")}


def sentences(reviews: dict[str, Path], run: Path) -> list[str]:
    table = {"text": "review", "label": "verdict", "train": reviews["train.csv"]}
    table |= {"validation": reviews["dev.csv"], "test": reviews["test.csv"]}
    source = [word for name, value in table.items() for word in (f"{SOURCE}.init_args.{name}", str(value))]
    path = [f"{SOURCE}.class_path", "datamodules.sources.tables.SentenceTable"]
    return ["fit", "--config", "configs/bert_reviews.yaml", *SMALL, *path, *source, "--run_dir", str(run)]


def test_fine_tune_test_and_predict(inside: Any, pretrained: Path, reviews: dict[str, Path], tmp_path: Path) -> None:
    """The pre-trained run may be gone afterwards: a run has what it needs in itself."""
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(pretrained, base)
    command = sentences(reviews, run)
    code, out, last = inside(*command, "--model.init_args.init_from", base)
    assert code == 0, last
    assert "new: classifier; left: mlm_head, nsp_head" in out
    started, theirs = (torch.load(r / "checkpoints/last.ckpt", weights_only=True) for r in (run, base))
    assert started["assets"]["tokenizer"] == theirs["assets"]["tokenizer"] and started["assets"]["classes"] == ["bad", "good"]
    assert started["hyper_parameters"]["classes"] == ["bad", "good"]
    shutil.rmtree(base)
    assert inside("test", "--run_dir", run)[0] == 0
    tested = json.loads((run / "results.json").read_text())["test"]
    assert {"test/loss", "test/accuracy", "test/macro_f1", "test/f1"} <= tested.keys()
    assert inside("predict", "--run_dir", run)[0] == 0
    rows = read_csv(run / "predictions.csv")
    assert list(rows[0]) == ["index", "input", "prediction", "probability", "label"]
    truth = read_csv(reviews["test.csv"])
    assert [(r["input"], r["label"]) for r in rows] == [(r["review"], r["verdict"]) for r in truth]
    assert sum(r["prediction"] == r["label"] for r in rows) / len(rows) == pytest.approx(tested["test/accuracy"])
    assert all(0.5 <= float(r["probability"]) <= 1 for r in rows)
    code, out, last = inside(*command, "--model.init_args.init_from", base, "--trainer.max_steps", 6)  # goes on
    assert code == 0 and "continuing" in out, last
    assert [step for step, _ in train_rows(run)] == list(range(1, 7))


def test_new_sentences_without_labels(inside: Any, pretrained: Path, reviews: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert inside(*sentences(reviews, run), "--model.init_args.init_from", pretrained)[0] == 0
    new = {"train": "null", "validation": "null", "label": "null", "test": reviews["new.jsonl"]}
    options = [word for name, value in new.items() for word in (f"{SOURCE}.init_args.{name}", str(value))]
    saved = ["--config", run / "config.yaml"]
    code, _, last = inside("predict", "--run_dir", run, *saved, *options, "--format", "parquet")
    assert code == 0, last
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(run / "predictions.parquet").to_pydict()
    assert list(table) == ["index", "input", "prediction", "probability"] and len(table["index"]) == 5
    assert set(table["prediction"]) <= {"bad", "good"}
    code, _, last = inside("test", "--run_dir", run, *saved, *options)
    assert code != 0 and "has no labels" in last


def test_pairs(inside: Any, pretrained: Path, tmp_path: Path) -> None:
    lines = ["one\ttwo\tanswer", *(f"a number {i}\tthe number {i + i % 3}\t{i % 3}" for i in range(24))]
    for name in ("train", "test"):
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    table = {"train": tmp_path / "train.tsv", "test": tmp_path / "test.tsv", "text": "one", "text_pair": "two"}
    source = [word for name, value in {**table, "label": "answer"}.items() for word in (f"{SOURCE}.init_args.{name}", value)]
    path = [f"{SOURCE}.class_path", "datamodules.sources.tables.SentenceTable"]
    run = ["--run_dir", tmp_path / "run"]
    code, _, last = inside("fit", "--config", "configs/bert_pairs.yaml", *SMALL, *path, *source, *run,
                           "--model.init_args.init_from", pretrained)  # fmt: skip
    assert code == 0, last
    assert inside("predict", *run)[0] == 0
    rows = read_csv(tmp_path / "run" / "predictions.csv")
    assert (rows[4]["input"], rows[4]["input_pair"], rows[4]["label"]) == ("a number 4", "the number 5", "1")


def test_words(inside: Any, pretrained: Path, tmp_path: Path) -> None:
    sentence = "Peter B-PER\nBlackburn I-PER\nis O\nin O\nBerlin B-LOC\n. O\n\n"
    long = "".join(f"word{i} O\n" for i in range(30)) + "\n"
    source = [f"{SOURCE}.class_path", "datamodules.sources.words.WordFiles"]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.conll").write_text(sentence * 20 + long)
        source += [f"{SOURCE}.init_args.{split}", tmp_path / f"{split}.conll"]
    run = ["--run_dir", tmp_path / "run"]
    code, out, last = inside("fit", "--config", "configs/bert_punctuation.yaml", *SMALL, *source, *run,
                             "--model.init_args.init_from", pretrained)  # fmt: skip
    assert code == 0, last
    assert "1 rows of more than max_seq_len 32 tokens are cut between words" in out
    assert inside("test", *run)[0] == 0
    tested = json.loads((tmp_path / "run" / "results.json").read_text())["test"]
    assert {"test/accuracy", "test/macro_f1", "test/span_f1", "test/span_precision", "test/span_recall"} <= tested.keys()
    assert inside("predict", *run)[0] == 0
    rows = read_csv(tmp_path / "run" / "predictions.csv")
    assert list(rows[0]) == ["index", "word", "input", "prediction", "probability", "label"]
    assert [r["input"] for r in rows if r["index"] == "20"] == [f"word{i}" for i in range(30)]  # in several sequences
    assert [(r["word"], r["input"], r["label"]) for r in rows[:2]] == [("0", "Peter", "B-PER"), ("1", "Blackburn", "I-PER")]


@pytest.mark.parametrize(
    "options,said",
    [
        (["--model.init_args.init_from", "nowhere"], "init_from: no checkpoint at nowhere"),
        ([f"{SOURCE}.init_args.text", "revue"], "review"),
        ([f"{SOURCE}.init_args.train", "missing.csv"], "missing.csv"),
        (["--model.init_args.net.num_classes", "7"], "num_classes is 7"),
        (["--data.init_args.init_from", "runs/x"], "data.init_args.init_from is runs/x"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_leaves_nothing(
    inside: Any, reviews: dict[str, Path], tmp_path: Path, options: list[str], said: str
) -> None:
    code, _, last = inside(*sentences(reviews, tmp_path / "run"), *options)
    assert code == 2 and said in last, last
    assert not (tmp_path / "run").exists()


def test_an_unknown_label_is_named_with_its_row(inside: Any, reviews: dict[str, Path], tmp_path: Path) -> None:
    with open(reviews["dev.csv"], "a") as file:
        file.write("so so,middling\n")
    code, _, last = inside(*sentences(reviews, tmp_path / "run"))
    assert code == 2 and "dev.csv, row 8: the label 'middling' is none of the classes bad, good" in last
    assert not (tmp_path / "run").exists()


def test_one_document_is_too_little_for_next_sentences(inside: Any, text: Path, tmp_path: Path) -> None:
    run = ["--run_dir", tmp_path / "run"]
    code, _, last = inside(*pretraining(text), *run)
    assert code == 2 and "next-sentence prediction needs sentences of other documents" in last
    assert not (tmp_path / "run").exists()
    code, _, last = inside(*pretraining(text), *run, "--data.init_args.nsp", "false")
    assert code == 0, last
    assert not any("nsp" in name for name in read_csv(tmp_path / "run" / "metrics.csv")[0])


def test_another_models_classes_are_refused(inside: Any, reviews: dict[str, Path], tmp_path: Path) -> None:
    assert inside(*sentences(reviews, tmp_path / "run"))[0] == 0
    for name in ("train.csv", "dev.csv", "test.csv"):
        reviews[name].write_text(reviews[name].read_text().replace("good", "great"))
    code, _, last = inside("test", "--run_dir", tmp_path / "run")
    assert code == 2 and "['bad', 'good']" in last and "great" in last


@pytest.mark.slow
@pytest.mark.parametrize("whole_word", ["false", "true"])
def test_one_curve_on_one_and_two_processes(documents: Path, tmp_path: Path, whole_word: str) -> None:
    """Pairs of uneven lengths, two losses with a count each, dropout 0."""
    command = [*pretraining(documents), "--trainer.max_steps", 8, "--data.init_args.whole_word", whole_word,
               "--model.init_args.net.dropout", 0]  # fmt: skip
    two = ["--config", "configs/trainer/ddp.yaml", "--trainer.devices", 2, "--data.init_args.micro_batch_size", 2]
    for name, options in {"one": [], "two": two}.items():
        ran = run_pipeline(*command, *options, "--run_dir", tmp_path / name)
        assert ran.returncode == 0, ran.stderr
    rows = [read_csv(tmp_path / name / "metrics.csv") for name in ("one", "two")]
    for column in ("train/loss", "train/mlm_loss", "train/nsp_loss", "val/mlm_accuracy", "val/nsp_loss"):
        one, other = ([float(row[column]) for row in part if row[column]] for part in rows)
        assert one and one == pytest.approx(other, rel=1e-6), column
