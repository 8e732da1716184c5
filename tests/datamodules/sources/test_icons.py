"""Icons and their names: which are where, what a caption is, how they are drawn."""

import importlib.metadata
import pickle
import subprocess
import sys
from collections import Counter

import datasets
import numpy as np
import pytest
from PIL import Image

from datamodules.image_decoding import decode
from datamodules.sources.icons import Icon, IconClasses, Icons, draw, icons_of

GLYPHS = {"material": 7367, "phosphor": 4470, "remix": 2268, "fontawesome": 1400, "codicons": 563, "elusive": 303}


@pytest.fixture(scope="module")
def splits() -> datasets.DatasetDict:
    return Icons().load()


def test_sizes_groups_and_columns(splits: datasets.DatasetDict) -> None:
    assert sum(map(len, splits.values())) == sum(GLYPHS.values())
    assert Counter(splits["validation"]["group"]) == {"fontawesome": 1400, "seen": 423}
    assert Counter(splits["test"]["group"]) == {"codicons": 563, "elusive": 303, "seen": 423}
    training = Counter(splits["train"]["group"])
    assert set(training) == {"material", "phosphor", "remix"} and training.total() == 14105 - 846
    assert (
        splits["train"].column_names == ["image", "captions", "group", "row"] and not splits["train"].features["image"].decode
    )
    rows = [row for split in splits.values() for row in split["row"]]
    assert len(rows) == len(set(rows))


def test_a_held_out_icon_of_a_training_font_has_a_caption_that_training_knows(splits: datasets.DatasetDict) -> None:
    known = {captions[0] for captions in splits["train"]["captions"]}
    assert len(known) == 6731  # as many as with the held-out icons
    for split in ("validation", "test"):
        seen = [c[0] for c, group in zip(splits[split]["captions"], splits[split]["group"], strict=True) if group == "seen"]
        assert len(seen) == 423 and set(seen) <= known
    for group, split, number in (("fontawesome", "validation", 420), ("codicons", "test", 168), ("elusive", "test", 144)):
        rows = zip(splits[split]["captions"], splits[split]["group"], strict=True)
        assert sum(captions[0] in known for captions, own in rows if own == group) == number


@pytest.mark.parametrize(
    "name,caption",
    [
        ("account-box-outline", "account box"),
        ("a11y", "a11y"),
        ("arrow_circle_down", "arrow circle down"),
        ("Fill-Drip", "drip"),
    ],
)
def test_a_caption_has_no_words_of_style(name: str, caption: str) -> None:
    assert Icon("material", name, 0).caption == caption


def test_an_icon_fills_its_tile_and_is_that_of_its_name() -> None:
    by_name = {icon.name: icon for icon in icons_of("fontawesome")}
    square, minus = (np.asarray(draw(by_name[name], 32)) for name in ("square", "minus"))
    for pixels in (square, minus):
        assert pixels.shape == (32, 32) and pixels.dtype == np.uint8 and pixels.max() == 255 and pixels[0].max() == 0
        (rows, columns) = np.nonzero(pixels > 64)
        assert max(np.ptp(rows), np.ptp(columns)) + 1 in (25, 26) and abs(rows.mean() + columns.mean() - 31) < 1
    assert (square > 128).mean() > 0.5 and np.ptp(np.nonzero(minus > 64)[0]) < 8  # a full square, a flat bar


def test_images_are_what_is_drawn(splits: datasets.DatasetDict) -> None:
    row = splits["test"][500]
    font, _, name = row["row"].partition(" ")
    (icon,) = (icon for icon in icons_of(font) if icon.name == name)
    image = draw(icon, 32)
    assert isinstance(image, Image.Image) and row["captions"] == [icon.caption]
    assert (decode(row["image"], row["row"]) == np.asarray(image)[:, :, None]).all()


def test_classes_are_the_captions_that_training_knows() -> None:
    made = IconClasses(train=["elusive"], validation=["codicons"], test=["fontawesome_brands"], size=16).load()
    known = set(made["train"]["label"])
    assert {split: set(rows["label"]) <= known for split, rows in made.items()} == dict.fromkeys(made, True)
    assert made["train"].column_names == ["image", "label", "row"]
    assert len(made["validation"]) > 20 and IconClasses().fingerprint() != Icons().fingerprint()


def test_the_fingerprint_follows_the_options() -> None:
    others = [Icons(size=24), Icons(holdout=0.1), Icons(validation=["elusive"], test=["codicons"]), Icons(train=["remix"])]
    assert len({source.fingerprint() for source in (Icons(), *others)}) == 5
    again = pickle.loads(pickle.dumps(Icons()))  # noqa: S301
    assert again.fingerprint() == Icons().fingerprint() and len(pickle.dumps(again)) < 2000


@pytest.mark.parametrize(
    "options,message",
    [
        ({"train": ["materials"]}, "'materials' is none of material, .*did you mean 'material'"),
        ({"validation": ["remix"]}, "'remix' is named twice: a held-out font"),
        ({"test": []}, "there are no test fonts"),
        ({"size": 4}, "size 4 is below 8"),
        ({"holdout": 1.0}, "holdout 1.0 must lie between 0 and 1"),
    ],
)
def test_what_is_refused(options: dict, message: str) -> None:
    for source in (Icons, IconClasses):
        with pytest.raises(ValueError, match=message):
            source(**options)


def test_qtawesome_is_not_imported() -> None:
    read = "from datamodules.sources.icons import icons_of; list(icons_of('elusive'))"
    code = f"import sys; {read}; sys.exit('qtawesome' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_without_qtawesome_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    for call in (Icons().load, Icons().fingerprint):
        with pytest.raises(FileNotFoundError, match=r'the icons come with qtawesome, .*pip install -e ".\[samples\]"'):
            call()
