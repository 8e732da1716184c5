"""Classes by their names: the weights of a linear classifier, which prompts they come from, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from datamodules.image_text_pairs import Texts
from datamodules.tokenizers.bpe import BPETokenizer
from lit_models.nn.clip import CLIP
from pipeline.errors import BadInput
from pipeline.zero_shot import class_weights, hardly_known, num_cut, read_classes, read_templates

KNOWN = ["arrow down", "home", "a house", "credit card"]


@pytest.fixture(scope="module")
def texts() -> Texts:
    tokenizer = BPETokenizer(320)
    tokenizer.train([f" {text}" for text in KNOWN] * 2)  # a pair that occurs once is not merged
    return Texts(tokenizer, ["{}"], 12)


def clip(texts: Texts, logit_bias: bool = False) -> CLIP:
    torch.manual_seed(0)
    return CLIP(
        16, texts.tokenizer.vocab_size, texts.tokenizer.eos_id, max_seq_len=texts.max_seq_len, projection_dim=8, patch_size=8,
        image_num_layers=1, image_num_heads=2, image_embed_dim=16, text_num_layers=1, text_num_heads=2, text_embed_dim=16,
        logit_bias=logit_bias,
    ).eval()  # fmt: skip


@pytest.mark.parametrize("logit_bias", [False, True])
@torch.no_grad()
def test_class_weights_are_a_linear_classifiers(texts: Texts, logit_bias: bool) -> None:
    net, prompts = clip(texts, logit_bias), [["arrow down"], ["home", "a house"], ["credit card"]]
    weights = class_weights(net, texts, prompts)
    linear = torch.nn.Linear(weights.shape[1], 3, bias=False)
    linear.weight.copy_(net.scale * weights)
    features = net.encode_image(torch.randn(5, 3, 16, 16))
    expected = net.logits(features, weights)
    assert expected.std() > 0.1
    torch.testing.assert_close(linear(features).softmax(-1), expected.softmax(-1), rtol=0, atol=1e-6)
    bias = net.logit_bias if net.logit_bias is not None else torch.zeros(())
    torch.testing.assert_close(linear(features) + bias, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_class_weights_are_the_means_of_the_prompts(texts: Texts) -> None:
    net = clip(texts)
    weights = class_weights(net, texts, [["credit card"], ["home", "a house"]])
    parts = net.encode_text(texts(["home", "a house"]))
    torch.testing.assert_close(weights[0], net.encode_text(texts(["credit card"]))[0])
    torch.testing.assert_close(weights[1], F.normalize(parts.mean(0), dim=0))
    assert not torch.allclose(weights[1], parts[0])


def test_classes_and_their_prompts(tmp_path: Path) -> None:
    expected = {"cat": ["cat", "a cat."], "big dog": ["big dog", "a big dog."]}
    assert read_classes("cat,  big   dog", ["{}", "a {}."]) == expected
    lines = tmp_path / "classes.txt"
    lines.write_bytes("\ufeffcat\r\n\r\nbig dog\r\n".encode())  # as an editor on Windows writes it
    assert read_classes(str(lines), ["{}", "a {}."]) == expected
    path = tmp_path / "classes.json"
    path.write_text(json.dumps({"cat": "it purrs {}", "dog": ["it barks", "wags"]}))
    assert read_classes(str(path), ["{}", "a {}."]) == {"cat": ["it purrs {}"], "dog": ["it barks", "wags"]}


def test_templates_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "templates.txt"
    path.write_text("a {} icon\n\n icon of a {}\n")
    assert read_templates(str(path)) == ["a {} icon", "icon of a {}"]
    path.write_text("\n")
    with pytest.raises(BadInput, match="templates.txt: templates is empty"):
        read_templates(str(path))


def test_a_class_twice_in_json(tmp_path: Path) -> None:
    path = tmp_path / "classes.json"
    path.write_text('{"cat": "it purrs", "dog": "it barks", "cat": "it sleeps"}')
    with pytest.raises(BadInput, match="classes.json names 'cat' twice"):
        read_classes(str(path), ["{}"])


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes(b"\xff\xfe\x00cat")
    with pytest.raises(BadInput, match="classes.txt cannot be read as UTF-8"):
        read_classes(str(path), ["{}"])


def test_texts_that_training_hardly_knew(texts: Texts) -> None:
    names = {name: [name] for name in ("arrow down", "Zürichseeschifffahrt", "credit card", "qqxzzjk")}
    assert hardly_known(texts, names) == ["Zürichseeschifffahrt", "qqxzzjk"]
    assert hardly_known(texts, {name: [name] for name in ("homezz", "homqx")}) == ["homqx"]  # 3 tokens of 6, 4 of 5 characters
    # the name of a class that is described is never encoded
    assert hardly_known(texts, {"qqxzzjk": ["a house"], "home": ["a house", "qqxzzjk", "zzjkqqx"]}) == ["home"]


def test_prompts_that_are_cut_are_counted(texts: Texts) -> None:
    longest = " ".join(["home"] * (texts.max_seq_len - 1))  # and [EOS]
    assert len(texts([longest])[0]) == texts.max_seq_len
    assert num_cut(texts, [[longest, longest.replace(" ", "\n  ")], ["home"]]) == 0
    assert num_cut(texts, [[f"{longest} home", longest], [f"a {longest}"]]) == 2
