"""Spans of words in BIO labels, and how many of them were found."""

from collections.abc import Sequence

Span = tuple[str, int, int]
"""(type, first word, word after the last)"""


def is_bio(classes: Sequence[str]) -> bool:
    """Whether the classes are O, B-type and I-type."""
    return "O" in classes and len(classes) > 1 and all(name == "O" or name[:2] in ("B-", "I-") for name in classes)


def spans(labels: Sequence[str]) -> set[Span]:
    """The spans of a sentence. An I- that continues no span of its type begins one, as in conlleval.

    Source: Tjong Kim Sang and De Meulder 2003 (CoNLL-2003), section 2, and its evaluation script.
    """
    found: set[Span] = set()
    kind, start = "", 0
    for place, label in enumerate([*labels, "O"]):
        if kind and label != f"I-{kind}":
            found.add((kind, start, place))
            kind = ""
        if not kind and label != "O":
            kind, start = label[2:], place
    return found


def count_spans(predicted: Sequence[str], true: Sequence[str]) -> tuple[int, int, int]:
    """How many spans are in both (same type, same words), were predicted, and are true."""
    ours, theirs = spans(predicted), spans(true)
    return len(ours & theirs), len(ours), len(theirs)


def span_scores(correct: int, predicted: int, true: int) -> dict[str, float]:
    """span_precision, span_recall and span_f1; 0 where there is nothing to divide by."""
    return {
        "span_precision": correct / predicted if predicted else 0.0,
        "span_recall": correct / true if true else 0.0,
        "span_f1": 2 * correct / (predicted + true) if predicted + true else 0.0,
    }
