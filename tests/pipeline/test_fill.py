"""The likeliest words for each [MASK], from a checkpoint alone."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.__main__ import main
from pipeline.fill import encode, shown, split_at_masks
from tests.reading import ROOT, SMALL

ROW = re.compile(r"^│ (.+?) +│ +(\d\.\d{4}) │$", re.MULTILINE)


@pytest.fixture(scope="module")
def checkpoint(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT's checkpoint, moved away from its run folder."""
    folder = tmp_path_factory.mktemp("fill")
    for i in range(10):
        (folder / f"{i}.txt").write_text(text.read_text()[2000 * i : 2000 * (i + 1)])
    source = {"class_path": "datamodules.sources.files.TextFiles", "init_args": {"paths": str(folder), "val_fraction": 0.3}}
    options = [
        "--config", "configs/bert.yaml", "--run_dir", folder / "run", "--data.init_args.source", source,
        "--data.init_args.tokenizer.init_args.vocab_size", 300, "--data.init_args.batch_size", 8,
        "--model.init_args.net", {"max_seq_len": 32, "num_layers": 1, "num_heads": 2, "embed_dim": 16},
        "--trainer.max_steps", 4, "--trainer.callbacks", "[]", "--trainer.accelerator", "cpu",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        assert main(["fit", *map(str, options)]) == 0
    return (folder / "run/checkpoints/best.ckpt").rename(folder / "model.ckpt")


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Any:
    """The network and the tokenizer, read without the runner's own reader."""
    from datamodules.tokenizers.base import load_tokenizer
    from lit_models.nn.bert import BERT

    saved = torch.load(checkpoint, weights_only=True)
    net = BERT(**saved["hyper_parameters"]["net"])
    net.load_state_dict({name.removeprefix("net."): value for name, value in saved["state_dict"].items()})
    return net.eval(), load_tokenizer(saved["assets"]["tokenizer"])


def test_the_probabilities_are_the_networks_own(inside: Any, checkpoint: Path, model: Any) -> None:
    code, out, last = inside("fill", "--ckpt_path", checkpoint, "--text", "A [MASK] is\n an  object[MASK]", "--top_k", 7)
    assert code == 0, last
    net, tokenizer = model
    parts = [tokenizer.encode(part) for part in (" A", " is an object")]
    ids = [tokenizer.cls_id, *parts[0], tokenizer.mask_id, *parts[1], tokenizer.mask_id, tokenizer.sep_id]
    x = torch.tensor([ids])
    with torch.no_grad():
        probabilities = net(x, torch.zeros_like(x), torch.ones_like(x, dtype=torch.bool)).mlm[0].softmax(-1)
    masked = [place for place, i in enumerate(ids) if i == tokenizer.mask_id]
    best = probabilities[masked].topk(7)
    rows = ROW.findall(out)
    assert [token for token, _ in rows] == [shown(tokenizer, i) for row in best.indices.tolist() for i in row]
    printed = torch.tensor([float(probability) for _, probability in rows]).view(2, 7)
    assert torch.allclose(printed, best.values, atol=6e-5, rtol=0) and (printed.sum(1) <= 1).all()
    first, second = (tokenizer.decode([i], skip_special_tokens=False) for i in best.indices[:, 0].tolist())
    assert out.endswith(f"A{first} is an object{second}".rstrip() + "\n")


def test_the_space_before_a_mask_is_the_masks(model: Any) -> None:
    assert split_at_masks("[MASK] [MASK]  of play[MASK] .") == ["", "", " of play", " ."]
    assert split_at_masks("The [MASK].") == [" The", "."]
    _, tokenizer = model
    ids, places = encode(["", "", " of"], tokenizer, 32)
    expected = [tokenizer.cls_id, tokenizer.mask_id, tokenizer.mask_id, *tokenizer.encode(" of"), tokenizer.sep_id]
    assert ids == expected and places == [1, 2]


def test_a_token_is_shown_readable(model: Any) -> None:
    _, tokenizer = model
    pieces = {" ": "' '", "\n": "'\\n'", "\x1b": "'\\x1b'", "x": "##x", ".": ".", " the": "the"}
    for text, expected in pieces.items():
        (token,) = tokenizer.encode(text)
        assert shown(tokenizer, token) == expected
    assert shown(tokenizer, tokenizer.sep_id) == "[SEP]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--text", "The capital is Paris."], ["[MASK]"]),
        (["--text", "[MASK]" + " a" * 30], ["33 tokens", "32", "max_seq_len"]),
        (["--text", "The [MASK]", "--top_k", "0"], ["top_k", "0", "300"]),
        (["--text", "The [MASK]", "--top_k", "301"], ["top_k", "301", "300"]),
        (["--text", "The [MASK]", "--ckpt_path", "nowhere.ckpt"], ["nowhere.ckpt"]),
        (["--text", "The [MASK]", "--ckpt_path", "best"], ["--run_dir"]),
        ([], ["text"]),
    ],
)
def test_bad_input(inside: Any, checkpoint: Path, options: list[str], words: list[str]) -> None:
    code, out, last = inside("fill", "--ckpt_path", checkpoint, *options)
    assert code == 2 and all(word in last for word in words) and out == "", last


def test_a_text_of_the_longest_length_and_all_the_vocabulary(inside: Any, checkpoint: Path) -> None:
    code, out, last = inside("fill", "--ckpt_path", checkpoint, "--text", "[MASK]" + " a" * 29, "--top_k", 300)
    assert code == 0 and len(ROW.findall(out)) == 300, last


def test_another_kind_of_model(inside: Any, text: Path, checkpoint: Path, tmp_path: Path) -> None:
    options = ["--data.init_args.source.init_args.paths", text, "--trainer.max_steps", 1, "--run_dir", tmp_path / "gpt"]
    assert inside("fit", *SMALL, *options)[0] == 0
    code, out, last = inside("fill", "--run_dir", tmp_path / "gpt", "--text", "The [MASK]")
    assert code == 2 and "lit_models.gpt.LitGPT" in last and "lit_models.bert.LitBERT" in last and out == ""
    code, out, last = inside("generate", "--ckpt_path", checkpoint, "--prompt", "The")
    assert code == 2 and "lit_models.bert.LitBERT, where one of lit_models.gpt.LitGPT or" in last and out == ""
