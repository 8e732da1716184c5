"""Windows of running text: each token predicted once in evaluation, real text in training, small in a worker's luggage."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from datamodules.batch import IGNORE_INDEX
from datamodules.sources.files import TextFiles
from datamodules.text import TextDataModule, TokenWindows
from datamodules.tokenizers.bpe import BPETokenizer
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.tokenizers.chars import CharTokenizer

T = 8
TEXT = "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Ein Satz – noch einer: 東京 und 🙂. " * 6


@pytest.fixture
def make(tmp_path):
    """Makes a datamodule on its own small text."""

    def make(text=TEXT, tokenizer=None, batch_size=4, **kwargs):
        path = tmp_path / "text.txt"
        path.write_text(text)
        val, test = tmp_path / "val.txt", tmp_path / "test.txt"
        val.write_text(TEXT[:150])
        test.write_text(TEXT[:99])
        source = TextFiles(str(path), val_paths=str(val), test_paths=str(test))
        tokenizer = tokenizer or ByteTokenizer()
        kwargs = {"max_seq_len": T, "cache_dir": str(tmp_path / "cache"), **kwargs}
        data = TextDataModule(source, tokenizer, batch_size, **kwargs)
        data.trainer = SimpleNamespace(max_steps=7, global_rank=0, world_size=1)
        return data

    return make


def write_tokens(path, ids):
    np.save(path, np.asarray(ids, dtype=np.uint16))
    return path


# ---- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [2, 3, T, T + 1, T + 2, 2 * T, 2 * T + 1, 10 * T + 3])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_every_token_but_the_first_is_predicted_once(tmp_path, num_tokens, batch_size):
    ids = np.arange(num_tokens) + 100  # each token is its own place
    windows = TokenWindows(write_tokens(tmp_path / "a.npy", ids), T, token_bytes=np.ones(1000, dtype=np.int64))
    assert len(windows) == -(-(num_tokens - 1) // T)
    predicted, index = [], []
    for first in range(0, len(windows), batch_size):
        batch = windows[0, np.arange(first, min(first + batch_size, len(windows)))]
        assert batch["input_ids"].shape == batch["labels"].shape == (len(batch["index"]), T)
        counts = batch["labels"] != IGNORE_INDEX
        assert torch.equal(batch["labels"][counts], batch["input_ids"][counts] + 1)  # the next token, from the one before
        assert torch.equal(batch["num_bytes"], counts.sum(1))
        predicted += batch["labels"][counts].tolist()
        index += batch["index"].tolist()
    assert predicted == ids[1:].tolist()
    assert index == list(range(len(windows)))


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), CharTokenizer(["[UNK]"]), BPETokenizer(300)], ids=lambda t: t.kind)
def test_num_bytes_are_the_bytes_of_the_text(make, tokenizer, split):
    data = make(tokenizer=tokenizer)
    loader = data.val_dataloader() if split == "validation" else data.test_dataloader()
    batches = list(loader)
    first = batches[0]["input_ids"][0, :1].tolist()  # nothing comes before it: it is never predicted
    text = {"validation": TEXT[:150], "test": TEXT[:99]}[split]
    assert sum(int(b["num_bytes"].sum()) for b in batches) == len(text.encode()) - data.tokenizer.token_bytes()[first[0]]
    labels = torch.cat([b["labels"].flatten() for b in batches])
    if tokenizer.kind == "chars":
        assert data.tokenizer.decode([*first, *labels[labels >= 0].tolist()]) == text
    per_window = torch.cat([b["num_bytes"] for b in batches])
    sizes = torch.from_numpy(data.tokenizer.token_bytes())
    windows = labels.view(-1, T)
    assert torch.equal(per_window, torch.where(windows >= 0, sizes[windows.clamp(min=0)], 0).sum(1))


def test_end_of_document_is_predicted_and_has_no_bytes(tmp_path):
    paths = [str(tmp_path / f"{name}.txt") for name in "abc"]
    for path, text in zip(paths, ["first text", "second", "third"], strict=True):
        Path(path).write_text(text)
    source = TextFiles(paths[0], val_paths=paths[1:])
    data = TextDataModule(source, ByteTokenizer(["[EOS]"]), 1, 4, cache_dir=str(tmp_path / "cache"))
    windows = data.dataset("validation")
    batch = windows[0, np.arange(len(windows))]
    labels = batch["labels"].flatten().tolist()
    assert bytes(i - 1 for i in labels if i > 0) == b"econdthird" and labels.count(0) == 1
    assert int(batch["num_bytes"].sum()) == len("econdthird")


@pytest.mark.parametrize("eval_batch_size", [1, 3, 100])
def test_the_size_of_evaluation_batches_changes_no_sample(make, eval_batch_size):
    def rows(data):
        return [row for b in data.val_dataloader() for row in zip(*(b[name].tolist() for name in sorted(b)), strict=True)]

    assert rows(make(eval_batch_size=eval_batch_size)) == rows(make(batch_size=4))


# ---- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_tokens", [2 * T, 2 * T + 1, 3 * T - 1, 3 * T, 3 * T + 1, 20 * T + 5])
def test_training_windows_are_consecutive_text_and_disjoint(tmp_path, num_tokens):
    ids = np.arange(num_tokens) + 100
    windows = TokenWindows(write_tokens(tmp_path / "a.npy", ids), T, seed=5)
    for epoch in range(40):
        batch = windows[epoch, np.arange(len(windows))]
        assert set(batch) == {"input_ids", "labels"}
        assert torch.equal(batch["labels"], batch["input_ids"] + 1)
        flat = batch["input_ids"].flatten()
        assert flat.tolist() == list(range(int(flat[0]), int(flat[0]) + len(windows) * T))
        assert 100 <= flat[0] < 100 + T and batch["labels"].max() < 100 + num_tokens
        # nothing is left out but the offset and what does not fill a window
        assert (num_tokens - T) // T == len(windows)


def test_epochs_have_different_offsets(tmp_path):
    windows = TokenWindows(write_tokens(tmp_path / "a.npy", np.arange(100)), T, seed=0)
    offsets = [int(windows[epoch, np.array([0])]["input_ids"][0, 0]) for epoch in range(100)]
    assert set(offsets) == set(range(T))
    assert offsets != [int(TokenWindows(windows.path, T, seed=1)[e, np.array([0])]["input_ids"][0, 0]) for e in range(100)]


def test_a_window_depends_on_seed_epoch_and_index_alone(tmp_path):
    path = write_tokens(tmp_path / "a.npy", np.arange(200) % 50)
    one = TokenWindows(path, T, seed=3)
    together = one[2, np.array([4, 1, 7])]
    for _ in range(3):
        one[9, np.array([0])]  # whatever was asked before
    other = TokenWindows(path, T, seed=3)
    for row, i in enumerate([4, 1, 7]):
        assert torch.equal(other[2, np.array([i])]["labels"][0], together["labels"][row])
    assert torch.equal(one[2, np.array([4, 1, 7])]["input_ids"], together["input_ids"])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_batches_are_the_texts_own(make, num_workers):
    data = make(TEXT.encode().decode("ascii", "ignore"), num_workers=num_workers)
    text = Path(data.source.paths["train"][0]).read_text()
    batches = list(data.train_dataloader())
    assert len(batches) == 7
    for batch in batches:
        assert batch["input_ids"].shape == (4, T) and batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
        for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
            assert ids[1:] == labels[:-1]
            assert data.tokenizer.decode([*ids, labels[-1]]) in text


def test_num_workers_change_nothing(make):
    one, two = (list(make(num_workers=n).train_dataloader()) for n in (0, 2))
    assert all(torch.equal(a["labels"], b["labels"]) for a, b in zip(one, two, strict=True))


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_short_text_names_its_file(make):
    with pytest.raises(ValueError, match=r"text\.txt.*train split has 15 tokens.*max_seq_len 8.*at least 16"):
        make("x" * 15).prepare()
    make("x" * 16).prepare()


def test_a_validation_text_of_one_token_names_its_file(tmp_path):
    for name, text in {"a": "x" * 99, "b": "y"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    source = TextFiles(str(tmp_path / "a.txt"), val_paths=str(tmp_path / "b.txt"))
    with pytest.raises(ValueError, match=r"b\.txt: the validation split has 1 tokens"):
        TextDataModule(source, ByteTokenizer(), 1, T, cache_dir=str(tmp_path / "cache")).prepare()


def test_a_missing_split_names_those_there_are(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    data = TextDataModule(TextFiles(str(tmp_path / "a.txt")), ByteTokenizer(), 1, T, cache_dir=str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=r"a\.txt has no test split; it has train, validation"):
        data.dataset("test")


def test_fewer_windows_than_a_batch_are_refused(make):
    with pytest.raises(ValueError, match="1 samples, fewer than one global batch.*batch_size 4 must be at most 1"):
        make("x" * 20).train_dataloader()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": -3}, "batch_size is -3; it must be at least 1"),
        ({"micro_batch_size": 0}, "micro_batch_size is 0; it must be at least 1"),
        ({"eval_batch_size": 0}, "eval_batch_size is 0; it must be at least 1"),
        ({"num_workers": -1}, "num_workers is -1; it must be at least 0"),
        ({"max_seq_len": 0}, "max_seq_len is 0; it must be at least 1"),
        ({"batch_size": 4, "micro_batch_size": 3}, "batch_size 4 is not a multiple of micro_batch_size 3"),
    ],
)
def test_wrong_sizes_are_refused(make, sizes, message):
    with pytest.raises(ValueError, match=message):
        make(**sizes)


def test_a_split_is_prepared_once(make, monkeypatch):
    data = make()
    data.prepare()
    monkeypatch.setattr(TextFiles, "load", None)
    monkeypatch.setattr(TextFiles, "fingerprint", None)
    data.prepare()
    assert data.vocab_size == 258 and len(data.dataset("train")) == (len(TEXT.encode()) - T) // T


def test_assets_are_the_tokenizer_as_plain_text(make):
    data = make(tokenizer=CharTokenizer())
    assets = data.assets()
    assert type(assets["tokenizer"]) is str and CharTokenizer.from_json(assets["tokenizer"]).decode([0]) == " "


# ---- in a worker -----------------------------------------------------------------------------------------------------


def big(path, megabytes=64):
    """A large file of tokens that takes no time and no disk: a hole."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=(megabytes << 19,)).flush()
    return path


@pytest.mark.parametrize("token_bytes", [None, np.ones(5000, dtype=np.int64)])
def test_p03_a_dataset_pickles_small(tmp_path, token_bytes):
    windows = TokenWindows(big(tmp_path / "a.npy"), T, token_bytes=token_bytes)
    windows[0, np.arange(4)]  # the map is open
    pickled = pickle.dumps(windows)
    assert len(pickled) < 100_000
    assert torch.equal(pickle.loads(pickled)[0, np.arange(4)]["labels"], windows[0, np.arange(4)]["labels"])  # noqa: S301


def test_p03_the_datasets_of_a_datamodule_pickle_small(make):
    for split in ("train", "validation", "test"):
        assert len(pickle.dumps(make(TEXT * 200).dataset(split))) < 100_000


WORKER = """
import json, os, re, sys
import numpy as np
import torch
from torch.utils.data import DataLoader
from datamodules.order import TrainOrder
from datamodules.text import TokenWindows

def anonymous():
    return int(re.search(r"Anonymous: +([0-9]+)", open("/proc/self/smaps_rollup").read())[1]) / 1024  # MB that are no file's

class Probe:
    '''The dataset, and how the worker's own memory has grown since before its first batch.'''
    def __init__(self, windows):
        self.windows, self.start = windows, None
    def __len__(self):
        return len(self.windows)
    def __getitem__(self, key):
        self.start = anonymous() if self.start is None else self.start
        batch = self.windows[key]
        return {"sum": batch["labels"].sum(), "grown": anonymous() - self.start, "pid": os.getpid(), "start": self.start}

if __name__ == "__main__":
    torch.set_num_threads(1)
    at_first = anonymous()
    windows = TokenWindows(sys.argv[1], 1 << 14)
    windows[0, np.arange(1)]
    n = len(windows) // 8
    sizes = {"batch_size": 8, "micro_batch_size": 8, "rank": 0, "world_size": 1, "steps_per_epoch": n}
    order = TrainOrder(windows, seed=0, start=0, stop=n, **sizes)
    for method in ("spawn", "fork"):
        before = anonymous()
        options = {"batch_size": None, "num_workers": 1, "multiprocessing_context": method}
        rows = list(DataLoader(Probe(windows), sampler=order, **options))
        print(json.dumps({
            "method": method, "batches": len(rows), "expected": n, "sum": int(sum(r["sum"] for r in rows)),
            "main": before, "own": rows[0]["pid"] != os.getpid(), "start": rows[0]["start"],
            "grown": max(r["grown"] for r in rows), "opened": before - at_first,
        }))
"""


@pytest.mark.slow  # a process, and a worker that is spawned, import torch
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads a process's own memory from Linux")
def test_p02_p03_workers_map_the_tokens(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    path = big(tmp_path / "a.npy")
    tokens = np.load(path, mmap_mode="r+")
    tokens[:: 1 << 14] = 1  # 2048 ones: that the worker reads the file shows
    tokens.flush()
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(tmp_path / "worker.py"), str(path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    methods = [json.loads(line) for line in done.stdout.splitlines()]
    assert [seen["method"] for seen in methods] == ["spawn", "fork"]
    for seen in methods:
        assert seen["own"] and seen["batches"] == seen["expected"] == 255  # of 256: offset and remainder
        assert 2030 <= seen["sum"] <= 2048
        assert seen["grown"] < 16, seen  # of 64 MB that it has read
        assert seen["start"] < seen["main"] + 32, seen  # nor did they come with the pickle
        assert seen["opened"] < 16, seen


def test_p03_an_evaluation_loader_pickles(make):
    data = make()
    loader = data.val_dataloader()
    assert isinstance(loader, DataLoader)
    assert len(pickle.dumps((loader.dataset, loader.sampler, loader.collate_fn, loader.worker_init_fn))) < 100_000
