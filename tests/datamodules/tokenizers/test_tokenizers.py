"""What holds for all three kinds."""

import copy
import json
import pickle
import unicodedata

import numpy as np
import pytest

from datamodules.sources.stdlib import StdlibDocs
from datamodules.tokenizers.base import Tokenizer, load_tokenizer
from datamodules.tokenizers.bpe import BPETokenizer
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.tokenizers.chars import CharTokenizer

TEXTS = StdlibDocs().load()["train"]["text"][:]
EDGES = [
    "",
    " ",
    "\n\n",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",  # a family: three emoji and two zero-width joiners
    "a\0b",
    "  two  spaces \t tab\r\n",
    "日本語, العربية, ελληνικά",
    "[PAD] [EOS] [UNK]",
    "\ufeffmark",
]


def make(kind):
    if kind == "bytes":
        return ByteTokenizer()
    tokenizer = BPETokenizer(600) if kind == "bpe" else CharTokenizer(["[PAD]", "[EOS]"])
    tokenizer.train([*TEXTS, *EDGES] if kind == "chars" else TEXTS)
    return tokenizer


@pytest.fixture(scope="module", params=["bpe", "chars", "bytes"])
def tokenizer(request):
    return make(request.param)


@pytest.mark.parametrize("text", EDGES, ids=ascii)
def test_t03_round_trip_is_exact(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert (ids == []) == (text == "")
    assert tokenizer.encode_batch([text, "a", text]) == [ids, tokenizer.encode("a"), ids]
    assert tokenizer.token_bytes()[np.array(ids, dtype=int)].sum() == len(text.encode())


def test_t03_real_text_round_trips(tokenizer):
    for text, ids in zip(TEXTS, tokenizer.encode_batch(TEXTS), strict=True):
        assert tokenizer.decode(ids) == text
        assert all(type(i) is int for i in ids[:10])
        assert tokenizer.token_bytes()[ids].sum() == len(text.encode())


def test_t03_decoding_any_id_does_not_raise(tokenizer):
    for i in range(tokenizer.vocab_size):
        assert isinstance(tokenizer.decode([i]), str)
        tokenizer.decode([i], skip_special_tokens=False)
    assert tokenizer.decode(np.arange(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
def test_t03_half_a_character_is_the_replacement_character(kind):
    tokenizer = make(kind)
    first, second = tokenizer.encode("é")
    assert [tokenizer.decode([first]), tokenizer.decode([second])] == ["\ufffd", "\ufffd"]
    assert tokenizer.decode([first, second]) == "é"
    assert tokenizer.decode([first, *tokenizer.encode("a")]) == "\ufffda"


def test_id_out_of_range(tokenizer):
    for i in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"token id {i} is outside the vocabulary of {tokenizer.vocab_size}"):
            tokenizer.decode([i])


def test_special_tokens(tokenizer):
    assert (tokenizer.pad_id, tokenizer.eos_id, tokenizer.mask_id) == (0, 1, None)
    assert tokenizer.token_bytes()[:2].tolist() == [0, 0]
    assert tokenizer.token_bytes().dtype == np.int64
    assert tokenizer.decode([1, *tokenizer.encode("a"), 0]) == "a"
    assert tokenizer.decode([1, *tokenizer.encode("a"), 0], skip_special_tokens=False) == "[EOS]a[PAD]"


def test_saved_loaded_pickled_copied(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tok.json")
    twins = [
        type(tokenizer).load(tmp_path / "tok.json"),
        Tokenizer.load(tmp_path / "tok.json"),
        load_tokenizer(tokenizer.to_json()),
        pickle.loads(pickle.dumps(tokenizer)),  # noqa: S301 - made here
        copy.deepcopy(tokenizer),
    ]
    for twin in twins:
        assert type(twin) is type(tokenizer)
        assert twin.to_json() == tokenizer.to_json() and twin.fingerprint() == tokenizer.fingerprint()
        assert twin.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert [p.name for p in tmp_path.iterdir()] == ["tok.json"]


def test_training_again_changes_nothing(tokenizer):
    before = tokenizer.to_json()
    tokenizer.train(["quite another text " * 100])
    assert tokenizer.to_json() == before


@pytest.mark.parametrize("cls", [BPETokenizer, CharTokenizer])
def test_untrained_says_so(cls, tmp_path):
    tokenizer = load_tokenizer(cls().to_json())
    assert not tokenizer.is_trained
    for use in (lambda t: t.encode("a"), lambda t: t.vocab_size, lambda t: t.save(tmp_path / "x")):
        with pytest.raises(RuntimeError, match=f"this {cls.__name__} is not trained yet"):
            use(tokenizer)
    tokenizer.train(TEXTS[:1])
    assert tokenizer.is_trained and tokenizer.vocab_size > 0


def test_fingerprint_follows_arguments():
    untrained = [BPETokenizer(), BPETokenizer(2049), BPETokenizer(special_tokens=["[EOS]"]), CharTokenizer(), ByteTokenizer()]
    assert len({t.fingerprint() for t in untrained}) == len(untrained)
    assert BPETokenizer(2048).fingerprint() == untrained[0].fingerprint()


@pytest.mark.parametrize("cls", [BPETokenizer, CharTokenizer, ByteTokenizer])
def test_unknown_or_repeated_special_token(cls):
    with pytest.raises(ValueError, match=r"'\[BOS\]' is none of \[PAD\]"):
        cls(special_tokens=["[BOS]"])
    with pytest.raises(ValueError, match=r"\[PAD\] is given twice"):
        cls(special_tokens=["[PAD]", "[PAD]"])


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense", json.dumps({"type": "chars.x"})])
def test_what_is_no_tokenizer(text):
    with pytest.raises(ValueError, match="tokenizer"):
        load_tokenizer(text)


def test_the_wrong_kind():
    with pytest.raises(ValueError, match="this is a ByteTokenizer, where a CharTokenizer was expected"):
        CharTokenizer.from_json(ByteTokenizer().to_json())


@pytest.mark.parametrize("cls", [BPETokenizer, CharTokenizer, Tokenizer])
def test_missing_file_is_named(cls, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json does not exist"):
        cls.load(tmp_path / "none.json")


def test_p03_pickle_holds_no_text(tokenizer):
    assert len(pickle.dumps(tokenizer)) < 1 << 16
