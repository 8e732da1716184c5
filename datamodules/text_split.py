"""Documents into sentences, by rule: no model, no download."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

WORD = re.compile(r"[^\s。！？]*+[。！？]+[」』”’）]*|\S+")  # those full stops need no space after them
MARKS = tuple(".!?…。！？।۔؟")
OPENING, CLOSING = "\"'“‘«„([{¿¡「『（", "\"'”’»)]}」』）"

# After these a name, a number or the rest of the sentence follows; none of them ends one.
LEADING = re.compile(
    r"Mrs?|Ms|Drs?|Prof|Rev|Fr|Sr|Ste?|Mt|Ft|Messrs|Mme|Mlle|Hon|Pres|Gov|Sen|Rep|Gen|Brig|Col|Maj|Capt|Cpt|Lt|Sgt|Cmdr|Cdr"
    r"|Adm|Supt|Dept|Univ|e\.g|i\.e|[Cc]f|vs|viz|approx|ca|esp|incl|pp|eds|vols|trans|resp"
)
BEFORE_NUMBERS = re.compile(
    r"[Nn]os?|[Ff]igs?|[Vv]ol|[Cc]h|[Ss]ec|[Aa]rt|[Ee]q|ed|p|v|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
)
# After these, and after initials, a sentence ends where the next word is one that begins sentences and no name.
TRAILING = re.compile(r"etc|al|Jr|Inc|Ltd|Co|Corp|Bros|Ph\.D|Blvd|Ave|[Ee]st|(?:[^\W\d_]\.-?)*[^\W\d_]")  # U.S  a.m  J.-P
STARTERS = re.compile(
    r"(?:The|In|It|He|She|They|We|You|This|These|That|Those|There|Here|His|Her|Its|Their|Our|My|An|At|On|As|By|For|From"
    r"|If|When|While|After|Before|Although|Though|Because|Since|During|However|But|And|So|Then|Thus|Therefore|With|What|Who"
    r"|Where|Why|How|Some|Many|Most|Both|All|Another|Other|Such|Until|Under|To|Also|Not|One|Two|Later)\b"
)


def split_sentences(text: str) -> list[str]:
    """The sentences of a document, in order; white space between them is dropped, and nothing else.

    Each line is a paragraph: no sentence goes past its end. Within it a sentence ends with . ! ? or their like in other
    scripts, and the quotes and brackets that close there, where white space follows and then a word that does not begin in
    lower case. A full stop after an initial or an abbreviation ends none, unless it is one that may and a word like "The"
    follows ("in the U.S. The").

    What a list of words cannot know goes wrong: '"Stop!" Anna cried.' becomes two.
    """
    return [sentence for line in text.splitlines() for sentence in _split(line)]


def _split(paragraph: str) -> Iterator[str]:
    words = list(WORD.finditer(paragraph))
    if not words:
        return
    start = words[0].start()
    for word, following in pairwise(words):
        if _is_end(word[0], following[0], first=word.start() == start):
            yield paragraph[start : word.end()]
            start = following.start()
    yield paragraph[start : words[-1].end()]


def _is_end(word: str, following: str, first: bool) -> bool:
    """Whether a sentence ends between two words; `first` if it would have the one word only."""
    bare, following = word.rstrip(CLOSING), following.lstrip(OPENING)
    if not bare.endswith(MARKS) or not following[:1].isalnum() or following[0].islower():
        return False
    stem = bare[:-1].lstrip(OPENING)
    if bare[-1] != ".":
        return True
    if LEADING.fullmatch(stem) or (first and stem.isdigit()):  # "1. Introduction"
        return False
    if following[0].isdigit() and BEFORE_NUMBERS.fullmatch(stem):
        return False
    return STARTERS.match(following) is not None if TRAILING.fullmatch(stem) else True
