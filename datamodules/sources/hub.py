"""Text from a data set on the Hugging Face hub, or from a folder of Parquet, JSON lines, CSV or text files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import TextSource, check_fraction, digest

if TYPE_CHECKING:
    import datasets

CLEANING = 1  # raise it when the choice of rows below changes
VALIDATION = ("validation", "valid", "val", "dev")  # what data sets call it


@final
class HubText(TextSource):
    """Column `column` of a data set, one row a document; rows that are blank or null are left out.

    Validation is the set's own split of that name, or else the last val_fraction of the training rows: neighbouring rows are
    often one text, so they are not shuffled apart. Name the set's commit as `revision`: without it the version that is
    downloaded first is kept. Data sets that need a loading script do not load (`datasets` 4 and later run none).
    """

    def __init__(
        self,
        name: str,
        config: str | None = None,
        column: str = "text",
        val_fraction: float = 0.1,
        revision: str | None = None,
    ) -> None:
        check_fraction("val_fraction", val_fraction)
        self.name, self.config, self.column = name, config, column
        self.val_fraction, self.revision = val_fraction, revision

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: there is no such data set, or the hub cannot be reached.
            ValueError: it does not load, or lacks the column, a training split or text.
        """
        import datasets

        loaded = download(self.name, self.config, self.revision)
        if "train" not in loaded:
            raise ValueError(f"{self.describe()} has no split train, only {', '.join(loaded)}")
        splits = {"train": self._texts(loaded["train"], "train")}
        if own := next((name for name in VALIDATION if name in loaded), None):
            splits["validation"] = self._texts(loaded[own], own)
        else:
            rows = splits["train"]
            border = len(rows) - max(1, round(len(rows) * self.val_fraction))
            if border < 1:
                raise ValueError(f"{self.describe()} has one row of text: no validation rows can be cut from it")
            splits["train"] = rows.select(range(border))
            splits["validation"] = rows.select(range(border, len(rows)))
        if "test" in loaded:
            splits["test"] = self._texts(loaded["test"], "test")
        return datasets.DatasetDict(splits)

    def fingerprint(self) -> str:
        options = (self.name, self.config, self.column, self.val_fraction, self.revision)
        return digest("hub", CLEANING, *options, *local_contents(self.name))

    def describe(self) -> str:
        return title(self.name, self.config)

    def _texts(self, rows: datasets.Dataset, split: str) -> datasets.Dataset:
        if self.column not in rows.column_names:
            columns = ", ".join(rows.column_names)
            raise ValueError(f"{self.describe()} has no column {self.column!r}: its columns are {columns}")
        dtype = getattr(rows.features[self.column], "dtype", "no plain type")
        if dtype not in ("string", "large_string"):
            raise ValueError(f"column {self.column!r} of {self.describe()} holds {dtype}, where string was expected")
        rows = rows.select_columns([self.column])
        if self.column != "text":  # renaming a column to its own name is an error
            rows = rows.rename_column(self.column, "text")
        kept = [i for i, text in enumerate(rows["text"]) if text and not text.isspace()]
        if not kept:
            raise ValueError(f"column {self.column!r} of {self.describe()} is empty in split {split}: text was expected")
        return rows if len(kept) == len(rows) else rows.select(kept)


def title(name: str, config: str | None) -> str:
    return f"the data set {name}" + (f" ({config})" if config else "")


def download(name: str, config: str | None, revision: str | None) -> datasets.DatasetDict:
    """All splits of a data set on the hub, or in a local folder.

    Raises:
        FileNotFoundError: there is no such data set, or the hub cannot be reached.
        ValueError: it does not load.
    """
    import datasets

    try:
        return datasets.load_dataset(name, config, revision=revision)
    except (FileNotFoundError, ConnectionError) as error:  # DatasetNotFoundError is a FileNotFoundError
        hint = "name a set on the hub, or a local folder of Parquet, JSON lines, CSV or text files"
        raise FileNotFoundError(f"{title(name, config)} cannot be found or reached: {first_line(error)}; {hint}") from None
    except Exception as error:  # each file format has errors of its own
        raise ValueError(f"{title(name, config)} does not load: {first_line(error)}") from None


def local_contents(name: str) -> list[object]:
    """Where a data set is a local folder, the names and bytes of its files, for `digest`."""
    folder = Path(name)
    files = sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []
    return [part for path in files for part in (str(path.relative_to(folder)), path)]


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
