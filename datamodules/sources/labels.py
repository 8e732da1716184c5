"""What the sources of labelled sentences and words share: labels as names, the checks of rows, the cut of validation rows."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from datamodules.sources.base import check_text

if TYPE_CHECKING:
    import datasets

Row = tuple[str, Mapping[str, Any]]  # where it stands ("dev.tsv, row 12") and its cells by column
Example = dict[str, Any]  # a row of the result

CHECKS = 1  # raise it when the rows that are read, or the cut of validation rows, change


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of an error about a name that is not there."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_columns(owner: str, columns: Sequence[str], wanted: Iterable[str | None]) -> None:
    """Raises ValueError that lists the columns unless each wanted one (None: not wanted) is among them."""
    for name in wanted:
        if name is not None and name not in columns:
            listed = ", ".join(column[:40] for column in columns[:20]) + (", ..." if len(columns) > 20 else "")
            raise ValueError(f"{owner} has no column {name!r}: its columns are {listed}{nearest(name, columns)}")


def sentence(where: str, row: Mapping[str, Any], columns: Mapping[str, str | None], names: Sequence[str] | None) -> Example:
    """A row with `text`, `text_pair` (where a column is named for it), `label` and `row`.

    Args:
        where: what names the row in errors and in column `row`.
        row: its cells.
        columns: the column that holds each of text, text_pair and label; None where there is none.
        names: the classes by number, where the column is numbered.

    Raises:
        ValueError: a text is missing, blank or no text, or a label is no class.
    """
    parts = {part: columns[part] for part in ("text", "text_pair") if columns[part] is not None}
    example: Example = {part: _text(row.get(str(c)), f"{where}: column {c!r}") for part, c in parts.items()}
    label = columns["label"]
    return example | {"label": None if label is None else _label(row.get(label), names, where), "row": where}


def tagged(where: str, row: Mapping[str, Any], columns: Mapping[str, str | None], names: Sequence[str] | None) -> Example:
    """A row with the lists `words` and `labels` of one length, and `row`; arguments as in `sentence`.

    Raises:
        ValueError: a list is missing or none, there is no word, a word is blank or no text, there are more or fewer labels
            than words, or a label is no class.
    """
    words = _list(row, str(columns["words"]), where)
    if not words:
        raise ValueError(f"{where} has no words: a sentence was expected")
    words = [_text(word, f"{where}: word {i} of column {columns['words']!r}") for i, word in enumerate(words, 1)]
    label = columns["labels"]
    if label is None or row.get(label) is None:
        return {"words": words, "labels": [None] * len(words), "row": where}
    labels = [_label(value, names, f"{where}: word {i}") for i, value in enumerate(_list(row, label, where), 1)]
    if len(labels) != len(words):
        raise ValueError(f"{where} has {len(words)} words and {len(labels)} labels: one label for each word was expected")
    return {"words": words, "labels": labels, "row": where}


def _text(value: object, where: str) -> str:
    if value is None:
        raise ValueError(f"{where} is missing: text was expected")
    if not isinstance(value, str):
        raise ValueError(f"{where} holds {str(value)[:40]} ({type(value).__name__}), where text was expected")
    check_text(value, where)
    return value


def _list(row: Mapping[str, Any], column: str, where: str) -> list[Any]:
    value = row.get(column)
    if not isinstance(value, list):
        found = "is missing" if value is None else f"holds {str(value)[:40]!r} ({type(value).__name__})"
        raise ValueError(f"{where}: column {column!r} {found}, where a list was expected")
    return value


def _label(value: object, names: Sequence[str] | None, where: str) -> str | None:
    """The name of the class, None where there is none: null, NaN, blank, or the number -1."""
    if isinstance(value, str):
        return value.strip() or None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None or value != value or value == -1:
        return None
    if not isinstance(value, int):
        raise ValueError(f"{where} has the label {str(value)[:40]}: a name or a whole number was expected")
    if names is None:
        return str(value)
    if not 0 <= value < len(names):
        raise ValueError(f"{where} has the label {value}, but there are {len(names)} classes, numbered from 0")
    return names[value]


def labels_of(example: Example) -> list[str | None]:
    return example["labels"] if "labels" in example else [example["label"]]


def check_labelled(split: str, examples: Sequence[Example]) -> None:
    """Raises ValueError that names the first row without a label; a test split without any label is fine."""
    lacking = next((example for example in examples if None in labels_of(example)), None)
    if lacking is None:
        return
    word = f" for word {lacking['labels'].index(None) + 1}" if "labels" in lacking else ""
    found = f"{lacking['row']} has no label{word} (it is missing, empty or -1)"
    if split != "test":
        raise ValueError(f"{found}: every row of the {split} split needs one")
    if any(label is not None for example in examples for label in labels_of(example)):
        raise ValueError(f"{found}, but others of the test split have one: label all of them or none")


def cut_validation(examples: Sequence[Example], val_fraction: float) -> tuple[list[Example], list[Example]]:
    """A share of the rows for validation, in their order, the rest for training.

    Which rows depends on the digest of their number and text. A row that is the last of its class stays in training.

    Raises:
        ValueError: no row can be spared.
    """

    def key(i: int) -> bytes:
        text = examples[i].get("text") or " ".join(examples[i]["words"])
        return hashlib.sha256(f"{i} {text}".encode()).digest()

    wanted = max(1, round(len(examples) * val_fraction))
    left = Counter(label for example in examples for label in labels_of(example))
    taken: set[int] = set()
    for i in sorted(range(len(examples)), key=key):
        if len(taken) == wanted:
            break
        own = Counter(labels_of(examples[i]))
        if all(left[label] > count for label, count in own.items()):
            taken.add(i)
            left.subtract(own)
    if not taken:
        raise ValueError(
            f"no validation rows can be cut from {len(examples)} training rows, as each class has to keep one;"
            " name a validation split"
        )
    return [e for i, e in enumerate(examples) if i not in taken], [e for i, e in enumerate(examples) if i in taken]


def to_splits(examples: Mapping[str, Sequence[Example]], val_fraction: float) -> datasets.DatasetDict:
    """Checks the labels, cuts validation rows where there are none, and makes Arrow tables of strings, in memory.

    Raises:
        ValueError: a split is empty, its labels are incomplete, or validation rows cannot be cut.
    """
    import datasets

    splits = dict(examples)
    for split, rows in splits.items():
        if not rows:
            raise ValueError(f"the {split} split has no rows")
        check_labelled(split, rows)
    if "train" in splits and "validation" not in splits:
        splits["train"], splits["validation"] = cut_validation(splits["train"], val_fraction)
    string, strings = datasets.Value("string"), datasets.List(datasets.Value("string"))
    kinds = {"text": datasets.Value("large_string"), "text_pair": datasets.Value("large_string"), "label": string}
    kinds |= {"words": strings, "labels": strings, "row": string}
    made = datasets.DatasetDict()
    for split in (split for split in ("train", "validation", "test") if split in splits):
        features = datasets.Features({column: kinds[column] for column in splits[split][0]})
        columns = {column: [row[column] for row in splits[split]] for column in features}
        made[split] = datasets.Dataset.from_dict(columns, features=features)
    return made
