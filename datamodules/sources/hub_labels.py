"""Labelled sentences and words from a data set on the Hugging Face hub, or from a local folder of such files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, final

from datamodules.sources.base import SentenceSource, Source, WordSource, check_fraction, digest
from datamodules.sources.hub import VALIDATION, download, local_contents, title
from datamodules.sources.labels import CHECKS, Example, check_columns, nearest, sentence, tagged, to_splits

if TYPE_CHECKING:
    import datasets


class HubLabels(Source):
    """The splits of a data set: train, validation (or val_fraction of train, chosen by digest) and test, as far as it has them.

    Args:
        name, config, revision: as in `HubText`.
        columns: the column that holds each part of an example.
        labels: the part that is the label; where its column is None, only the test split is read.
        validation, test: which splits to use, where they are not called so.
        val_fraction: share of the training rows.

    Raises:
        ValueError: val_fraction is out of range, or validation is named for rows without labels.
    """

    example: ClassVar[Callable[..., Example]]  # `sentence` or `tagged`

    def __init__(
        self, name: str, config: str | None, columns: Mapping[str, str | None], labels: str,
        validation: str | None, test: str | None, val_fraction: float, revision: str | None,
    ) -> None:  # fmt: skip
        check_fraction("val_fraction", val_fraction)
        self.name, self.config, self.columns, self.labels = name, config, dict(columns), labels
        self.validation, self.test, self.val_fraction, self.revision = validation, test, val_fraction, revision
        if not self._labelled and validation is not None:
            raise ValueError(f"{labels} is null: without labels there can be a test split only, not validation")
        self._classes: list[str] | None = None

    @property
    def _labelled(self) -> bool:
        return self.columns[self.labels] is not None

    def load(self) -> datasets.DatasetDict:
        loaded = download(self.name, self.config, self.revision)
        chosen = choose_splits(self.describe(), list(loaded), self.validation, self.test, self._labelled)
        try:
            examples = {split: self._examples(loaded[own], own) for split, own in chosen.items()}
            return to_splits(examples, self.val_fraction)
        except ValueError as error:
            raise ValueError(f"{self.describe()}: {error}") from None

    def classes(self) -> list[str] | None:
        """The names of a numbered column (`datasets.ClassLabel`), in their order; None of any other, and before `load`."""
        return self._classes

    def fingerprint(self) -> str:
        options = (type(self).__name__, self.name, self.config, self.columns, self.validation, self.test)
        return digest("hub", CHECKS, *options, self.val_fraction, self.revision, *local_contents(self.name))

    def describe(self) -> str:
        return title(self.name, self.config)

    def _examples(self, rows: datasets.Dataset, split: str) -> list[Example]:
        check_columns(f"split {split}", rows.column_names, self.columns.values())
        names = class_names(rows.features[label]) if (label := self.columns[self.labels]) is not None else None
        self._classes = self._classes or names
        make = type(self).example
        wanted = [column for column in self.columns.values() if column is not None]
        cells = zip(*(rows[column][:] for column in wanted), strict=True)
        table = (dict(zip(wanted, row, strict=True)) for row in cells)
        return [make(f"{split}, row {i}", row, self.columns, names) for i, row in enumerate(table, 1)]


@final
class HubSentences(HubLabels, SentenceSource):
    """Sentences or sentence pairs and their classes; columns `text`, `text_pair`, `label`, `row` ("train, row 12").

    For example nyu-mll/glue: sst2 (text: sentence), mrpc (text: sentence1, text_pair: sentence2), mnli (text: premise,
    text_pair: hypothesis, validation: validation_matched, test: test_matched). Data sets that need a loading script do not
    load. A label of -1 is none, as all of a test split may be.

    Args:
        name: a data set on the hub, or a local folder.
        config: which part of the data set.
        text: the column of the sentence.
        text_pair: the column of the second sentence, in pairs.
        label: the column of the class, numbers or strings; null for rows without labels: then only the test split is read.
        validation: the split to use, where it is not called validation, valid, val or dev; without one, val_fraction of train.
        test: the split to use, where it is not called test.
        val_fraction: share of the training rows.
        revision: the data set's commit; without it the version that is downloaded first is kept.
    """

    example = staticmethod(sentence)

    def __init__(
        self, name: str, config: str | None = None, text: str = "text", text_pair: str | None = None,
        label: str | None = "label", validation: str | None = None, test: str | None = None, val_fraction: float = 0.1,
        revision: str | None = None,
    ) -> None:  # fmt: skip
        columns = {"text": text, "text_pair": text_pair, "label": label}
        super().__init__(name, config, columns, "label", validation, test, val_fraction, revision)


@final
class HubWords(HubLabels, WordSource):
    """Sentences as lists of words and of labels; columns `words`, `labels`, `row` ("train, row 12").

    Args:
        words: the column of the words.
        labels: the column of their labels, numbers or strings; null for words without labels: then only the test split is read.
        name, config, validation, test, val_fraction, revision: as in `HubSentences`.
    """

    example = staticmethod(tagged)

    def __init__(
        self, name: str, config: str | None = None, words: str = "tokens", labels: str | None = "ner_tags",
        validation: str | None = None, test: str | None = None, val_fraction: float = 0.1, revision: str | None = None,
    ) -> None:  # fmt: skip
        columns = {"words": words, "labels": labels}
        super().__init__(name, config, columns, "labels", validation, test, val_fraction, revision)


def choose_splits(
    owner: str, present: Sequence[str], validation: str | None, test: str | None, labelled: bool = True
) -> dict[str, str]:
    """The data set's own name of each split that is there.

    Raises:
        ValueError: a named split is not there, is named for two, or there is none to use.
    """
    for option, name in (("validation", validation), ("test", test)):
        if name is not None and name not in present:
            listed = ", ".join(present)
            raise ValueError(f"{owner} has no split {name!r} for {option}: its splits are {listed}{nearest(name, present)}")
    if not labelled:
        chosen = {"test": test or "test"}
    else:
        found = next((name for name in VALIDATION if name in present and name != test), None)
        chosen = {"train": "train", "validation": validation or found or "", "test": test or "test"}
        if chosen["test"] == chosen["validation"] and test is None:
            del chosen["test"]  # the test split serves as validation
    chosen = {split: name for split, name in chosen.items() if name in present}
    names = list(chosen.values())
    if twice := next((name for name in names if names.count(name) > 1), None):
        both = " and ".join(split for split, name in chosen.items() if name == twice)
        raise ValueError(f"{owner}: split {twice!r} cannot be both {both}")
    if not chosen:
        wanted = "train, validation or test" if labelled else "test"
        raise ValueError(f"{owner} has no split {wanted}, only {', '.join(present)}")
    return chosen


def class_names(feature: object) -> list[str] | None:
    """The names of a ClassLabel, or of a list of them; None of anything else."""
    import datasets

    feature = getattr(feature, "feature", feature)
    return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None
