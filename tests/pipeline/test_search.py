"""`search` and `classify`: ranks, probabilities, the index of features, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from PIL import Image

from datamodules.image_text_pairs import Texts
from datamodules.sources.icons import draw, icons_of
from datamodules.token_cache import default_cache_dir
from lit_models.nn.clip import CLIP
from pipeline.image_index import image_features
from pipeline.trained import Trained, load_trained
from pipeline.zero_shot import class_weights, hardly_known, read_classes
from tests.reading import read_csv


@pytest.fixture
def trained(clip_run: Path) -> Trained[CLIP]:
    return load_trained(CLIP, "lit_models.clip.LitCLIP", str(clip_run), "last", "cpu")


@pytest.fixture
def icons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve icons in a folder and one below it, and a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "icons"
    (folder / "more").mkdir(parents=True)
    for i, icon in enumerate(list(icons_of("elusive"))[:13]):
        image = draw(icon, 48)
        assert image is not None
        image.convert("RGB").save(folder / ("more" if i == 12 else "") / f"{icon.name}.png")
    return folder


def test_class_weights_are_a_linear_classifiers(trained: Trained[CLIP]) -> None:
    texts = Texts(trained.tokenizer, ["{}"], trained.net.max_seq_len)
    prompts = [["arrow down"], ["home", "a house"], ["credit card"]]
    weights = class_weights(trained.net, texts, prompts)
    linear = torch.nn.Linear(weights.shape[1], 3, bias=False)
    with torch.no_grad():
        linear.weight.copy_(trained.net.scale * weights)
        features = trained.net.encode_image(torch.randn(5, 3, 32, 32))
        torch.testing.assert_close(linear(features), trained.net.logits(features, weights), rtol=0, atol=1e-5)
        parts = trained.net.encode_text(texts(prompts[1]))
    torch.testing.assert_close(weights[1], torch.nn.functional.normalize(parts.mean(0), dim=0))
    assert not torch.allclose(weights[1], parts[0])


def test_search(clip_run: Path, icons: Path, trained: Trained[CLIP], inside: Any, tmp_path: Path) -> None:
    out = tmp_path / "sheets/sheet.png"
    options = ["--run_dir", clip_run, "--ckpt_path", "last", "--query", "arrow down", "--top_k", 5, "--device", "cpu"]
    code, said, last = inside("search", *options, "--images", icons, "--out", out)
    assert code == 0 and "13 images: 13 computed now, 0 known" in said and str(out) in said, last
    scores = [
        float(line.split("│")[1]) for line in said.splitlines() if ".png" in line and "│" in line and "." in line.split("│")[1]
    ]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True)
    files, features = image_features(trained, str(icons), 4)
    wanted = class_weights(trained.net, Texts(trained.tokenizer, ["{}"], 24), [["arrow down"]])[0]
    assert scores == pytest.approx((features @ wanted).sort(descending=True).values[:5].tolist(), abs=1e-4)
    assert matplotlib.image.imread(out)[..., :3].std() > 0.05
    assert Path(files[0]).is_absolute() and any("/more/" in file for file in files)


def test_the_index_computes_what_is_new_or_changed(
    icons: Path, trained: Trained[CLIP], capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        return capsys.readouterr().out.strip()

    files, features = image_features(trained, str(icons), 5)
    assert said().endswith("13 computed now, 0 known from before")
    again, kept = image_features(trained, str(icons / "*.png"), 5)
    assert said().startswith("12 images: 0 computed now, 12 known") and again == [f for f in files if "/more/" not in f]
    assert torch.equal(kept, features[[files.index(file) for file in again]])
    Image.new("RGB", (9, 9), "white").save(files[3])
    os.utime(files[3], ns=(1, 1))
    _, changed = image_features(trained, str(icons), 5)
    assert said().startswith("13 images: 1 computed now") and not torch.allclose(changed[3], features[3])
    assert torch.equal(changed[4:], features[4:])
    (path,) = (default_cache_dir() / "image_index").iterdir()
    path.write_bytes(path.read_bytes()[:200])  # a damaged index is made anew
    _, rebuilt = image_features(trained, str(icons), 5)
    assert said().startswith("13 images: 13 computed now") and torch.allclose(rebuilt, changed, atol=1e-6)
    with np.load(path, allow_pickle=False) as arrays:
        assert len(arrays["features"]) == 13


def test_classify(clip_run: Path, icons: Path, trained: Trained[CLIP], inside: Any, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    options = ["--run_dir", clip_run, "--ckpt_path", "last", "--images", icons, "--device", "cpu", "--out", out]
    code, said, last = inside("classify", *options, "--classes", "arrow down, home,credit card")
    assert code == 0 and str(out) in said, last
    rows = read_csv(out)
    assert [Path(row["image"]).name for row in rows] == sorted(Path(row["image"]).name for row in rows) or len(rows) == 13
    assert {row["class"] for row in rows} <= {"arrow down", "home", "credit card"}
    weights = class_weights(trained.net, Texts(trained.tokenizer, ["{}"], 24), [["arrow down"], ["home"], ["credit card"]])
    _, features = image_features(trained, str(icons), 256)
    expected = trained.net.logits(features, weights).softmax(-1).amax(-1)
    assert [float(row["probability"]) for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)

    names = tmp_path / "names.txt"
    names.write_text("arrow down\n\nhome\ncredit card\n")
    assert inside("classify", *options, "--classes", names)[0] == 0
    assert read_csv(out) == rows
    described = tmp_path / "names.json"
    described.write_text(json.dumps({"down": "arrow down", "house": ["home"], "card": ["credit card", "money"]}))
    assert inside("classify", *options, "--classes", described)[0] == 0
    assert {row["class"] for row in read_csv(out)} <= {"down", "house", "card"}
    templates = tmp_path / "templates.txt"
    templates.write_text("a {} icon\nicon of a {}\n")
    code, _, _ = inside("classify", *options, "--classes", names, "--templates", templates)
    assert code == 0 and read_csv(out) != rows


def test_classes_and_their_prompts(tmp_path: Path) -> None:
    assert read_classes("cat,  big   dog", ["{}", "a {}."]) == {"cat": ["cat", "a cat."], "big dog": ["big dog", "a big dog."]}
    path = tmp_path / "classes.json"
    path.write_text(json.dumps({"cat": "it purrs {}", "dog": ["it barks", "wags"]}))
    assert read_classes(str(path), ["{}", "a {}."]) == {"cat": ["it purrs {}"], "dog": ["it barks", "wags"]}


def test_names_that_training_hardly_knew(trained: Trained[CLIP]) -> None:
    texts = Texts(trained.tokenizer, ["{}"], 24)
    assert hardly_known(texts, ["arrow down", "Zürichseeschifffahrt", "credit card", "qqxzzjk"]) == [
        "Zürichseeschifffahrt",
        "qqxzzjk",
    ]


@pytest.mark.parametrize(
    "files,options,message",
    [
        ({}, ["--classes", "cat"], "has 1 class(es): at least two"),
        ({}, ["--classes", "cat,dog,cat"], "names 'cat' twice"),
        ({}, ["--classes", "cat,,dog"], "has an empty name"),
        ({"c.txt": ""}, ["--classes", "c.txt"], "has 0 class(es)"),
        ({}, ["--classes", "none.txt"], "none.txt does not exist"),
        ({"c.json": "{"}, ["--classes", "c.json"], "c.json is not JSON"),
        ({"c.json": "[1]"}, ["--classes", "c.json"], "c.json holds list"),
        ({"c.json": '{"a": "x", "b": []}'}, ["--classes", "c.json"], "the class 'b' has '[]'"),
        ({"t.txt": "a photo"}, ["--classes", "a,b", "--templates", "t.txt"], "t.txt: the template 'a photo' must have one {}"),
        ({}, ["--classes", "a,b", "--images", "nothing"], "nothing does not exist"),
        ({"broken.png": "no"}, ["--classes", "a,b", "--images", "broken.png"], "broken.png is no image"),
        ({}, ["--classes", "a,b", "--batch_size", "0"], "batch_size is 0"),
    ],
)
def test_bad_input(
    files: dict[str, str], options: list[str], message: str, clip_run: Path, icons: Path, inside: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name, content in files.items():
        Path(name).write_text(content)
    code, _, last = inside("classify", "--run_dir", clip_run, "--images", icons, *options)
    assert code == 2 and message in last, last
    assert not (tmp_path / "classification.csv").exists()


def test_bad_queries(clip_run: Path, icons: Path, inside: Any, small: list[str], tmp_path: Path) -> None:
    options = ["--run_dir", clip_run, "--images", icons, "--out", tmp_path / "sheet.png"]
    for more, message in ((["--query", "  "], "the query is empty"), (["--query", "x", "--top_k", "0"], "top_k is 0")):
        code, _, last = inside("search", *options, *more)
        assert code == 2 and message in last
    code, said, _ = inside("search", *options, "--query", "very long words " * 40, "--top_k", 50)
    assert code == 0 and "longer than the model's context of 24 tokens" in said
    assert inside("fit", *small, "--run_dir", tmp_path / "gpt")[0] == 0
    code, _, last = inside("search", "--run_dir", tmp_path / "gpt", "--images", icons, "--query", "x")
    assert code == 2 and "is a checkpoint of lit_models.gpt.LitGPT, where one of lit_models.clip.LitCLIP is needed" in last
