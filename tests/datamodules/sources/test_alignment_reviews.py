"""Rated sentences as prompts with responses and as preferences: splits, pairs, and what they are worth."""

import pickle

import pytest

from datamodules.sources.alignment_reviews import ReviewPreferences, ReviewResponses, split_of
from pipeline.gold import vader


@pytest.fixture(scope="module")
def responses():
    return ReviewResponses().load()


@pytest.fixture(scope="module")
def preferences():
    return ReviewPreferences().load()


def test_sizes_and_columns(responses, preferences):
    assert {split: len(rows) for split, rows in responses.items()} == {"train": 8133, "validation": 1145, "test": 970}
    assert {split: len(rows) for split, rows in preferences.items()} == {"train": 6985, "validation": 1108, "test": 629}
    assert responses["train"].column_names == ["prompt", "response", "row"]
    assert preferences["train"].column_names == ["prompt", "chosen", "rejected", "margin", "row"]


def test_a_prompt_is_in_one_split_in_both_sources(responses, preferences):
    for source in (responses, preferences):
        prompts = {split: {prompt.lower() for prompt in rows["prompt"]} for split, rows in source.items()}
        for split, own in prompts.items():
            assert {split_of(prompt) for prompt in own} == {split}


def test_prompt_and_response_are_the_sentence(responses):
    for row in responses["validation"]:
        whole = row["prompt"] + row["response"]
        assert len(row["prompt"].split()) == 2 and row["response"].startswith(" ") and whole == " ".join(whole.split())
        assert len(row["response"].split()) >= 3


def test_pairs_answer_the_same_prompt_and_differ_in_rating(preferences, responses):
    known = {(row["prompt"].lower(), row["response"]) for rows in responses.values() for row in rows}
    counts: dict[str, int] = {}
    for row in preferences["train"]:
        prompt = row["prompt"].lower()
        assert (prompt, row["chosen"]) in known and (prompt, row["rejected"]) in known
        assert row["margin"] >= 1 and row["chosen"] != row["rejected"]
        counts[prompt] = counts.get(prompt, 0) + 1
    assert max(counts.values()) == 200


def test_the_lexicon_agrees_with_people_in_two_of_three_pairs(preferences):
    rows = preferences["train"][:]
    scores = [vader([a + b for a, b in zip(rows["prompt"], rows[name], strict=True)]) for name in ("chosen", "rejected")]
    assert 0.66 < sum(a > b for a, b in zip(*scores, strict=True)) / len(rows["prompt"]) < 0.70
    good, bad = vader(["a wonderful, moving film", "a dull and stupid film"])
    assert -1 <= bad < 0 < good <= 1


def test_the_same_every_time(preferences):
    again = pickle.loads(pickle.dumps(ReviewPreferences()))  # noqa: S301
    assert again.load()["test"][:3] == preferences["test"][:3] and again.fingerprint() == ReviewPreferences().fingerprint()
    others = [ReviewPreferences(3), ReviewPreferences(gap=2.0), ReviewPreferences(per_prompt=5), ReviewResponses()]
    assert len({source.fingerprint() for source in (again, *others)}) == 5
    assert min(ReviewPreferences(gap=2.0).load()["test"]["margin"]) >= 2


@pytest.mark.parametrize(
    "options,message",
    [({"gap": 0.0}, "gap 0.0"), ({"per_prompt": 0}, "per_prompt 0"), ({"prompt_words": 0}, "prompt_words 0")],
)
def test_what_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ReviewPreferences(**options)
