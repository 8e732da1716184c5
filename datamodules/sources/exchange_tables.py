"""Prompts with responses, and preferences, from your own tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from datamodules.sources.base import PreferenceSource, ResponseSource, digest
from datamodules.sources.exchanges import READING, preference_in, response_in, to_exchange_splits
from datamodules.sources.labelled_files import LabelledFiles, Paths
from datamodules.sources.labels import Row
from datamodules.sources.tables import rows_with

if TYPE_CHECKING:
    import datasets


class _Tables(LabelledFiles):
    made: ClassVar[Any]  # response_in or preference_in, as a staticmethod

    def rows(self, path: Path) -> list[Row]:
        return rows_with(path, self.columns.values())

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: a table is not there.
            ValueError: a table is empty or broken, lacks a column, or a row lacks a part.
        """
        make = type(self).made
        splits = {
            split: [make(where, row, self.columns) for path in paths for where, row in self.rows(path)]
            for split, paths in self.files().items()
        }
        return to_exchange_splits(splits, self.val_fraction)

    def fingerprint(self) -> str:
        return digest("exchanges", READING, super().fingerprint())


@final
class ResponseTable(_Tables, ResponseSource):
    """Prompts and responses in named columns, or as lists of messages; columns `prompt`, `response`, `row`.

    Args:
        train: a file, a list of files or a glob; formats by suffix as in `read_rows`.
        validation: likewise; without it val_fraction of the prompts, chosen by their digest.
        test: likewise.
        prompt, response: their columns.
        context: a column that is put below the prompt where it is not empty.
        messages: instead of them, the column of a list of {role, content}, whose last one is the response.
        val_fraction: share of the prompts.
    """

    made = staticmethod(response_in)

    def __init__(
        self, train: str | list[str], validation: str | list[str] | None = None, test: str | list[str] | None = None,
        prompt: str = "prompt", response: str = "response", context: str | None = None, messages: str | None = None,
        val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        paths: dict[str, Paths] = {"train": train, "validation": validation, "test": test}
        columns: dict[str, str | None] = {"prompt": prompt, "response": response, "context": context}
        columns = columns if messages is None else {"messages": messages}
        super().__init__(paths, columns, next(iter(columns)), val_fraction)


@final
class PreferenceTable(_Tables, PreferenceSource):
    """Two responses to a prompt, as texts or as lists of messages; columns `prompt`, `chosen`, `rejected`, `row`.

    Args:
        train: a file, a list of files or a glob; formats by suffix as in `read_rows`.
        validation: likewise; without it val_fraction of the prompts, chosen by their digest.
        test: likewise.
        prompt: its column; null where the prompt is part of both responses, as in Anthropic/hh-rlhf.
        chosen, rejected: their columns.
        val_fraction: share of the prompts.
    """

    made = staticmethod(preference_in)

    def __init__(
        self, train: str | list[str], validation: str | list[str] | None = None, test: str | list[str] | None = None,
        prompt: str | None = "prompt", chosen: str = "chosen", rejected: str = "rejected", val_fraction: float = 0.1,
    ) -> None:  # fmt: skip
        paths: dict[str, Paths] = {"train": train, "validation": validation, "test": test}
        super().__init__(paths, {"prompt": prompt, "chosen": chosen, "rejected": rejected}, "chosen", val_fraction)
