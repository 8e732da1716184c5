import json
import os
import random
import subprocess
import sys
from collections import Counter

import pytest
from tokenizers import AddedToken, ByteLevelBPETokenizer
from tokenizers.pre_tokenizers import ByteLevel

from datamodules.sources.stdlib import StdlibDocs
from datamodules.tokenizers.base import PIECE
from datamodules.tokenizers.bpe import BYTE_OF, BPETokenizer


@pytest.fixture(scope="module")
def texts():
    return StdlibDocs().load()["train"]["text"][:]


@pytest.fixture(scope="module")
def bpe(texts):
    tokenizer = BPETokenizer(1024)
    tokenizer.train(texts)
    return tokenizer


def merges(tokenizer):
    return [tuple(pair) for pair in json.loads(tokenizer.to_json())["tokenizer"]["model"]["merges"]]


def trained(texts, vocab_size, special_tokens=()):
    tokenizer = BPETokenizer(vocab_size, list(special_tokens))
    tokenizer.train(texts)
    return tokenizer


def merges_by_definition(texts, count):
    """Algorithm 1 of Sennrich et al., one merge at a time over all words, with the stated rule for ties."""
    ids = {character: i for i, character in enumerate(sorted(BYTE_OF))}
    split = ByteLevel(add_prefix_space=False)
    words = Counter(tuple(word) for text in texts for word, _ in split.pre_tokenize_str(text))
    learned = []
    while len(learned) < count:
        pairs = Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]))
        if pairs[best] < 2:
            break
        learned.append(best)
        ids.setdefault("".join(best), len(ids))
        merged = Counter()
        for word, times in words.items():
            new = []
            for symbol in word:
                if new and (new[-1], symbol) == best:
                    new[-1] += symbol
                else:
                    new.append(symbol)
            merged[tuple(new)] += times
        words = merged
    return learned


def test_t01_ties_go_to_the_lowest_ids_whatever_the_order_of_documents():
    for words in (["bbb", "aaa", "dddd", "cccc"], ["aaa", "bbb", "cccc", "dddd"]):
        for documents in (words, [" ".join(words)], words[::-1]):
            assert merges(trained(documents, 258))[:2] == [("c", "c"), ("d", "d")]


def test_t01_merges_are_those_of_the_definition(texts):
    some = texts[:6]
    expected = merges_by_definition(some, 300)
    assert len(expected) == 300
    assert merges(trained(some, 556)) == expected


def test_t01_order_of_documents_does_not_matter(texts, bpe):
    shuffled = random.Random(0).sample(texts, len(texts))
    assert shuffled != texts
    assert trained(shuffled, 1024, bpe.special_tokens).to_json() == bpe.to_json()


def test_t01_hash_seeds_do_not_matter(bpe):
    script = (
        "from datamodules.sources.stdlib import StdlibDocs; from datamodules.tokenizers.bpe import BPETokenizer\n"
        "t = BPETokenizer(1024); t.train(StdlibDocs().load()['train']['text']); print(t.fingerprint())"
    )
    for seed in "01":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        assert run.stdout.strip() == bpe.fingerprint()


def test_t01_saved_and_loaded_is_equal(bpe, texts, tmp_path):
    bpe.save(tmp_path / "deep" / "tok.json")
    for loaded in (BPETokenizer(path=str(tmp_path / "deep" / "tok.json")), BPETokenizer.load(tmp_path / "deep" / "tok.json")):
        assert loaded.to_json() == bpe.to_json()
        assert loaded.encode(texts[0]) == bpe.encode(texts[0])
        assert (loaded.vocab_size, loaded.pad_id, loaded.eos_id, loaded.special_tokens) == (1024, 0, 1, ["[PAD]", "[EOS]"])


@pytest.mark.parametrize(("vocab_size", "least"), [(257, 258), (0, 258), (-1, 258)])
def test_t03_vocabulary_below_bytes_and_special_tokens(vocab_size, least):
    with pytest.raises(ValueError, match=rf"vocab_size {vocab_size} .* 256 bytes \+ 2 special tokens: {least} is the least"):
        BPETokenizer(vocab_size)


def test_the_least_vocabulary_and_a_small_text():
    assert trained(["some text"], 256).vocab_size == 256
    assert trained([], 2048, ["[EOS]"]).vocab_size == 257
    small = trained(["ab ab ab"], 2048)
    assert small.vocab_size == 256 + len(merges(small)) < 260
    assert small.decode(small.encode("ab ab é")) == "ab ab é"


def test_special_tokens_come_first(texts):
    every = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]"]
    t = trained(texts, 300, every)
    assert (t.pad_id, t.unk_id, t.cls_id, t.sep_id, t.mask_id, t.eos_id) == (0, 1, 2, 3, 4, 5)
    assert t.token_bytes()[:6].tolist() == [0] * 6
    assert t.decode(range(6)) == "" and t.decode(range(6), skip_special_tokens=False) == "".join(every)


def test_a_special_name_in_text_is_text():
    tokenizer = trained(["[PAD] [EOS] [PAD][EOS]"] * 50, 400, ["[PAD]", "[EOS]"])
    ids = tokenizer.encode("a[PAD]b [EOS]")
    assert min(ids) >= 2
    assert tokenizer.decode(ids) == "a[PAD]b [EOS]"


def test_pieces_encode_as_the_whole(bpe, texts):
    text = "\n\n".join(texts) + " a  b\n\n \n c\t d   \n"
    pieces = list(bpe.pieces(text))
    assert len(pieces) == len(text) // PIECE + 1 > 2 and "".join(pieces) == text
    assert [i for ids in bpe.encode_batch(pieces) for i in ids] == bpe.encode(text)
    assert list(bpe.pieces("")) == []


@pytest.fixture
def foreign(texts, tmp_path):
    """A tokenizer.json as GPT-2's: special token last, a post-processor, no padding token."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=500, show_progress=False)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    tokenizer.enable_truncation(4)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_hugging_face_file(foreign, texts):
    tokenizer = BPETokenizer(path=str(foreign))
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (501, 500, None)
    ids = tokenizer.encode(texts[0] + "<|endoftext|>")
    assert tokenizer.decode(ids) == texts[0] + "<|endoftext|>" and 500 not in ids
    assert tokenizer.token_bytes()[ids].sum() == len(texts[0].encode()) + 13
    assert tokenizer.token_bytes()[500] == 0 and tokenizer.decode([500]) == ""
    assert BPETokenizer.from_json(tokenizer.to_json()).encode(texts[1]) == tokenizer.encode(texts[1])


def test_path_decides_vocabulary_and_special_tokens(foreign):
    assert BPETokenizer(vocab_size=9999, special_tokens=["[CLS]"], path=str(foreign)).vocab_size == 501


def test_a_wrong_file_is_named(foreign, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json does not exist: python -m pipeline tokenize"):
        BPETokenizer(path=str(tmp_path / "none.json"))
    state = json.loads(foreign.read_text())
    wrong = {
        "its pre_tokenizer is not ByteLevel": json.dumps({**state, "pre_tokenizer": {"type": "Whitespace"}}),
        "its model is WordPiece": json.dumps({**state, "model": {"type": "WordPiece", "vocab": {}}}),
        "name datamodules.tokenizers.chars instead": json.dumps({"type": "chars", "special_tokens": [], "characters": "ab"}),
        "no saved tokenizer": "[1, 2]",
        "Expecting value": "not JSON",
        "none of bpe, chars, bytes": json.dumps({"type": "os.system"}),
    }
    for message, content in wrong.items():
        (tmp_path / "wrong.json").write_text(content)
        with pytest.raises(ValueError, match=rf"wrong\.json is no tokenizer .*{message}"):
            BPETokenizer(path=str(tmp_path / "wrong.json"))


def test_forks_after_training_are_silent():
    """A loader's worker has no copy of the library's threads: it must not wait for them, nor warn at every start."""
    script = (
        "import os\nfrom datamodules.tokenizers.bpe import BPETokenizer\n"
        "t = BPETokenizer(300); t.train(['some text', 'other text'] * 500); t.encode_batch(['some text'] * 500)\n"
        "pid = os.fork()\nif not pid:\n    t.encode_batch(['text'] * 99)\n    os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=20)
    assert (run.stdout, run.stderr) == ("7\n", "")
