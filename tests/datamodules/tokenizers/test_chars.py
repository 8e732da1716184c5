import time

import pytest

from datamodules.sources.wikipedia import Wikipedia
from datamodules.tokenizers.chars import CharTokenizer


def trained(texts, special_tokens=()):
    tokenizer = CharTokenizer(list(special_tokens))
    tokenizer.train(texts)
    return tokenizer


def test_sorted_distinct_characters():
    tokenizer = trained(["hello", "\n!é"])
    assert tokenizer.characters == "\n!ehloé"
    assert tokenizer.vocab_size == 7
    assert tokenizer.encode("hé\n") == [3, 6, 0]
    assert tokenizer.eos_id is None and tokenizer.special_tokens == []


def test_t03_unseen_character_is_named_with_its_place():
    tokenizer = trained(["abc"])
    faults = {"abxé": "'x' at position 2", "\U0001f600": "at position 0", "ab\udcff": r"'\\udcff' at position 2"}
    for text, message in faults.items():
        with pytest.raises(ValueError, match=rf"{message} is not among the 3 .* add \[UNK\]"):
            tokenizer.encode(text)


def test_t03_unseen_character_becomes_unk():
    tokenizer = trained(["abc"], ["[PAD]", "[UNK]"])
    assert tokenizer.encode("aéb\U0001f600") == [2, 1, 3, 1]
    assert tokenizer.decode([2, 1, 3]) == "ab"
    assert tokenizer.decode([2, 1, 3], skip_special_tokens=False) == "a[UNK]b"


def test_nothing_to_learn_from():
    with pytest.raises(ValueError, match="no text"):
        trained([""])


def test_path_decides(tmp_path):
    trained(["abc"], ["[EOS]"]).save(tmp_path / "tok.json")
    tokenizer = CharTokenizer(special_tokens=["[PAD]"], path=str(tmp_path / "tok.json"))
    assert tokenizer.is_trained and tokenizer.special_tokens == ["[EOS]"] and tokenizer.encode("c") == [3]


def test_a_million_characters_take_no_python_loop():
    text = "".join(Wikipedia().load()["train"]["text"])[:1_000_000]
    tokenizer = trained([text])
    start = time.process_time()
    ids = tokenizer.encode(text)
    assert time.process_time() - start < 0.5  # seconds; 0.05 measured, a loop takes longer than this at its best
    assert len(ids) == len(text)
