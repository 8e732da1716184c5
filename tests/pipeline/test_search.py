"""`search` and `classify`: ranks, probabilities, and what is refused."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest

from datamodules.image_text_pairs import Texts
from datamodules.sources.icons import draw, icons_of
from lit_models.nn.clip import CLIP
from pipeline.image_index import image_features
from pipeline.trained import Trained, load_trained
from pipeline.zero_shot import class_weights
from tests.reading import read_csv

ROW = re.compile(r"^│ +(\d+) │ (-?\d\.\d{4}) │ ", re.MULTILINE)


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


def texts_of(trained: Trained[CLIP]) -> Texts:
    return Texts(trained.tokenizer, trained.assets["templates"], trained.net.max_seq_len)


def prompts_of(trained: Trained[CLIP], *names: str) -> list[list[str]]:
    """Each name in all the checkpoint's templates."""
    return [[template.replace("{}", name) for template in trained.assets["templates"]] for name in names]


def test_search(clip_run: Path, icons: Path, trained: Trained[CLIP], inside: Any, tmp_path: Path) -> None:
    out = tmp_path / "sheets/sheet.png"
    options = ["--run_dir", clip_run, "--ckpt_path", "last", "--query", "arrow down", "--top_k", 5, "--device", "cpu"]
    code, said, last = inside("search", *options, "--images", icons, "--out", out)
    assert code == 0 and "13 images: 13 computed now, 0 known" in said and str(out) in said, last
    rows = ROW.findall(said)
    scores = [float(score) for _, score in rows]
    assert [int(rank) for rank, _ in rows] == [1, 2, 3, 4, 5] and scores == sorted(scores, reverse=True)
    files, features = image_features(trained, str(icons), 4)
    prompts = prompts_of(trained, "arrow down")
    assert len(prompts[0]) > 1
    wanted = class_weights(trained.net, texts_of(trained), prompts)[0]
    assert scores == pytest.approx((features @ wanted).sort(descending=True).values[:5].tolist(), abs=1e-4)
    assert matplotlib.image.imread(out)[..., :3].std() > 0.05
    assert Path(files[0]).is_absolute() and any("/more/" in file for file in files)


def test_classify(clip_run: Path, icons: Path, trained: Trained[CLIP], inside: Any, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    options = ["--run_dir", clip_run, "--ckpt_path", "last", "--images", icons, "--device", "cpu", "--out", out]
    code, said, last = inside("classify", *options, "--classes", "arrow down, home,credit card")
    assert code == 0 and str(out) in said, last
    rows = read_csv(out)
    names = ["arrow down", "home", "credit card"]
    weights = class_weights(trained.net, texts_of(trained), prompts_of(trained, *names))
    files, features = image_features(trained, str(icons), 256)
    assert [row["image"] for row in rows] == files
    expected = trained.net.logits(features, weights).softmax(-1).max(-1)
    assert [float(row["probability"]) for row in rows] == pytest.approx(expected.values.tolist(), abs=1e-5)
    assert [row["class"] for row in rows] == [names[i] for i in expected.indices.tolist()]
    counts = expected.indices.bincount(minlength=3).tolist()
    assert all(f"{name}: {count}" in said for name, count in zip(names, counts, strict=True))  # also where it is 0

    listed = tmp_path / "names.txt"
    listed.write_text("arrow down\n\nhome\ncredit card\n")
    assert inside("classify", *options, "--classes", listed)[0] == 0
    assert read_csv(out) == rows
    described = tmp_path / "names.json"
    described.write_text(json.dumps({"qqxzzjk": "arrow down", "house": ["home"], "card": ["credit card", "money"]}))
    code, said, _ = inside("classify", *options, "--classes", described)
    assert code == 0 and "hardly knew" not in said  # a described class's name is never encoded
    prompts = [["arrow down"], ["home"], ["credit card", "money"]]  # in no template
    logits = trained.net.logits(features, class_weights(trained.net, texts_of(trained), prompts))
    assert [float(row["probability"]) for row in read_csv(out)] == pytest.approx(logits.softmax(-1).amax(-1).tolist(), abs=1e-5)
    code, said, _ = inside("classify", *options, "--classes", "home,qqxzzjk")
    assert code == 0 and "hardly knew the words of qqxzzjk:" in said
    templates = tmp_path / "templates.txt"
    templates.write_text("a {} icon\nicon of a {}\n")
    code, _, _ = inside("classify", *options, "--classes", listed, "--templates", templates)
    assert code == 0 and read_csv(out) != rows


def test_where_results_go(clip_run: Path, icons: Path, inside: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run folder, or without one the folder one is in; 50 rows are shown, and all are written."""
    run_dir = shutil.copytree(clip_run, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for i in range(39):
        shutil.copy(icons / "more" / os.listdir(icons / "more")[0], icons / f"copy{i}.png")
    for model, folder in ((["--run_dir", run_dir], run_dir), (["--ckpt_path", run_dir / "checkpoints/last.ckpt"], Path())):
        options = [*model, "--images", icons, "--device", "cpu"]
        code, said, last = inside("search", *options, "--query", "home", "--top_k", 2)
        sheet = folder / ("figures/search.png" if folder.name else "search.png")
        assert code == 0 and sheet.read_bytes().startswith(b"\x89PNG") and f"contact sheet: {sheet}\n" in said, last
        code, said, last = inside("classify", *options, "--classes", "home," + "house " * 30)
        assert code == 0 and len(re.findall(r" │ +\d\.\d{4} │\n", said)) == 50 and "\nand 2 more\n" in said, last
        assert len(read_csv(folder / "classification.csv")) == 52
        prompts = len(load_trained(CLIP, "lit_models.clip.LitCLIP", str(run_dir), "last", "cpu").assets["templates"])
        assert f"{prompts} prompts are longer than the model's context of 24 tokens" in said


@pytest.mark.parametrize(
    "files,options,message",
    [
        ({}, ["--classes", "cat"], "has 1 class(es): at least two"),
        ({}, ["--classes", "cat,dog,cat"], "names 'cat' twice"),
        ({}, ["--classes", "cat,,dog"], "has an empty name"),
        ({"c.txt": ""}, ["--classes", "c.txt"], "has 0 class(es)"),
        ({}, ["--classes", "none.txt"], "none.txt does not exist"),
        ({"c.json": "{"}, ["--classes", "c.json"], "c.json is not JSON"),
        ({"c.json": '{"a": "x", "b": "y", "a": "z"}'}, ["--classes", "c.json"], "c.json names 'a' twice"),
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
