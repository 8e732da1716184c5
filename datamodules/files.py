"""Files that are there whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: Path, content: str | Callable[[BinaryIO], object]) -> None:
    """Writes a file beside `path`, then puts it in place: a reader sees the old file or the whole new one.

    Args:
        path: the file; its folder is made where it is missing.
        content: a text (UTF-8), or what fills the open file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            if isinstance(content, str):
                file.write(content.encode())
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
