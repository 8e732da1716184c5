"""Responses, preferences and prompts as batches: which labels count, what is cut off, what is left out."""

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from datamodules.batch import IGNORE_INDEX
from datamodules.order import by_length
from datamodules.preferences import PreferenceDataModule
from datamodules.prompts import PromptDataModule
from datamodules.responses import ResponseDataModule
from datamodules.sources.base import Source
from datamodules.sources.letters import Letters, alphabetical
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.tokenizers.chars import CharTokenizer

SPECIAL = ["[PAD]", "[EOS]"]
PAD, EOS = 0, 1


class Rows(Source):
    """Rows of text, the same in every split."""

    def __init__(self, **columns: list[str]) -> None:
        self.columns = columns

    def load(self) -> datasets.DatasetDict:
        count = len(next(iter(self.columns.values())))
        columns: dict[str, Any] = {**self.columns, "row": [f"rows, row {i + 1}" for i in range(count)]}
        return datasets.DatasetDict({split: datasets.Dataset.from_dict(columns) for split in ("train", "validation")})

    def fingerprint(self) -> str:
        return repr(self.columns)

    def describe(self) -> str:
        return "the rows"


def made(kind: Any, tmp_path: Path, rows: dict[str, list[str]], **options: Any) -> Any:
    options = {"batch_size": 2, "max_seq_len": 8, "cache_dir": str(tmp_path), **options}
    tokenizer = options.pop("tokenizer", CharTokenizer(SPECIAL))
    data = kind(Rows(**rows), tokenizer, **options)
    data.prepare()
    return data


def batch(data: Any, split: str, *indices: int, epoch: int = 0) -> Any:
    chosen = np.array(indices)
    return data.dataset(split)[epoch, chosen, chosen]


def test_the_labels_are_the_response_and_its_end(tmp_path: Path) -> None:
    data = made(ResponseDataModule, tmp_path, {"prompt": ["ab", "c"], "response": ["cd", "abcd"]})
    got = batch(data, "train", 0, 1)
    a, b, c, d = data.tokenizer.encode("abcd")
    assert got["input_ids"].tolist() == [[a, b, c, d, EOS], [c, a, b, c, d]]
    ignored = IGNORE_INDEX
    assert got["labels"].tolist() == [[ignored, c, d, EOS, ignored], [a, b, c, d, EOS]]
    assert "num_bytes" not in got
    evaluated = batch(data, "validation", 0, 1)
    assert evaluated["num_bytes"].tolist() == [2, 4] and evaluated["index"].tolist() == [0, 1]
    assert data.dataset("train").lengths(0).tolist() == [5, 6]


def test_long_responses_are_cut_and_prompts_without_room_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"prompt": ["a" * 7, "a" * 8, "b"], "response": ["cd", "c", "abcdabcd"]}
    data = made(ResponseDataModule, tmp_path, rows)
    said = capsys.readouterr().out
    assert "train: 1 prompts leave no room in max_seq_len 8 and are left out" in said
    assert "train: 2 responses do not fit into max_seq_len 8 and are cut off" in said
    assert len(data.dataset("train")) == 2
    got = batch(data, "train", 0, 1)
    assert (got["labels"] != IGNORE_INDEX).sum(1).tolist() == [1, 7] and not (got["labels"] == EOS).any()
    with pytest.raises(ValueError, match="the rows: no row of the train split fits into max_seq_len 3"):
        made(ResponseDataModule, tmp_path, {"prompt": ["abc"], "response": ["d"]}, max_seq_len=3)


def test_an_empty_response_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rows, row 2: the response is empty"):
        made(ResponseDataModule, tmp_path, {"prompt": ["a", "b"], "response": ["b", ""]})


def test_batches_are_of_one_length(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    responses = ["x" * int(n) for n in draw.integers(1, 60, 800)]
    data = made(ResponseDataModule, tmp_path, {"prompt": ["y"] * 800, "response": responses}, max_seq_len=64)
    lengths = data.dataset("train").lengths(0)
    order = by_length(draw.permutation(800), lengths, 16, 0, 0)
    padding = [1 - lengths[order[i : i + 16]].mean() / lengths[order[i : i + 16]].max() for i in range(0, 800, 16)]
    assert np.mean(padding) < 0.03


def test_preferences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {
        "prompt": ["ab", "c", "a" * 8, "bb"],
        "chosen": ["c", "dd", "x", "abcdefx"],
        "rejected": ["dcb", "a", "y", "abcdefy"],
    }
    data = made(PreferenceDataModule, tmp_path, rows)
    said = capsys.readouterr().out
    assert "train: 1 prompts leave no room" in said and "1 pairs are equal when cut off at max_seq_len 8" in said
    assert len(data.dataset("train")) == 2
    got = batch(data, "train", 0, 1)
    a, b, c, d = data.tokenizer.encode("abcd")
    chosen, rejected = [[a, b, c, EOS], [c, d, d, EOS]], [[a, b, d, c, b, EOS], [c, a, EOS]]
    expected = [[*ids, *[PAD] * (6 - len(ids))] for ids in (*chosen, *rejected)]
    assert got["input_ids"].tolist() == expected and got["lengths"].tolist() == [4, 4, 6, 3]
    assert got["prompt_lengths"].tolist() == [2, 1, 2, 1] and got["num_pairs"] == 2
    assert data.dataset("train").lengths(0).tolist() == [6, 4]


def test_prompts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = made(PromptDataModule, tmp_path, {"prompt": ["ab", "c", "abcab"]}, max_new_tokens=4, micro_batch_size=1)
    assert "train: 1 prompts are longer than 4 tokens" in capsys.readouterr().out
    got = batch(data, "train", 0, 1)
    a, b, c = data.tokenizer.encode("abc")
    assert got["input_ids"].tolist() == [[a, b], [c, PAD]] and got["lengths"].tolist() == [2, 1]
    assert got["micro_batch_size"] == 1 and data.accumulation(2) == 1
    again, later = batch(data, "train", 1), batch(data, "train", 0, 1, epoch=1)
    assert again["seeds"][0] == got["seeds"][1] != got["seeds"][0] and not torch.equal(later["seeds"], got["seeds"])
    with pytest.raises(ValueError, match="max_new_tokens 8 leaves no room for a prompt"):
        made(PromptDataModule, tmp_path, {"prompt": ["a"]}, max_new_tokens=8)


def test_a_prompt_has_the_same_ids_whatever_is_answered(tmp_path: Path) -> None:
    rows = {"prompt": ["ab", "ab"], "response": ["c", "dddd"]}
    data = made(ResponseDataModule, tmp_path, rows, tokenizer=ByteTokenizer(SPECIAL))
    got = batch(data, "train", 0, 1)["input_ids"]
    assert torch.equal(got[0, :2], got[1, :2])


def test_a_tokenizer_without_padding_or_end_is_refused(tmp_path: Path) -> None:
    for names, missing in ((["[EOS]"], r"\[PAD\]"), (["[PAD]"], r"\[EOS\]")):
        with pytest.raises(ValueError, match=f"the tokenizer lacks {missing}"):
            made(ResponseDataModule, tmp_path, {"prompt": ["a"], "response": ["b"]}, tokenizer=CharTokenizer(names))


def test_datasets_pickle_small(tmp_path: Path) -> None:
    rows = {"prompt": ["ab"] * 50, "chosen": ["c"] * 50, "rejected": ["dcb"] * 50}
    dataset = made(PreferenceDataModule, tmp_path, rows).dataset("train")
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    first = np.array([0])
    assert torch.equal(again[0, first, first]["input_ids"], dataset[0, first, first]["input_ids"])


def test_letters_and_their_reward() -> None:
    splits = Letters().load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 4000, "validation": 400}
    assert all(1 <= len(row["response"]) <= 4 and len(row["prompt"]) == 1 for row in splits["train"])
    assert splits["train"][7] == Letters().load()["train"][7]
    assert alphabetical(["abcda", "aaaa", "da", "", "acb"]) == [4, 0, 1, 0, 0]
