"""English Wikipedia articles that ship inside the gensim wheel: real prose without a download."""

from __future__ import annotations

import bz2
import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, final

from datamodules.sources.base import TextSource, cut_documents, digest, to_dataset_dict
from datamodules.sources.packages import installed_file

if TYPE_CHECKING:
    import datasets

DUMP = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
CLEANING = 1  # raise it with every change of the cleaning below: cached tokens of the old text are then not reused

# An article ends where its apparatus begins.
APPARATUS = {
    *("references", "notes and references", "notes", "footnotes", "citations", "sources", "bibliography"),
    *("external links", "see also", "further reading", "publications", "gallery"),
}
MIN_PARAGRAPH = 80  # characters; shorter lines are captions and leftovers of templates
MIN_PARAGRAPHS = 3

COMMENT = re.compile(r"<!--.*?-->", re.S)
NOT_PROSE = re.compile(
    r"<ref[^>]*/>|<ref.*?</ref>"
    r"|<(math|gallery|timeline|code|pre|source|syntaxhighlight|table|div|imagemap)\b.*?</\1>",
    re.S | re.I,
)
TAG = re.compile(r"<[^>]+>")
MEDIA = re.compile(r"\[\[(?:File|Image|Category|[a-z]{2,3}(?:-[a-z]+)?):[^\[\]]*(?:\[\[[^\[\]]*\]\][^\[\]]*)*\]\]", re.I)
LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
LABELLED_URL = re.compile(r"\[https?://\S+\s+([^\]]*)\]")
URL = re.compile(r"\[https?://\S+\]|https?://\S+")
QUOTES = re.compile(r"'{2,3}")  # bold and italic marks, not the one apostrophe of a possessive
HEADING = re.compile(r"(=+)\s*(.*?)\s*\1\s*")
EMPTY_BRACKETS = re.compile(r"\s*\(\s*[;,]?\s*\)")  # what a removed template leaves behind


@final
class Wikipedia(TextSource):
    """95 full articles (A to Az), cleaned to paragraphs of prose; columns `title` and `text`.

    Paragraphs are joined by a blank line. 2.4 million characters; whole articles in each split, about 80/10/10 %.

    Source: gensim 4.4.0, test/test_data, a shortened dump of English Wikipedia (CC BY-SA 3.0).
    """

    def load(self) -> datasets.DatasetDict:
        rows = [{"title": title, "text": "\n\n".join(text)} for title, text in articles(dump())]
        return to_dataset_dict(cut_documents(rows, key="title"), ("title", "text"))

    def fingerprint(self) -> str:
        return digest("wikipedia", CLEANING, dump())

    def describe(self) -> str:
        return "the Wikipedia articles of the gensim package"


def dump() -> Path:
    """The bz2 file inside the installed gensim package; raises FileNotFoundError where it is not installed."""
    return installed_file("gensim", DUMP, "the Wikipedia articles")


def articles(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Title and paragraphs of each article, in the order of the dump."""
    with bz2.open(path) as file:
        for _, page in ET.iterparse(file):
            if not page.tag.endswith("}page"):
                continue
            if page.findtext("{*}ns") == "0" and page.find("{*}redirect") is None:
                text = list(paragraphs(page.findtext("{*}revision/{*}text") or ""))
                if len(text) >= MIN_PARAGRAPHS:
                    yield page.findtext("{*}title") or "", text
            page.clear()


def paragraphs(wikitext: str) -> Iterator[str]:
    """The prose of one article: no markup, headings, lists, tables, references."""
    text = NOT_PROSE.sub("", COMMENT.sub("", html.unescape(wikitext)))
    text = without_nested(without_nested(text, "{{", "}}"), "{|", "|}")
    text = QUOTES.sub("", TAG.sub("", without_links(text)))
    for line in text.split("\n"):
        if heading := HEADING.fullmatch(line.strip()):
            if len(heading[1]) == 2 and heading[2].lower() in APPARATUS:
                return
            continue
        line = " ".join(EMPTY_BRACKETS.sub("", " ".join(line.split())).split())  # no-break spaces become spaces too
        if len(line) >= MIN_PARAGRAPH and line[0] not in "*#:;|!{}<" and line[-1] in '.!?")':
            yield line


def without_links(text: str) -> str:
    """[[target|label]] and [url label] become their label; files, categories and bare addresses go."""
    for _ in range(4):  # a file's caption may hold links, two brackets deeper each
        text = MEDIA.sub("", text)
    return URL.sub("", LABELLED_URL.sub(r"\1", LINK.sub(r"\1", text)))


def without_nested(text: str, opening: str, closing: str) -> str:
    """The text outside of balanced spans; an unmatched closing mark stays."""
    kept, depth = [], 0
    for part in re.split(f"({re.escape(opening)}|{re.escape(closing)})", text):
        if part == opening:
            depth += 1
        elif part == closing and depth:
            depth -= 1
        elif not depth:
            kept.append(part)
    return "".join(kept)
