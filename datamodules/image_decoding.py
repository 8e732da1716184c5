"""Image files to arrays of red, green and blue."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageOps, UnidentifiedImageError

from datamodules.sources.base import readable

DECODING = 1  # raise it when a file is decoded otherwise
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")  # not EPS: for it, Pillow starts a program

IN_ARCHIVE = re.compile(r"(.*\.tar)\?offset=(\d+)&size=(\d+)", re.DOTALL)


def decode(image: Mapping[str, bytes | str | None], where: str) -> UInt8[np.ndarray, "H W 3"]:
    """The pixels of an image file, upright as its EXIF data say; of several frames the first.

    Grey is three equal channels, palettes are looked up, 16 bits keep the upper 8 (256 becomes 1), and what is transparent
    lies over white.

    Args:
        image: the file's `bytes` or, where they are null, its `path`, which may be a place in a .tar (`in_archive`).
        where: what names the image in errors.

    Raises:
        FileNotFoundError: there is no file at `path`.
        ValueError: the file cannot be read, is empty, broken or no image, has more pixels than twice Pillow's
            MAX_IMAGE_PIXELS, or has pixels of 32 bits.
    """
    content = _content(image, where)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            opened.load()
            return _rgb(_upright(opened))
    except UnidentifiedImageError:
        kinds = ", ".join(FORMATS)
        raise ValueError(f"{where} is no image: it begins with {content[:8]!r}, which is none of {kinds}") from None
    except Exception as error:  # each format has errors of its own
        raise ValueError(f"{where} cannot be decoded: {str(error).strip() or type(error).__name__}") from None


def in_archive(archive: str, offset: int, size: int) -> str:
    """The path of a part of a file, as `decode` reads it."""
    return f"{archive}?offset={offset}&size={size}"


def _content(image: Mapping[str, bytes | str | None], where: str) -> bytes:
    content, path = image["bytes"], image["path"]
    if content is None and path is not None:
        part = IN_ARCHIVE.fullmatch(str(path))
        file = Path(part[1] if part else str(path))
        with readable(file), file.open("rb") as opened:
            opened.seek(int(part[2]) if part else 0)
            content = opened.read(int(part[3]) if part else -1)
    if content is None:
        raise ValueError(f"{where} has no image: neither bytes nor a path")
    if not content:
        raise ValueError(f"{where} is empty (0 bytes): an image was expected")
    assert isinstance(content, bytes)
    return content


def _upright(image: Image.Image) -> Image.Image:
    with contextlib.suppress(Exception):  # broken EXIF data are no broken image
        return ImageOps.exif_transpose(image)
    return image


def _rgb(image: Image.Image) -> UInt8[np.ndarray, "H W 3"]:
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels have 32 bits (mode {image.mode}), whose range is not known; save it with 8 or 16 bits")
    if image.mode.startswith("I;16"):
        grey = np.asarray(image)
        upper = (grey >> 8).astype(np.uint8)
        if (hidden := image.info.get("transparency")) is not None:
            upper[grey == hidden] = 255
        return np.repeat(upper[:, :, None], 3, axis=2)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.array(image.convert("RGB"))
