"""Class names and their numbers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from datamodules.batch import IGNORE_INDEX
from datamodules.sources.base import ImageSource, SentenceSource, WordSource

Row = Mapping[str, Any]


def choose_classes(
    source: SentenceSource | WordSource | ImageSource, names: Collection[str] | None, known: list[str] | None
) -> list[str]:
    """The classes in the order of their numbers: the source's own order, else sorted.

    Args:
        source: after its `load`.
        names: those of the train split; None without one.
        known: those of a trained model, for a source that has neither an order nor a train split.

    Raises:
        ValueError: none are known, or only one.
    """
    classes = source.classes()
    if classes is None and names is not None:
        classes = in_order(names)
    if classes is None and known is None:
        raise ValueError(f"{source.describe()} has no train split, so that its classes are not known")
    if classes is not None and len(classes) < 2:
        raise ValueError(f"{source.describe()}: all labels are {classes[0]!r}, where two classes or more are needed")
    return classes or known or []


class Labels:
    """Class names to numbers, for rows of `split`."""

    def __init__(self, classes: list[str]) -> None:
        self.classes, self.split = classes, ""
        self._numbers: dict[str | None, int] = {None: IGNORE_INDEX, **{name: i for i, name in enumerate(classes)}}

    def __call__(self, name: str | None, row: Row, number: int) -> int:
        """
        Raises:
            ValueError: there is no such class, with the row.
        """
        if name not in self._numbers:
            where = row.get("row") or f"{self.split}, row {number + 1}"
            shown = ", ".join(self.classes[:20]) + (", ..." if len(self.classes) > 20 else "")
            raise ValueError(f"{where}: the label {name!r} is none of the classes {shown}")
        return self._numbers[name]


def in_order(names: Iterable[str]) -> list[str]:
    """Sorted; by their value where all are whole numbers."""
    names = set(names)
    if all(name.removeprefix("-").isdecimal() for name in names):
        return sorted(names, key=lambda name: (int(name), name))
    return sorted(names)


def named(columns: Mapping[str, Sequence[Any]], classes: Sequence[str]) -> dict[str, list[Any]]:
    """The columns prediction, probability and, where labels are known, label of a table, with classes by name."""
    names = {IGNORE_INDEX: None, **dict(enumerate(classes))}
    table = {"prediction": [names[i] for i in columns["prediction"]], "probability": list(columns["probability"])}
    if any(i != IGNORE_INDEX for i in columns["label"]):
        table["label"] = [names[i] for i in columns["label"]]
    return table
