"""Icons and their names, drawn from the fonts inside the qtawesome wheel: real image-text pairs without a download."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from datamodules.sources.base import ImageSource, ImageTextSource, Source, check_fraction, digest
from datamodules.sources.image_base import ImageRows, encoded_images, labelled, to_image_splits
from datamodules.sources.labels import nearest
from datamodules.sources.packages import installed_file

if TYPE_CHECKING:
    import datasets
    from PIL.Image import Image

READING = 1  # raise it when images, captions or splits change
FILES = {
    "material": ("materialdesignicons6-webfont-6.9.96.ttf", "materialdesignicons6-webfont-charmap-6.9.96.json"),
    "phosphor": ("phosphor-1.3.0.ttf", "phosphor-charmap-1.3.0.json"),
    "remix": ("remixicon-2.5.0.ttf", "remixicon-charmap-2.5.0.json"),
    "fontawesome": ("fontawesome6-solid-webfont-6.7.2.ttf", "fontawesome6-solid-webfont-charmap-6.7.2.json"),
    "fontawesome_regular": ("fontawesome6-regular-webfont-6.7.2.ttf", "fontawesome6-regular-webfont-charmap-6.7.2.json"),
    "fontawesome_brands": ("fontawesome6-brands-webfont-6.7.2.ttf", "fontawesome6-brands-webfont-charmap-6.7.2.json"),
    "codicons": ("codicon-0.0.36.ttf", "codicon-charmap-0.0.36.json"),
    "elusive": ("elusiveicons-webfont-2.0.ttf", "elusiveicons-webfont-charmap-2.0.json"),
}
STYLES = {"outline", "fill", "line", "bold", "light", "thin", "duotone", "sharp", "variant"}
SUPERSAMPLE, MARGIN = 4, 0.08
SEEN = "seen"


class Icon(NamedTuple):
    font: str
    name: str  # in the font, "account-box-outline"
    codepoint: int

    @property
    def caption(self) -> str:
        """The name's words, without those of its style: what the icon shows, not how it is drawn."""
        return " ".join(word for word in re.split(r"[-_ ]+", self.name.lower()) if word not in STYLES)


class _Fonts:
    """Which icons are in which split.

    A share `holdout` of the training fonts' icons, chosen by their digest among those whose caption another training icon has
    too, goes to validation and test, half each, as the group "seen"; the other groups are the fonts.
    """

    def __init__(self, train: list[str], validation: list[str], test: list[str], size: int, holdout: float) -> None:
        check_fraction("holdout", holdout)
        if size < 8:
            raise ValueError(f"size {size} is below 8 pixels")
        self.fonts = {"train": train, "validation": validation, "test": test}
        for split, names in self.fonts.items():
            for name in names:
                if name not in FILES:
                    raise ValueError(f"the font {name!r} is none of {', '.join(FILES)}{nearest(name, FILES)}")
                if sum(fonts.count(name) for fonts in self.fonts.values()) > 1:
                    raise ValueError(f"the font {name!r} is named twice: a held-out font is none that is trained on")
            if not names:
                raise ValueError(f"there are no {split} fonts: name at least one of {', '.join(FILES)}")
        self.size, self.holdout = size, holdout

    @cached_property
    def splits(self) -> dict[str, list[tuple[str, Icon]]]:
        """(group, icon) of each split; training in the fonts' order, the others in that of digests."""
        icons = [icon for font in self.fonts["train"] for icon in icons_of(font)]
        left = Counter(icon.caption for icon in icons)
        held: list[Icon] = []
        for icon in sorted(icons, key=_digest):
            if len(held) < round(self.holdout * len(icons)) and left[icon.caption] > 1:
                left[icon.caption] -= 1
                held.append(icon)
        kept = set(icons) - set(held)
        made = {"train": [(icon.font, icon) for icon in icons if icon in kept]}
        for i, split in enumerate(("validation", "test")):
            own = [(SEEN, icon) for icon in held[i::2]]
            own += [(font, icon) for font in self.fonts[split] for icon in icons_of(font)]
            made[split] = sorted(own, key=lambda pair: _digest(pair[1]))  # so that the first ones are of all groups
        return made

    def drawn(self) -> dict[str, list[tuple[str, Icon, Image]]]:
        """(group, icon, image) of each split; glyphs without ink are left out."""
        made = {}
        for split, icons in self.splits.items():
            images = ((group, icon, draw(icon, self.size)) for group, icon in icons)
            made[split] = [(group, icon, image) for group, icon, image in images if image is not None]
        return made

    def fingerprint(self) -> str:
        names = dict.fromkeys(name for fonts in self.fonts.values() for name in fonts)
        return digest("icons", READING, self.fonts, self.size, self.holdout, *(file for name in names for file in files(name)))


class _FromFonts(Source):
    def __init__(
        self, train: list[str] = ["material", "phosphor", "remix"], validation: list[str] = ["fontawesome"],  # noqa: B006
        test: list[str] = ["codicons", "elusive"], size: int = 32, holdout: float = 0.06,  # noqa: B006
    ) -> None:  # fmt: skip
        self.fonts = _Fonts(train, validation, test, size, holdout)

    def describe(self) -> str:
        return "the icons of the qtawesome package"


@final
class Icons(_FromFonts, ImageTextSource):
    """White icons on black, each with the words of its name; columns `image`, `captions` (one), `group` (the font), `row`.

    Validation and test are fonts that training never sees, a natural shift of style, and, as group "seen", icons held out of
    the training fonts.

    Args:
        train, validation, test: fonts, of material (Material Design), phosphor, remix, fontawesome (solid),
            fontawesome_regular, fontawesome_brands, codicons, elusive.
        size: height and width in pixels.
        holdout: share of the training fonts' icons.

    Source: QtAwesome 1.4.2 (MIT), which carries the fonts under their own free licences.
    """

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: qtawesome is not installed.
        """
        import datasets

        made = {}
        for split, icons in self.fonts.drawn().items():
            images = encoded_images(image for _, _, image in icons)
            columns: dict[str, list[Any]] = {
                "captions": [[icon.caption] for _, icon, _ in icons],
                "group": [group for group, _, _ in icons],
                "row": [f"{icon.font} {icon.name}" for _, icon, _ in icons],
            }
            for name, cells in columns.items():
                images = images.add_column(name, cells)
            made[split] = images
        return datasets.DatasetDict(made)

    def fingerprint(self) -> str:
        return self.fonts.fingerprint()


@final
class IconClasses(_FromFonts, ImageSource):
    """The same icons as classes: a label is a caption of the training split; columns `image`, `label`, `row`.

    Icons of validation and test whose caption training does not know are left out.

    Args:
        train, validation, test, size, holdout: see Icons.
    """

    def load(self) -> datasets.DatasetDict:
        """
        Raises:
            FileNotFoundError: qtawesome is not installed.
        """
        drawn = self.fonts.drawn()
        known = {icon.caption for _, icon, _ in drawn["train"]}
        splits = {}
        for split, icons in drawn.items():
            chosen = [(icon, image) for _, icon, image in icons if icon.caption in known]
            examples = [labelled(f"{icon.font} {icon.name}", icon.caption) for icon, _ in chosen]
            splits[split] = ImageRows(encoded_images(image for _, image in chosen), examples)
        return to_image_splits(splits, val_fraction=0)

    def fingerprint(self) -> str:
        return digest("classes", self.fonts.fingerprint())


def _digest(icon: Icon) -> bytes:
    return hashlib.sha256(f"{icon.font} {icon.name}".encode()).digest()


def files(font: str) -> tuple[Path, Path]:
    """A font and the table of its icons' names; raises FileNotFoundError where qtawesome is not installed."""
    ttf, names = FILES[font]
    return installed_file("qtawesome", ttf, "the icons"), installed_file("qtawesome", names, "the icons")


def icons_of(font: str) -> Iterator[Icon]:
    """A font's icons, one for each codepoint and caption, in the order of its table; names of a style alone are left out."""
    known = set()
    for name, codepoint in json.loads(files(font)[1].read_text(encoding="utf-8")).items():
        icon = Icon(font, name, int(codepoint, 16))
        if icon.caption and (icon.codepoint, icon.caption) not in known:
            known.add((icon.codepoint, icon.caption))
            yield icon


def draw(icon: Icon, size: int) -> Image | None:
    """(size, size) grey: the glyph, white on black, in the middle, its longer side filling the tile; None without ink."""
    from PIL import Image, ImageDraw

    font = _font(icon.font, size * SUPERSAMPLE)
    left, top, right, bottom = (int(edge) for edge in font.getbbox(chr(icon.codepoint)))
    if right <= left or bottom <= top:
        return None
    glyph = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(glyph).text((-left, -top), chr(icon.codepoint), font=font, fill=255)
    if (ink := glyph.getbbox()) is None:
        return None
    glyph = glyph.crop(ink)
    scale = int(size * (1 - 2 * MARGIN)) / max(glyph.size)
    width, height = (max(1, round(length * scale)) for length in glyph.size)
    tile = Image.new("L", (size, size))
    tile.paste(glyph.resize((width, height), Image.Resampling.LANCZOS), ((size - width) // 2, (size - height) // 2))
    return tile


_FONTS: dict[tuple[str, int], Any] = {}


def _font(name: str, pixels: int) -> Any:
    from PIL import ImageFont

    if (name, pixels) not in _FONTS:
        _FONTS[name, pixels] = ImageFont.truetype(str(files(name)[0]), pixels)
    return _FONTS[name, pixels]
