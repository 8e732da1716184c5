import random
import time

import pytest

from datamodules.sources.wikipedia import Wikipedia
from datamodules.text_split import split_sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["One.", "Two!", "Three?", "Four...", "Five…", "Six?!", "Seven"],
        ["It ended in 1912.", "In 1913 it began again.", "3D animation followed.", "1 John 4 says so."],
        ['He said "stop."', "(It was late.)", "'Why?'", "“Well.”", "[Nobody knows.]", '"Go!"', "They went."],
        ["He wrote to J. R. R. Tolkien and J.-P. Sartre.", "They answered."],
        ["Dr. Watson met Mr. and Mrs. Smith at St. Mary's, i.e. Gen. Grant's church, cf. Capt. Howe.", "Prof. Jevons left."],
        ["Birds (e.g. Turdus) sing, Apes vs. Men do not.", "See Smith et al. Nature has it."],
        [
            "The U.S. Army met at 9 a.m. EDT in Washington D.C. Tuesday.",
            "He left the U.S.",
            "The war began at 5 p.m.",
            "It rained.",
        ],
        ["Ranked No. 1 (Fig. 2, pp. 3-4, vol. 5, c. 1900, ca. 1910) on Jan. 5, it won.", "He said no.", "Nobody won."],
        ["Acme Inc. Ltd and Co. Smith grew.", "So did Jr. Kennedy, etc. all of them."],
        ["1. Introduction to it all.", "A version 2.0 of e.g.this costs $1.50.", "Yes."],
        ["version 2.0.", "He is here. and small letters do not begin one! nor here? nor ... here.", "But a capital does."],
        ["Ещё раз.", "Да.", "क्या है।", "हाँ।", "لماذا؟", "نعم.", "日本語です。", "はい！", "「そうですか？」", "ええ。"],
        ["Yes. — No one. - not a word. * nor a star."],
    ],
)
def test_sentences(sentences):
    assert split_sentences(" ".join(sentences)) == sentences
    assert split_sentences("\n".join(sentences)) == sentences
    assert split_sentences("  " + " \t\u00a0 ".join(sentences) + "\n\n") == sentences


def test_no_space_is_needed_after_an_ideographic_full_stop():
    assert split_sentences("これは本です。あれは何？「ペンです。」そう！！はい") == [
        "これは本です。",
        "あれは何？",
        "「ペンです。」",
        "そう！！",
        "はい",
    ]


@pytest.mark.parametrize("gap", ["\n", "\n\n", "\r\n", "\n \t\n", "\u2028", "\f"])
def test_no_sentence_goes_past_the_end_of_a_line(gap):
    assert split_sentences(f"a heading{gap}some text with{gap}no end") == ["a heading", "some text with", "no end"]


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\t\u00a0\r\n \u3000"])
def test_no_sentence(text):
    assert split_sentences(text) == []


def test_no_text_is_lost():
    rng = random.Random(0)
    pieces = [
        "A",
        "b",
        "U.S.",
        "Dr.",
        "7",
        "The",
        " ",
        " ",
        "\n",
        "\x1c",
        "\u2028",
        ".",
        "...",
        "!",
        "?",
        "。",
        "」",
        '"',
        "(",
        ")",
        "é",
        "😀",
    ]
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randrange(30)))
        sentences = split_sentences(text)
        assert "".join("".join(sentences).split()) == "".join(text.split()), repr(text)
        assert all(s and s == s.strip() and len(s.splitlines()) == 1 and s in text for s in sentences), repr(text)


@pytest.mark.parametrize("text", ["." * 300_000, "。" * 300_000, "a." * 150_000, "x" * 300_000, ". " * 150_000, '")' * 150_000])
def test_time_grows_with_the_length_only(text):
    start = time.process_time()
    split_sentences(text)
    assert time.process_time() - start < 3


def test_wikipedia():
    sentences = [s for rows in Wikipedia().load().values() for text in rows["text"] for s in split_sentences(text)]
    assert 16_500 < len(sentences) < 17_500
    assert sum(len(s.split()) < 3 for s in sentences) < 15
    assert sum(s[0].islower() for s in sentences) < 30  # where an article begins with a formula
    inside = [a for s in sentences for a in ("U.S. Air Force", "Dr. Muhammad", "Ulysses S. Grant", "world no. 1 ") if a in s]
    assert len(set(inside)) == 4
    assert "Alaska has few road connections compared to the rest of the U.S." in sentences
