"""What callbacks show of a BERT: guesses, attention, the map of [CLS] states, confusion of classes; in files and on W&B."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch

from datamodules.sentence_pairs import SentencePairDataModule
from datamodules.sources.files import TextFiles
from datamodules.tokenizers.bpe import BPETokenizer
from lit_models.nn.bert import BERT, BERTClassifier
from pipeline.callbacks.attention import AttentionMaps
from pipeline.callbacks.embeddings import principal_components
from pipeline.callbacks.masked import masked_text
from pipeline.trained import load_trained
from tests.reading import SMALL, history, read_csv

PLACE = "pipeline.callbacks"
PRETRAINING = [f"{PLACE}.masked.MaskedSamples", f"{PLACE}.attention.AttentionMaps", f"{PLACE}.embeddings.EmbeddingMap"]
CLASSIFYING = [f"{PLACE}.confusion.ConfusionMatrix", f"{PLACE}.embeddings.EmbeddingMap"]
SIZES = [
    "--data.init_args.tokenizer.init_args.vocab_size", "300", "--data.init_args.batch_size", "8",
    "--model.init_args.net", '{"max_seq_len": 32, "num_layers": 1, "num_heads": 2, "embed_dim": 16}',
    "--trainer.max_steps", "4", "--trainer.val_check_interval", "2", "--trainer.accelerator", "cpu",
]  # fmt: skip


@pytest.fixture
def pretrain(inside: Any, text: Path, tmp_path: Path) -> Any:
    """A tiny BERT trained for 4 steps, validated after 2 and 4."""

    def run(name: str, *callbacks: Any, nsp: bool = True, logger: bool = True) -> tuple[Path, Any]:
        docs = tmp_path / "docs"
        docs.mkdir(exist_ok=True)
        for i in range(10):
            (docs / f"{i}.txt").write_text(text.read_text()[2000 * i : 2000 * (i + 1)])
        source = {"class_path": "datamodules.sources.files.TextFiles", "init_args": {"paths": str(docs), "val_fraction": 0.3}}
        options = ["--data.init_args.source", source, "--data.init_args.nsp", str(nsp).lower()]
        options += ["--trainer.callbacks", list(callbacks), "--trainer.logger", str(logger).lower()]
        return tmp_path / name, inside("fit", "--config", "configs/bert.yaml", *SIZES, *options, "--run_dir", tmp_path / name)

    return run


@pytest.fixture
def classify(inside: Any, tmp_path: Path) -> Any:
    """A tiny classifier of three classes, likewise."""

    def run(*callbacks: str, logger: bool = True) -> tuple[Path, Any]:
        for split, number in {"train": 40, "validation": 20, "test": 24}.items():
            with open(tmp_path / f"{split}.csv", "w", newline="") as file:
                rows = [[f"the number {i} is {'abc'[i % 3] * 3}", ("low", "middle", "high")[i % 3]] for i in range(number)]
                csv.writer(file).writerows([["text", "label"], *rows])
        files = {split: str(tmp_path / f"{split}.csv") for split in ("train", "validation", "test")}
        source = {"class_path": "datamodules.sources.tables.SentenceTable", "init_args": files}
        options = ["--data.init_args.source", source, "--trainer.callbacks", list(callbacks)]
        options += ["--trainer.logger", str(logger).lower(), "--run_dir", tmp_path / "run"]
        return tmp_path / "run", inside("fit", "--config", "configs/bert_reviews.yaml", *SIZES, *options)

    return run


def is_picture(path: Path) -> bool:
    """Whether a PNG opens and shows something."""
    return float(matplotlib.image.imread(path)[..., :3].std()) > 0.01


def images(run_dir: Path, name: str) -> list[tuple[int, Path]]:
    """(step, file) of the pictures that W&B has under a name."""
    folder = next((run_dir / "wandb").glob("offline-run-*/files"))
    rows = [row for row in history(run_dir) if f"{name}.filenames" in row]
    return [(int(row["trainer/global_step"]), folder / row[f"{name}.filenames"][0]) for row in rows]


def test_pretraining(pretrain: Any) -> None:
    run_dir, (code, out, last) = pretrain("run", *PRETRAINING)
    assert code == 0, last
    for name, steps in {"attention": [2, 4], "cls_map": [4]}.items():
        assert is_picture(run_dir / f"figures/{name}.png")
        logged = images(run_dir, name)
        assert [step for step, _ in logged] == steps and all(is_picture(path) for _, path in logged)
    assert sorted(path.name for path in (run_dir / "samples").iterdir()) == ["step_000002.txt", "step_000004.txt"]
    sample = (run_dir / "samples/step_000004.txt").read_text()
    assert sample.split("\n\n---")[0] in out and len(sample.split("---")) == 4

    tables = sorted((run_dir / "wandb").glob("offline-run-*/files/media/table/masked_*.table.json"))
    assert len([row for row in history(run_dir) if "masked.path" in row]) == len(tables) == 2
    table = max((json.loads(path.read_text()) for path in tables), key=lambda table: table["data"][0][0])
    assert table["columns"] == ["step", "text", "place", "token", "guess", "probability"]
    assert {row[0] for row in table["data"]} == {4} and len({row[1] for row in table["data"]}) == 4
    for _, text, place, token, guess, probability in table["data"]:
        row = rf"^ *{place}  {re.escape(token)} +{re.escape(guess)} +{probability:.4f}$"
        assert text in sample and re.search(row, sample, re.MULTILINE)
    for text in {row[1] for row in table["data"]}:
        assert text.startswith("[CLS]") and text.count("[SEP]") == 2
        assert text.count("[MASK]") <= sum(row[1] == text for row in table["data"])

    net, tokenizer, _, _ = load_trained(BERT, "lit_models.bert.LitBERT", str(run_dir), "last", "cpu")
    source = TextFiles(str(run_dir.parent / "docs"), val_fraction=0.3)
    first = SentencePairDataModule(source, tokenizer, 8, max_seq_len=32).dataset("validation")[0, np.arange(4), np.arange(4)]
    with torch.no_grad():
        logits = net(first["input_ids"], first["segment_ids"], first["attention_mask"]).mlm
    expected = logits.softmax(-1).max(-1).values[first["labels"] >= 0]
    assert torch.allclose(torch.tensor([row[5] for row in table["data"]]), expected)


def test_pretraining_without_next_sentences(pretrain: Any) -> None:
    run_dir, (code, _, last) = pretrain("run", *PRETRAINING, nsp=False)
    assert code == 0 and is_picture(run_dir / "figures/cls_map.png"), last


def test_looking_changes_nothing(pretrain: Any) -> None:
    runs = [pretrain(name, *callbacks)[0] for name, callbacks in {"seen": PRETRAINING, "unseen": []}.items()]
    seen, unseen = (torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in runs)
    assert all(torch.equal(seen[name], unseen[name]) for name in unseen)
    seen, unseen = ([row["val/loss"] for row in read_csv(run / "metrics.csv")] for run in runs)
    assert seen == unseen and len(seen) > 2


def test_classifying(classify: Any, inside: Any) -> None:
    run_dir, (code, _, last) = classify(*CLASSIFYING)
    assert code == 0, last
    for name, steps in {"confusion": [2, 4], "cls_map": [4]}.items():
        logged = images(run_dir, name)
        assert [step for step, _ in logged] == steps and all(is_picture(path) for _, path in logged)
    assert sorted(path.name for path in (run_dir / "figures").iterdir()) == ["cls_map.png", "confusion_val.png"]
    (run_dir / "figures/confusion_val.png").unlink()
    for command, name in {"validate": "val", "test": "test"}.items():
        code, _, last = inside(command, "--run_dir", run_dir)
        assert code == 0 and is_picture(run_dir / f"figures/confusion_{name}.png"), last
    options = ["--run_dir", run_dir.parent / "elsewhere", "--ckpt_path", run_dir / "checkpoints/best.ckpt"]
    code, out, last = inside("test", "--config", run_dir / "config.yaml", *options)
    assert code == 0 and "nothing was written" in out and not (run_dir.parent / "elsewhere").exists(), last


def test_a_callback_says_what_it_cannot_do(pretrain: Any, classify: Any, inside: Any, small: list[str]) -> None:
    folder, (code, _, last) = pretrain("run", {"class_path": PRETRAINING[0], "init_args": {"num_samples": 0}}, logger=False)
    assert code == 2 and "num_samples" in last and not folder.exists()
    folder, (code, _, last) = pretrain("run", CLASSIFYING[0], logger=False)
    assert code == 1 and "ConfusionMatrix is for classifiers; LitBERT counts" in last
    _, (code, _, last) = classify(PRETRAINING[0], logger=False)
    assert code == 1 and "MaskedSamples" in last and "LitBERTClassifier" in last
    options = ["--trainer.callbacks", [PRETRAINING[2]], "--trainer.logger", "false", "--run_dir", folder.parent / "gpt"]
    code, _, last = inside("fit", *small, *options)
    assert code == 1 and "EmbeddingMap" in last and "TextDataModule" in last


def test_attention_of_a_gpt_is_shown_as_before(inside: Any, text: Path, tmp_path: Path) -> None:
    callbacks = [{"class_path": PRETRAINING[1], "init_args": {"prompt": "If a class"}}]
    options = ["--data.init_args.source.init_args.paths", text, "--run_dir", tmp_path / "run", "--trainer.max_steps", 2]
    code, _, last = inside("fit", *SMALL, *options, "--trainer.callbacks", callbacks)
    assert code == 0 and is_picture(tmp_path / "run/figures/attention.png"), last
    assert [step for step, _ in images(tmp_path / "run", "attention")] == [2]


def test_an_encoder_sees_the_prompt_between_cls_and_sep() -> None:
    tokenizer = trained("the class the class of the objects")
    net = BERTClassifier(tokenizer.vocab_size, 8, 2, num_layers=2, num_heads=2, embed_dim=8).eval()
    weights, ids = AttentionMaps("the  class\nthe", max_tokens=24)._of_encoder(net, tokenizer, torch.device("cpu"))
    assert ids == [tokenizer.cls_id, *tokenizer.encode(" the class the")[:6], tokenizer.sep_id]
    assert weights.shape == (2, 2, len(ids), len(ids)) and torch.allclose(weights.sum(-1), torch.ones(()))
    for max_tokens, length in {24: 8, 5: 5, 2: 2, 1: 2}.items():
        assert (
            len(AttentionMaps("of the objects of it", max_tokens)._of_encoder(net, tokenizer, torch.device("cpu"))[1]) == length
        )


def trained(text: str) -> BPETokenizer:
    tokenizer = BPETokenizer(300, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.train([text])
    return tokenizer


def test_what_is_to_be_guessed_is_seen_in_the_text() -> None:
    tokenizer = trained(" the cat the cat")
    (the,), (cat,), (s,) = (tokenizer.encode(part) for part in (" the", " cat", "s"))
    cls, sep, mask, none = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, -100
    ids = [cls, the, mask, s, sep, cat, mask, cat, the, s, sep]
    labels = [none, none, cat, none, none, none, s, the, none, s, none]
    assert masked_text(ids, labels, tokenizer) == "[CLS] the [MASK]s [SEP] cat[MASK] {cat} the{s} [SEP]"


def test_principal_components_are_those_of_the_svd_with_a_sign() -> None:
    x = torch.randn(40, 6, dtype=torch.float64) * torch.tensor([5.0, 3, 1, 1, 1, 1]) + 7
    points, shares = principal_components(x)
    u, s, v = np.linalg.svd(x.numpy() - x.numpy().mean(0), full_matrices=False)
    signs = np.sign(v[[0, 1], np.abs(v[:2]).argmax(1)])
    assert np.allclose(points, u[:, :2] * s[:2] * signs) and np.allclose(shares, s[:2] ** 2 / (s**2).sum())
    order = torch.randperm(40)
    assert torch.allclose(principal_components(x[order])[0], points[order])
    points, shares = principal_components(torch.ones(1, 6))  # a single sample has no variance
    assert not points.any() and not shares.any()
