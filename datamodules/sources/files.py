"""Your own text files: one document a file."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import (
    TextSource,
    check_fraction,
    check_text,
    cut_characters,
    digest,
    readable,
    to_dataset_dict,
)

if TYPE_CHECKING:
    import datasets

READING = 1  # raise it when `read` changes


@final
class TextFiles(TextSource):
    """UTF-8 text files; `paths` are files, folders (every *.txt below them) or globs such as `books/**/*.md`.

    Without `val_paths` the first int(n * (1 - val_fraction)) characters of all files in sorted order are for training and
    the rest for validation; the file on the border is cut in two. A file too short to be cut is kept: the datamodule, which
    knows the length it needs, refuses it.
    """

    def __init__(
        self,
        paths: str | list[str],
        val_paths: str | list[str] | None = None,
        test_paths: str | list[str] | None = None,
        val_fraction: float = 0.1,
    ) -> None:
        check_fraction("val_fraction", val_fraction)
        self.val_fraction = val_fraction
        given = {"train": paths, "validation": val_paths, "test": test_paths}
        self.paths = {split: [p] if isinstance(p, str) else list(p) for split, p in given.items() if p is not None}

    def files(self) -> dict[str, list[Path]]:
        """The files of each split.

        Raises:
            FileNotFoundError: a path does not exist, or a glob or folder holds no text file.
            ValueError: a file is in two splits.
        """
        files = {split: find_files(paths) for split, paths in self.paths.items()}
        refuse_shared(files)
        return files

    def load(self) -> datasets.DatasetDict:
        texts = {split: [read(path) for path in paths] for split, paths in self.files().items()}
        if "validation" not in texts:
            texts["train"], texts["validation"] = cut_characters(texts["train"], self.val_fraction)
        order = [split for split in ("train", "validation", "test") if split in texts]
        return to_dataset_dict({split: [{"text": text} for text in texts[split]] for split in order}, ("text",))

    def fingerprint(self) -> str:
        files = self.files()
        fraction = None if "validation" in files else self.val_fraction
        return digest("files", READING, fraction, *(part for split, paths in files.items() for part in (split, *paths)))

    def describe(self) -> str:
        names = [path for paths in self.paths.values() for path in paths]
        return "text of " + ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def refuse_shared(files: Mapping[str, Sequence[Path]]) -> None:
    """Raises ValueError where a file is in two splits."""
    seen: dict[Path, str] = {}
    for split, paths in files.items():
        for path in paths:
            if (other := seen.setdefault(path.resolve(), split)) != split:
                raise ValueError(f"{path} is in both {other} and {split}: list it in one of them")


def find_files(paths: Sequence[str]) -> list[Path]:
    """The files that files, folders and globs name: sorted by path, each once."""
    if not paths:
        raise ValueError("paths is empty: a text file, a folder of *.txt files or a glob was expected")
    found: dict[Path, Path] = {}
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            matches = [p for p in path.rglob("*.txt") if p.is_file()]
            problem = f"the folder {name} holds no *.txt file"
        elif path.exists():  # before globbing: a file's name may hold brackets
            matches, problem = [path], ""
        elif glob.has_magic(name):
            matches = [Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()]
            problem = f"no file matches {name}"
        else:
            matches, problem = [], f"{name} does not exist: a text file, a folder of *.txt files or a glob was expected"
        if not matches:
            raise FileNotFoundError(problem)
        for match in matches:
            found.setdefault(match.resolve(), match)
    return sorted(found.values())


def read(path: Path) -> str:
    """The text of one file, without a byte order mark, with line ends LF.

    Raises:
        ValueError: the file is empty, or not UTF-8 (with the offset of the first bad byte).
    """
    with readable(path):
        content = path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 at byte {error.start} (0x{content[error.start]:02x}): "
            f"convert it, e.g. with iconv -f latin1 -t utf-8"
        ) from None
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    check_text(text, str(path))
    return text
