"""Punctuation and capitals to put back into Wikipedia's text: a label for each word that the text itself gives."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, final

from datamodules.sources.base import WordSource, digest
from datamodules.sources.labels import Example, to_splits
from datamodules.sources.wikipedia import Wikipedia
from datamodules.text_split import split_sentences

if TYPE_CHECKING:
    import datasets

CLEANING = 1  # raise it with every change of the rules below, or of what a sentence is
MIN_WORDS = 3
CASES = ("lower", "title", "upper")
MARKS = {"": "none", ",": "comma", ".": "period"}  # and `other`

# A word, with the apostrophes and hyphens inside; a number, with its points and commas; or one mark.
TOKEN = re.compile(r"\w+(?:(?:['’-]|(?<=\d)[.,](?=\d))\w+)*|[^\w\s]")


@final
class WikipediaRestoration(WordSource):
    """Sentences of `Wikipedia` as lower-case words without punctuation; columns `words` and `labels`, splits by whole article.

    A label is the word's case and what follows it, such as title+comma. upper: two letters or more, all of them capitals;
    title: it begins with a capital. The mark is the first one before the next word: comma, period, other, or none.
    Sentences of fewer than 3 words are left out.
    """

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: the articles are not installed.
        """
        examples = {
            split: [stripped(sentence) for article in articles["text"] for sentence in split_sentences(article)]
            for split, articles in Wikipedia().load().items()
        }
        kept = {split: [row for row in rows if len(row["words"]) >= MIN_WORDS] for split, rows in examples.items()}
        return to_splits(kept, val_fraction=0)

    def classes(self) -> list[str]:
        return ["+".join(both) for both in product(CASES, (*MARKS.values(), "other"))]

    def fingerprint(self) -> str:
        return digest("restoration", CLEANING, Wikipedia().fingerprint())

    def describe(self) -> str:
        return "the sentences of the Wikipedia articles of the gensim package"


def stripped(sentence: str) -> Example:
    """Its `words` and their `labels`; marks before the first word are of no label."""
    words: list[str] = []
    marks: list[str] = []
    for token in TOKEN.findall(sentence):
        if re.match(r"\w", token):
            words.append(token)
            marks.append("")
        elif marks:
            marks[-1] = marks[-1] or token
    labels = [f"{_case(word)}+{MARKS.get(mark, 'other')}" for word, mark in zip(words, marks, strict=True)]
    return {"words": [word.lower() for word in words], "labels": labels}


def _case(word: str) -> str:
    stem = re.split("['’]", word)[0]  # NASA's
    if stem.isupper() and sum(map(str.isalpha, stem)) > 1:
        return "upper"
    return "title" if word[0].isupper() else "lower"
