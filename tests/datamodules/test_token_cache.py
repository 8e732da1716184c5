import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import datamodules.token_cache as token_cache
from datamodules.sources.base import TextSource
from datamodules.sources.files import TextFiles
from datamodules.sources.stdlib import StdlibDocs
from datamodules.sources.wikipedia import Wikipedia
from datamodules.token_cache import encode_split, open_tokens, prepare
from datamodules.tokenizers.base import Tokenizer
from datamodules.tokenizers.bpe import BPETokenizer
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.tokenizers.chars import CharTokenizer


class Numbers(Tokenizer):
    """A vocabulary as large as one likes: the ids are written in the text."""

    kind = "bytes"

    def __init__(self, size, special_tokens=()):
        self.size, self.special_tokens = size, list(special_tokens)

    is_trained = True

    def train(self, texts): ...
    def encode(self, text):
        return [int(i) for i in text.split()]

    def _vocabulary(self):
        return [b"[EOS]"] * len(self.special_tokens) + [b"x"] * (self.size - len(self.special_tokens))

    def _state(self): ...
    def _set_state(self, state): ...


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32), (70_001, np.uint32)])
def test_a01_ids_are_read_back_as_written(tmp_path, size, dtype):
    ids = [0, 65_535, size - 1]
    encode_split([" ".join(map(str, ids))], Numbers(size), tmp_path / "a.npy")
    tokens = open_tokens(tmp_path / "a.npy")
    assert tokens.tolist() == ids
    assert tokens.dtype == dtype
    assert isinstance(tokens, np.memmap) and not tokens.flags.writeable


@pytest.mark.parametrize(
    ("size", "bad"), [(65_536, 65_536), (65_536, 70_000), (65_536, -1), (70_000, 70_000), (70_000, 1 << 32)]
)
def test_a01_an_id_that_does_not_fit_is_an_error(tmp_path, size, bad):
    with pytest.raises(ValueError, match=rf"document 1: id {bad} is outside the vocabulary of {size}"):
        encode_split(["1 2", f"3 {bad}"], Numbers(size), tmp_path / "a.npy")
    assert list(tmp_path.iterdir()) == []


def test_end_of_document_stands_between_documents(tmp_path):
    texts = ["ab", "", "c"]
    for special_tokens, ids in [(["[EOS]"], [98, 99, 0, 100]), ([], [97, 98, 99])]:
        assert encode_split(texts, ByteTokenizer(special_tokens), tmp_path / "a.npy") == 3
        assert open_tokens(tmp_path / "a.npy").tolist() == ids


def test_no_documents(tmp_path):
    assert encode_split([], ByteTokenizer(), tmp_path / "a.npy") == 0
    assert open_tokens(tmp_path / "a.npy").shape == (0,)


def test_pieces_and_batches_change_nothing(tmp_path, monkeypatch):
    texts = Wikipedia().load()["validation"]["text"][:]
    tokenizer = BPETokenizer(512)
    tokenizer.train(texts)
    num_bytes = encode_split(texts, tokenizer, tmp_path / "a.npy")
    expected = [i for ids in tokenizer.encode_batch(texts) for i in [tokenizer.eos_id, *ids]][1:]
    assert open_tokens(tmp_path / "a.npy").tolist() == expected
    assert num_bytes == sum(len(t.encode()) for t in texts) == tokenizer.token_bytes()[expected].sum()
    monkeypatch.setattr(token_cache, "BATCH", 1000)
    monkeypatch.setattr("datamodules.tokenizers.bpe.PIECE", 300)
    encode_split(texts, tokenizer, tmp_path / "b.npy")
    assert open_tokens(tmp_path / "b.npy").tolist() == expected


def test_a_failed_write_leaves_the_old_file(tmp_path):
    encode_split(["1"], Numbers(9), tmp_path / "a.npy")
    with pytest.raises(ValueError):
        encode_split(["2", "x"], Numbers(9), tmp_path / "a.npy")
    assert open_tokens(tmp_path / "a.npy").tolist() == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["a.npy"]


def test_prepare_trains_on_train_and_encodes_all(tmp_path):
    source, tokenizer = StdlibDocs(), BPETokenizer(600)
    prepared = prepare(source, tokenizer, tmp_path)
    splits = source.load()
    alone = BPETokenizer(600)
    alone.train(splits["train"]["text"])
    assert prepared.tokenizer.to_json() == alone.to_json()
    assert not tokenizer.is_trained
    assert list(prepared.paths) == ["train", "validation", "test"]
    for split, path in prepared.paths.items():
        tokens = open_tokens(path)
        assert prepared.tokenizer.decode(tokens) == "".join(splits[split]["text"])
        assert prepared.num_bytes[split] == len("".join(splits[split]["text"]).encode())


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(StdlibDocs().load()["train"]["text"]))
    return path


def no_load(self):
    raise AssertionError("a warm start reads no text")


def test_warm_start_loads_nothing_and_every_change_is_noticed(text_file, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    cold = prepare(TextFiles(str(text_file)), CharTokenizer(["[UNK]"]), cache)
    with monkeypatch.context() as patch:
        patch.setattr(TextFiles, "load", no_load)
        warm = prepare(TextFiles(str(text_file)), CharTokenizer(["[UNK]"]), cache)
        assert warm.paths == cold.paths and warm.num_bytes == cold.num_bytes
        assert warm.tokenizer.to_json() == cold.tokenizer.to_json()
        for source, tokenizer in [
            (TextFiles(str(text_file), val_fraction=0.2), CharTokenizer(["[UNK]"])),
            (TextFiles(str(text_file)), CharTokenizer(["[UNK]", "[EOS]"])),
            (TextFiles(str(text_file)), ByteTokenizer()),
        ]:
            with pytest.raises(AssertionError, match="warm"):
                prepare(source, tokenizer, cache)
    text_file.write_text("Some other text, " * 50)
    changed = prepare(TextFiles(str(text_file)), CharTokenizer(["[UNK]"]), cache)
    assert changed.tokenizer.decode(open_tokens(changed.paths["train"])).startswith("Some other text")


def test_warm_start_is_fast_and_imports_nothing_heavy(tmp_path):
    prepare(Wikipedia(), BPETokenizer(), tmp_path)
    script = (
        "import sys\nfrom datamodules.sources.wikipedia import Wikipedia\nfrom datamodules.token_cache import prepare\n"
        "from datamodules.tokenizers.bpe import BPETokenizer\n"
        f"p = prepare(Wikipedia(), BPETokenizer(), {str(tmp_path)!r})\nassert p.tokenizer.vocab_size == 2048\n"
        "heavy = {'datasets', 'pyarrow', 'pandas', 'torch', 'gensim', 'tokenizers'} & set(sys.modules)\nassert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)
    assert time.perf_counter() - start < 2  # seconds with Python's own start; 0.2 measured on an idle machine


@pytest.mark.parametrize("name", ["meta.json", "train.npy", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_damaged_folder_is_made_again(tmp_path, name, damage):
    first = prepare(StdlibDocs(), CharTokenizer(["[UNK]"]), tmp_path)
    expected = open_tokens(first.paths["train"]).tolist()
    path = first.paths["train"].with_name(name)
    path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:-7])
    again = prepare(StdlibDocs(), CharTokenizer(["[UNK]"]), tmp_path)
    assert open_tokens(again.paths["train"]).tolist() == expected
    assert again.tokenizer.to_json() == first.tokenizer.to_json()


def test_what_a_crash_left_is_not_taken_for_a_cache(tmp_path, monkeypatch):
    """Killed after the first split: neither that folder nor its ids are used."""

    def killed(folder, source, tokenizer):
        folder.mkdir()
        encode_split(["wrong"], ByteTokenizer(), folder / "train.npy")
        os._exit(9)

    process = multiprocessing.get_context("fork").Process(target=prepare, args=(StdlibDocs(), ByteTokenizer(), tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "fill_folder", killed)
        process.start()
        process.join(30)
    assert process.exitcode == 9
    assert [p for p in (tmp_path / "tokens").iterdir() if p.is_dir()], "the crash left nothing: the test tests nothing"
    prepared = prepare(StdlibDocs(), ByteTokenizer(), tmp_path)
    assert len(open_tokens(prepared.paths["train"])) > 100_000
    assert [p for p in (tmp_path / "tokens").iterdir() if p.is_dir()] == [prepared.paths["train"].parent]


def test_an_error_leaves_no_folder_and_names_the_source(text_file, tmp_path):
    text_file.write_text("a" * 95 + "b" * 5)
    with pytest.raises(ValueError, match=r"text\.txt: validation, document 0: the character 'b' at position 5"):
        prepare(TextFiles(str(text_file)), CharTokenizer(), tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache" / "tokens").iterdir() if p.is_dir()]


def test_a_text_of_one_character_names_the_source(text_file, tmp_path):
    text_file.write_text("a")
    with pytest.raises(ValueError, match=r"text\.txt: train, there is no text"):
        prepare(TextFiles(str(text_file)), CharTokenizer(), tmp_path / "cache")
    assert prepare(TextFiles(str(text_file)), ByteTokenizer(), tmp_path / "cache").num_bytes == {"train": 0, "validation": 1}


class Counted(TextSource):
    """Leaves a mark each time it is loaded."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def load(self):
        (self.folder / f"{os.getpid()}").touch()
        time.sleep(0.2)
        return StdlibDocs().load()

    def fingerprint(self):
        return "counted"

    def describe(self):
        return "counted"


def rank(marks, cache, queue):
    prepared = prepare(Counted(marks), BPETokenizer(512), cache)
    queue.put((prepared.tokenizer.fingerprint(), int(open_tokens(prepared.paths["train"]).astype(np.int64).sum())))


def test_several_processes_at_once_do_the_work_once(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    marks = tmp_path / "marks"
    marks.mkdir()
    ranks = [context.Process(target=rank, args=(marks, tmp_path / "cache", queue)) for _ in range(4)]
    for process in ranks:
        process.start()
    results = [queue.get(timeout=60) for _ in ranks]
    for process in ranks:
        process.join(30)
    assert len(set(results)) == 1
    assert len(list(marks.iterdir())) == 1


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert prepare(StdlibDocs(), ByteTokenizer()).paths["train"].is_relative_to(tmp_path / "lit-pipeline" / "tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert token_cache.default_cache_dir() == tmp_path / ".cache" / "lit-pipeline"
