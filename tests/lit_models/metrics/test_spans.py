"""Spans as conlleval counts them."""

import pytest

from lit_models.metrics.spans import count_spans, is_bio, span_scores, spans


@pytest.mark.parametrize(
    "labels,expected",
    [
        ("O O O", set()),
        ("B-PER I-PER O B-LOC", {("PER", 0, 2), ("LOC", 3, 4)}),
        ("B-PER B-PER", {("PER", 0, 1), ("PER", 1, 2)}),  # a B- begins another one
        ("B-PER I-LOC I-LOC", {("PER", 0, 1), ("LOC", 1, 3)}),  # so does an I- of another type
        ("I-ORG I-ORG O I-ORG", {("ORG", 0, 2), ("ORG", 3, 4)}),  # and one after O
        ("O B-A", {("A", 1, 2)}),
        ("B-A-B I-A-B", {("A-B", 0, 2)}),
        ("", set()),
    ],
)
def test_spans(labels: str, expected: set[tuple[str, int, int]]) -> None:
    assert spans(labels.split()) == expected


def test_a_span_counts_only_whole_and_with_its_type() -> None:
    true = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-ORG", "I-ORG"]
    predicted = ["B-PER", "O", "O", "B-ORG", "O", "B-ORG", "I-ORG"]
    assert count_spans(predicted, true) == (1, 3, 3)


def test_scores() -> None:
    assert span_scores(2, 4, 5) == {"span_precision": 0.5, "span_recall": 0.4, "span_f1": pytest.approx(4 / 9)}
    assert set(span_scores(0, 0, 0).values()) == {0.0}


def test_bio_classes_are_told_from_others() -> None:
    assert is_bio(["O", "B-PER", "I-PER"]) and is_bio(["B-X", "O"])
    assert not is_bio(["lower+none", "title+comma"]) and not is_bio(["B-X", "I-X"]) and not is_bio(["O"])
    assert not is_bio(["O", "Big"])
