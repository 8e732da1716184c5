"""Prompts with responses, and preferences, from a data set on the Hugging Face hub, or a local folder of such files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, final

from datamodules.sources.base import PreferenceSource, ResponseSource, Source, check_fraction, digest
from datamodules.sources.exchanges import READING, Exchange, preference_in, response_in, to_exchange_splits
from datamodules.sources.hub import download, local_contents, title
from datamodules.sources.hub_labels import choose_splits
from datamodules.sources.labels import check_columns

if TYPE_CHECKING:
    import datasets


class _Hub(Source):
    made: ClassVar[Any]  # response_in or preference_in, as a staticmethod

    def __init__(
        self, name: str, config: str | None, columns: Mapping[str, str | None], train: str, validation: str | None,
        test: str | None, val_fraction: float, revision: str | None,
    ) -> None:  # fmt: skip
        check_fraction("val_fraction", val_fraction)
        self.name, self.config, self.columns, self.train = name, config, dict(columns), train
        self.validation, self.test, self.val_fraction, self.revision = validation, test, val_fraction, revision

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: there is no such data set, or the hub cannot be reached.
            ValueError: it does not load, lacks a column or split, or a row lacks a part.
        """
        loaded = download(self.name, self.config, self.revision)
        if self.train not in loaded:
            raise ValueError(f"{self.describe()} has no split {self.train!r} for train: its splits are {', '.join(loaded)}")
        present = ["train" if name == self.train else name for name in loaded if name == self.train or name != "train"]
        chosen = choose_splits(self.describe(), present, self.validation, self.test)
        try:
            splits = {split: self._rows(own, loaded[self.train if own == "train" else own]) for split, own in chosen.items()}
            return to_exchange_splits(splits, self.val_fraction)
        except ValueError as error:
            raise ValueError(f"{self.describe()}: {error}") from None

    def _rows(self, own: str, table: datasets.Dataset) -> list[Exchange]:
        wanted = [column for column in self.columns.values() if column is not None]
        check_columns(f"split {own}", table.column_names, wanted)
        make = type(self).made
        return [make(f"{own}, row {i}", row, self.columns) for i, row in enumerate(table.select_columns(wanted), 1)]

    def fingerprint(self) -> str:
        options = (type(self).__name__, self.name, self.config, self.columns, self.train, self.validation, self.test)
        return digest("hub exchanges", READING, *options, self.val_fraction, self.revision, *local_contents(self.name))

    def describe(self) -> str:
        return title(self.name, self.config)


@final
class HubResponses(_Hub, ResponseSource):
    """Prompts and responses; columns `prompt`, `response`, `row` ("train, row 12").

    For example tatsu-lab/alpaca (prompt: instruction, context: input, response: output).

    Args:
        name: a data set on the hub, or a local folder.
        config: which part of the data set.
        prompt, response, context, messages, val_fraction: as in ResponseTable.
        train, validation, test: the splits to use, where they are not called so.
        revision: the data set's commit; without it the version that is downloaded first is kept.
    """

    made = staticmethod(response_in)

    def __init__(
        self, name: str, config: str | None = None, prompt: str = "prompt", response: str = "response",
        context: str | None = None, messages: str | None = None, train: str = "train", validation: str | None = None,
        test: str | None = None, val_fraction: float = 0.1, revision: str | None = None,
    ) -> None:  # fmt: skip
        columns: dict[str, str | None] = {"prompt": prompt, "response": response, "context": context}
        columns = columns if messages is None else {"messages": messages}
        super().__init__(name, config, columns, train, validation, test, val_fraction, revision)


@final
class HubPreferences(_Hub, PreferenceSource):
    """Two responses to a prompt; columns `prompt`, `chosen`, `rejected`, `row` ("train, row 12").

    For example Anthropic/hh-rlhf (prompt: null), HuggingFaceH4/ultrafeedback_binarized (train: train_prefs, validation:
    test_prefs).

    Args:
        name: a data set on the hub, or a local folder.
        config: which part of the data set.
        prompt, chosen, rejected, val_fraction: as in PreferenceTable.
        train, validation, test: the splits to use, where they are not called so.
        revision: the data set's commit; without it the version that is downloaded first is kept.
    """

    made = staticmethod(preference_in)

    def __init__(
        self, name: str, config: str | None = None, prompt: str | None = "prompt", chosen: str = "chosen",
        rejected: str = "rejected", train: str = "train", validation: str | None = None, test: str | None = None,
        val_fraction: float = 0.1, revision: str | None = None,
    ) -> None:  # fmt: skip
        columns = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
        super().__init__(name, config, columns, train, validation, test, val_fraction, revision)
