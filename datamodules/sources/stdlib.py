"""The Python language reference that ships with every Python: text with no dependency at all."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import TextSource, cut_documents, digest, to_dataset_dict

if TYPE_CHECKING:
    import datasets

CLEANING = 1  # raise it with every change of the cleaning below
MIN_PARAGRAPH = 60  # characters

RULE = re.compile(r"[\s*=~^\-\"+|.]+")  # the underline of a heading, the frame of a table
QUOTED = re.compile(r'"([^"]{1,60})"')  # how pydoc marks code


@final
class StdlibDocs(TextSource):
    """The prose of pydoc's topics (`help("TOPICS")`), one topic a row, columns `title` and `text`; no code or grammar.

    Paragraphs are joined by a blank line; whole topics in each split, about 80/10/10 %. The text is that of the running
    Python's version.
    """

    def load(self) -> datasets.DatasetDict:
        topics_file()
        from pydoc_data.topics import topics

        # A few topics repeat a whole section of another: text that is already there would stand in two splits.
        rows, seen = [], set()
        for title, text in sorted(topics.items()):
            new = [p for p in dict.fromkeys(paragraphs(text)) if p not in seen]
            seen.update(new)
            if new:
                rows.append({"title": title, "text": "\n\n".join(new)})
        return to_dataset_dict(cut_documents(rows, key="title"), ("title", "text"))

    def fingerprint(self) -> str:
        return digest("stdlib", CLEANING, topics_file())

    def describe(self) -> str:
        return "the topics of Python's own documentation"


def topics_file() -> Path:
    """Where pydoc's topics are; FileNotFoundError on a Python built without them."""
    try:
        spec = importlib.util.find_spec("pydoc_data.topics")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.origin:
        raise FileNotFoundError("this Python lacks pydoc_data.topics: install its standard library completely")
    return Path(spec.origin)


def paragraphs(topic: str) -> Iterator[str]:
    """Prose on one line each, marks removed."""
    for block in re.split(r"\n\s*\n", topic):
        lines = block.split("\n")
        if not block.strip() or RULE.fullmatch(lines[-1]) or all(line.startswith("   ") for line in lines):
            continue  # headings, code, grammar
        text = QUOTED.sub(r"\1", " ".join(block.split())).replace("**", "")
        if len(text) >= MIN_PARAGRAPH and text[-1] in ".:!?)" and "::=" not in text and ">>>" not in text:
            yield text
