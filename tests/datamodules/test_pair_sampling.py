"""Pairs of sentences from documents whose tokens say where they stand: id 5 + 1000 * document + place."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from datamodules.batch import IGNORE_INDEX
from datamodules.encoded import SpecialIds
from datamodules.pair_sampling import SHORT, SentencePairs
from datamodules.sentence_cache import IdFile, Sentences

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 5
STRIDE, MAX, DOCUMENTS = 1000, 32, 30


class Places:
    """A tokenizer's two tables: words are of three tokens, in whatever sentences."""

    unk_id = None

    def token_bytes(self):
        return np.where(np.arange(FIRST + STRIDE * DOCUMENTS) < FIRST, 0, 3)

    def word_edges(self):
        ids = np.arange(FIRST + STRIDE * DOCUMENTS)
        return np.stack([(ids - FIRST) % 3 != 0, np.ones_like(ids, dtype=bool)], 1) & (ids >= FIRST)[:, None]


@pytest.fixture(scope="module")
def documents():
    """Lengths of each document's sentences: most are shorter than half a window, some much longer."""
    rng = np.random.default_rng(0)
    made = [rng.integers(1, 15, n).tolist() for n in (1, 2, 2, 3, 1, *range(3, DOCUMENTS - 2))]
    made[9][4], made[12][0], made[15][-1] = 70, 31, 16
    return [*made[: DOCUMENTS - 3], [40], [3, 3], [100, 2]]


def sentences_of(documents, folder):
    ids = np.concatenate([FIRST + STRIDE * d + np.arange(sum(lengths)) for d, lengths in enumerate(documents)])
    np.save(folder / "ids.npy", ids.astype(np.uint16))
    starts = np.cumsum([0, *(n for lengths in documents for n in lengths)])
    return Sentences(IdFile(folder / "ids.npy"), starts, np.cumsum([0, *map(len, documents)]))


@pytest.fixture(scope="module")
def sentences(documents, tmp_path_factory):
    return sentences_of(documents, tmp_path_factory.mktemp("sentences"))


def pairs_of(sentences, **options):
    options = {"max_seq_len": MAX, "seed": 3, "nsp": True, "whole_word": False, "mask_fraction": 0.15, **options}
    return SentencePairs(sentences, SpecialIds(PAD, CLS, SEP, MASK), Places(), **options)


@pytest.fixture(scope="module")
def pairs(sentences):
    return pairs_of(sentences)


class Span(NamedTuple):
    document: int
    first: int
    length: int

    @property
    def end(self):
        return self.first + self.length


def originals(batch):
    return torch.where(batch["labels"] == IGNORE_INDEX, batch["input_ids"], batch["labels"]).numpy()


def span(ids):
    """Where consecutive ids stand; a wrong label would break the run."""
    assert len(ids) and np.array_equal(ids, ids[0] + np.arange(len(ids)))
    return Span(*divmod(int(ids[0]) - FIRST, STRIDE), len(ids))


def read(batch):
    """[(A, B or None, next_sentence)]; the layout is checked."""
    found = []
    rows, lengths = originals(batch), batch["attention_mask"].sum(1).tolist()
    assert batch["input_ids"].shape[1] == max(lengths) and batch["num_tokens"] == sum(lengths)
    for name in batch.keys() - {"attention_mask", "predicted_per_pair", "num_tokens"}:
        assert batch[name].dtype == torch.int64, name
    for row, (ids, length) in enumerate(zip(rows, lengths, strict=True)):
        parts = np.split(ids[:length], np.flatnonzero(ids[:length] == SEP) + 1)
        assert ids[0] == CLS and ids[length - 1] == SEP and not len(parts.pop())
        assert batch["attention_mask"][row].tolist() == [True] * length + [False] * (len(ids) - length)
        assert (batch["input_ids"][row, length:] == PAD).all() and (batch["segment_ids"][row, length:] == 0).all()
        assert batch["segment_ids"][row, :length].tolist() == [i for i, part in enumerate(parts) for _ in part]
        assert len(parts) == (2 if "next_sentence" in batch else 1)
        b = span(parts[1][:-1]) if len(parts) == 2 else None
        found.append((span(parts[0][1:-1]), b, int(batch["next_sentence"][row]) if b else None))
    return found


def whole(pairs, epoch):
    indices = np.arange(len(pairs))
    return pairs[epoch, indices, indices]


@pytest.fixture(scope="module")
def drawn(pairs):
    return [pair for epoch in range(40) for pair in read(whole(pairs, epoch))]


def borders(documents, limit):
    """{document: places where its sentences begin, or their pieces of `limit` tokens}."""
    return {
        d: {sum(lengths[:s]) + i for s, n in enumerate(lengths) for i in range(0, n, limit)}
        for d, lengths in enumerate(documents)
    }


@pytest.fixture(scope="module")
def starts(documents):
    return borders(documents, (MAX - 3) // 2)


def test_b_follows_a_or_is_of_another_document_half_the_time_each(drawn):
    for a, b, next_sentence in drawn:
        if next_sentence == 0:
            assert b[:2] == (a.document, a.end)
        else:
            assert next_sentence == 1 and b.document != a.document
    share = np.mean([next_sentence for _, _, next_sentence in drawn])
    assert len(drawn) > 3000 and abs(share - 0.5) < 4 * (0.25 / len(drawn)) ** 0.5


def test_a_and_b_begin_where_sentences_do(drawn, starts):
    for a, b, _ in drawn:
        assert a.first in starts[a.document] and b.first in starts[b.document]
        assert a.end in starts[a.document]  # A ends with a sentence, for there is more after it


def test_a_long_sentence_is_cut_into_pieces(pairs, documents, drawn):
    assert pairs.num_cut == sum(n > 14 for lengths in documents for n in lengths) == 5
    assert {b.first for _, b, _ in drawn if b.document == 27} == {0, 14, 28}  # [40]
    assert {a.first for a, _, _ in drawn if a.document == 29} >= {0, 14, 28, 42, 56}  # [100, 2]


def test_a_random_b_is_any_sentence_of_any_other_document(drawn, starts):
    found = [b for _, b, random in drawn if random]
    assert len({(b.document, b.first) for b in found}) > 0.9 * sum(map(len, starts.values()))
    counts = np.bincount([b.document for b in found])
    share = np.array(list(map(len, starts.values())))
    expected = counts.sum() * share / share.sum()  # nearly: a document is not drawn for itself
    assert np.abs(counts - expected).max() < 0.25 * expected.max()


def test_no_sample_is_too_long_and_lengths_are_known(pairs, drawn):
    assert max(a.length + b.length + 3 for a, b, _ in drawn) == MAX
    for epoch in (0, 7, 0):
        assert pairs.lengths(epoch).tolist() == whole(pairs, epoch)["attention_mask"].sum(1).tolist()


def test_nine_tenths_are_full_and_split_anywhere(tmp_path):
    pairs = pairs_of(sentences_of([[1] * 200] * 6, tmp_path))  # nothing but borders
    found = [(a, b) for epoch in range(60) for a, b, random in read(whole(pairs, epoch)) if not random]
    full = [a.length for a, b in found if a.length + b.length == MAX - 3]
    assert abs(len(full) / len(found) - (1 - SHORT * 27 / 28)) < 0.03  # a short one has 2 to 29 tokens
    counts = np.bincount(full, minlength=MAX - 3)[1:]
    assert len(counts) == 28 and counts.min() > 0.5 * len(full) / 28 and counts.max() < 1.6 * len(full) / 28


@pytest.mark.parametrize("nsp", [True, False])
def test_every_token_of_a_usable_document_occurs_in_its_place(sentences, documents, starts, nsp):
    pairs = pairs_of(sentences, nsp=nsp)
    seen = {d: set() for d in range(DOCUMENTS)}
    for epoch in range(200):
        for a, b, random in read(whole(pairs, epoch)):
            end = b.end if nsp and not random else a.end  # what follows A is in its place, a random B is not
            seen[a.document].update(range(a.first, end))
    usable = {d: set(range(sum(n))) for d, n in enumerate(documents) if not nsp or len(starts[d]) > 1}
    lost = {d: sorted(tokens - seen[d]) for d, tokens in usable.items() if tokens - seen[d]}
    assert not lost, lost


def test_a_document_has_as_many_samples_as_windows(pairs, documents, starts):
    counts = np.bincount([a.document for a, _, _ in read(whole(pairs, 0))], minlength=DOCUMENTS)
    assert counts.tolist() == [max(1, sum(n) // (MAX - 3)) * (len(starts[d]) > 1) for d, n in enumerate(documents)]


def test_a_document_of_one_sentence_is_only_ever_b(tmp_path):
    pairs = pairs_of(sentences_of([[5], [4, 4, 4], [6]], tmp_path))
    found = [pair for epoch in range(100) for pair in read(whole(pairs, epoch))]
    assert len(pairs) == 1 and {a.document for a, _, _ in found} == {1}
    assert {b.document for _, b, random in found if random} == {0, 2}


def test_epochs_and_seeds_differ(sentences):
    one, *others = [read(whole(pairs_of(sentences, seed=s), e)) for s, e in ((3, 1), (3, 2), (4, 1))]
    assert all(sum(map(tuple.__eq__, one, other)) < 0.2 * len(one) for other in others)


def test_without_nsp_a_sample_is_one_sequence(sentences, documents):
    pairs = pairs_of(sentences, nsp=False)
    starts = borders(documents, 15)
    for epoch in range(10):
        batch = whole(pairs, epoch)
        assert "next_sentence" not in batch and not batch["segment_ids"].any()
        assert pairs.lengths(epoch).tolist() == batch["attention_mask"].sum(1).tolist()
        found = [a for a, _, _ in read(batch)]
        assert {a.document for a in found} == set(range(DOCUMENTS))  # one sentence is enough
        assert max(a.length for a in found) == MAX - 2 and all(a.first in starts[a.document] for a in found)


@pytest.mark.parametrize("whole_word", [False, True])
def test_labels_stand_at_the_predicted_places(sentences, whole_word):
    batch = whole(pairs_of(sentences, whole_word=whole_word), 0)
    read(batch)  # the labels are the originals
    text = originals(batch) >= FIRST
    goes_on = text[:, 1:] & text[:, :-1] & ((originals(batch)[:, 1:] - FIRST) % 3 != 0)
    here, before = ((batch["labels"] != IGNORE_INDEX).numpy()[:, part] for part in (slice(1, None), slice(-1)))
    assert ((here == before)[goes_on].mean() == 1) == whole_word
    labels, ids = batch["labels"].flatten(), batch["input_ids"].flatten()
    predicted = labels != IGNORE_INDEX
    assert torch.equal(predicted.nonzero().flatten(), batch["predicted"]) and (labels[predicted] >= FIRST).all()
    assert abs((ids[predicted] == MASK).float().mean() - 0.8) < 0.1 and not (ids[~predicted] == MASK).any()
    assert abs(len(batch["predicted"]) / (batch["num_tokens"] - 3 * len(batch["labels"])) - 0.15) < 0.02


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("nsp", [True, False])
def test_predicted_per_pair_is_that_of_the_step_however_it_is_split(sentences, nsp, whole_word):
    pairs = pairs_of(sentences, nsp=nsp, whole_word=whole_word)
    for number in range(4):
        step = np.random.default_rng(number).permutation(len(pairs))[:24]
        expected = len(pairs[number, step, step]["predicted"]) / 24
        for micro in (1, 3, 8, 24):
            parts = [pairs[number, step[i : i + micro], step] for i in range(0, 24, micro)]
            assert {part["predicted_per_pair"] for part in parts} == {expected}
            assert sum(len(part["predicted"]) for part in parts) / 24 == expected


@pytest.mark.parametrize("whole_word", [False, True])
def test_a_sample_does_not_depend_on_its_companions(sentences, whole_word):
    pairs = pairs_of(sentences, whole_word=whole_word)
    together = whole(pairs, 5)
    for indices in ([0], [7, 70, 3], [70, 7], [9, 9]):
        batch = pairs_of(sentences, whole_word=whole_word)[5, np.array(indices), np.array(indices)]
        width = batch["input_ids"].shape[1]
        for row, i in enumerate(indices):
            for name in ("input_ids", "labels", "segment_ids", "attention_mask"):
                assert torch.equal(batch[name][row], together[name][i, :width]), name
                assert (together[name][i, width:] == {"input_ids": PAD, "labels": IGNORE_INDEX}.get(name, 0)).all()
            assert batch["next_sentence"][row] == together["next_sentence"][i] and batch["index"][row] == i
