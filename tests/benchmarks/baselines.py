"""What counting words achieves on each fine-tuning task: classical baselines on the splits that the sources give.

    python -m tests.benchmarks.baselines reviews|sst2|sick|conll2003|pairs|punctuation [--data DIR]

sst2, sick and conll2003 are read from DIR/sst2/{train,dev,test}.tsv, DIR/sick/{train,trial}.tsv (validation is cut from train,
trial is the test) and DIR/conll2003/{train,valid,test}.txt; the others come with the packages that the sources name.
Models are fitted on the training split alone; nothing is chosen on validation or test. macro_f1 is the mean over the classes
that occur, f1 that of the pairs that are the same, span_f1 that of whole entities.
"""

import argparse
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sklearn
from sklearn.base import ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline

from datamodules.sources.bible import BiblePairs
from datamodules.sources.restoration import WikipediaRestoration
from datamodules.sources.reviews import FILES, RatedReviews
from datamodules.sources.tables import SentenceTable
from datamodules.sources.words import WordFiles
from lit_models.metrics.spans import count_spans, is_bio, span_scores
from tests.benchmarks.baseline_models import FrequentLabel, JaccardThreshold, LinearTagger, PairFeatures, tf_idf

SEED = 0
Splits = Any  # a datasets.DatasetDict
Row = tuple[str, str, int, dict[str, float]]  # what was fitted, the split it is tested on, its examples, the scores


def sentences(split: Any) -> list[str]:
    return list(split["text"])


def pairs(split: Any) -> list[tuple[str, str]]:
    return list(zip(split["text"], split["text_pair"], strict=True))


def classified(
    name: str, model: ClassifierMixin, splits: Splits, inputs: Callable[[Any], list[Any]] = sentences,
    tested: tuple[str, ...] = ("validation", "test"), positive: str | None = None,
) -> Iterator[Row]:  # fmt: skip
    """Scores of a classifier; positive: the class whose F1 is wanted too."""
    model.fit(inputs(splits["train"]), list(splits["train"]["label"]))
    for split in tested:
        true, predicted = list(splits[split]["label"]), model.predict(inputs(splits[split]))
        scores = {"accuracy": accuracy_score(true, predicted), "macro_f1": f1_score(true, predicted, average="macro")}
        if positive:
            scores["f1"] = f1_score(true, predicted, pos_label=positive, zero_division=0)
        yield name, split, len(true), scores


def tagged(name: str, model: FrequentLabel | LinearTagger, splits: Splits) -> Iterator[Row]:
    """Scores of a model that labels words; of BIO labels also those of the spans."""
    model.fit(splits["train"]["words"], splits["train"]["labels"])
    for split in ("validation", "test"):
        true, predicted = list(splits[split]["labels"]), model.predict(splits[split]["words"])
        flat = [[label for labels in each for label in labels] for each in (true, predicted)]
        scores = {"accuracy": accuracy_score(*flat), "macro_f1": f1_score(*flat, average="macro")}
        if is_bio(sorted(set(flat[0]))):
            counts = [count_spans(ours, theirs) for ours, theirs in zip(predicted, true, strict=True)]
            scores |= span_scores(*(sum(column) for column in zip(*counts, strict=True)))
        yield name, split, len(true), scores


def majority() -> DummyClassifier:
    return DummyClassifier(strategy="most_frequent")


def bag_of_words() -> ClassifierMixin:
    return make_pipeline(tf_idf(), LogisticRegression(C=10, max_iter=1000, random_state=SEED))


def reviews(_: Path) -> Iterator[Row]:
    for num_train in (None, 1000):
        for domain in FILES:
            splits = RatedReviews(test_domain=domain, num_train=num_train).load()
            tested = ("validation", "test") if domain == "movies" else ("test",)
            models = {"tf-idf, logistic regression": bag_of_words(), "majority": majority()}
            for name, model in models.items():
                for what, split, size, scores in classified(name, model, splits, tested=tested):
                    yield f"{what}, {len(splits['train'])} movies", split.replace("test", f"test: {domain}"), size, scores


def sst2(data: Path) -> Iterator[Row]:
    files = {"train": "train", "validation": "dev", "test": "test"}
    paths = {split: str(data / f"sst2/{file}.tsv") for split, file in files.items()}
    splits = SentenceTable(**paths, text="sentence").load()
    yield from classified("majority", majority(), splits)
    yield from classified("tf-idf, logistic regression", bag_of_words(), splits)


def sick(data: Path) -> Iterator[Row]:
    splits = SentenceTable(
        train=str(data / "sick/train.tsv"), test=str(data / "sick/trial.tsv"),
        text="sentence_A", text_pair="sentence_B", label="entailment_judgment",
    ).load()  # fmt: skip
    yield from classified("majority", majority(), splits, pairs)
    model = make_pipeline(PairFeatures(), LogisticRegression(C=10, max_iter=1000, random_state=SEED))
    yield from classified("tf-idf of both, overlap, logistic regression", model, splits, pairs)


def conll2003(data: Path) -> Iterator[Row]:
    files = {"train": "train", "validation": "valid", "test": "test"}
    splits = WordFiles(**{split: str(data / f"conll2003/{file}.txt") for split, file in files.items()}).load()
    yield from tagged("most frequent label of the word", FrequentLabel(unknown="O"), splits)
    yield from tagged("word, shape, affixes, neighbours; logistic", LinearTagger(SEED), splits)


def bible(_: Path) -> Iterator[Row]:
    splits = BiblePairs().load()
    yield from classified("majority", majority(), splits, pairs, positive="same")
    model = JaccardThreshold(positive="same", negative="different")
    yield from classified("threshold on the Jaccard overlap", model, splits, pairs, positive="same")


def punctuation(_: Path) -> Iterator[Row]:
    splits = WikipediaRestoration().load()
    yield from tagged("lower+none always", FrequentLabel(unknown="lower+none", known=False), splits)
    yield from tagged("most frequent label of the word", FrequentLabel(unknown="lower+none"), splits)


SETS = {"reviews": reviews, "sst2": sst2, "sick": sick, "conll2003": conll2003, "pairs": bible, "punctuation": punctuation}


def table(rows: list[Row]) -> str:
    """Aligned, with a column for each score that a row has."""
    columns = list(dict.fromkeys(name for *_, scores in rows for name in scores))
    lines = [["", "tested on", "examples", *columns]]
    for name, split, size, scores in rows:
        lines.append([name, split, f"{size:,}", *(f"{scores[c]:.4f}" if c in scores else "" for c in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = [[cell.ljust(n) for cell, n in zip(line[:2], widths[:2], strict=True)] for line in lines]
    numbers = [[cell.rjust(n) for cell, n in zip(line[2:], widths[2:], strict=True)] for line in lines]
    return "\n".join("  ".join(left + right) for left, right in zip(aligned, numbers, strict=True))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the sets that are files")
    args = parser.parse_args(argv)
    start = time.perf_counter()
    rows = list(SETS[args.set](args.data))
    versions = f"scikit-learn {sklearn.__version__}, Python {platform.python_version()}"
    print(f"{args.set}: {versions}, seed {SEED}, {time.perf_counter() - start:.0f} s")
    print(table(rows))


if __name__ == "__main__":
    main()
