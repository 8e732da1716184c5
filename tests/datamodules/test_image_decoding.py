"""Files are written by Pillow, and by hand where it writes none of the kind."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from datamodules.image_decoding import decode

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(content):
    pixels = decode({"bytes": content, "path": None}, "train.parquet, row 12")
    assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.flags.writeable
    return pixels


def png(bits, kind, rows, *chunks):
    """A PNG written by hand: bits a sample, its colour type, rows of bytes, and chunks before the pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    size = struct.pack(">IIBBBBB", len(rows[0]) * 8 // bits // {0: 1, 2: 3}[kind], len(rows), bits, kind, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in ((b"IHDR", size), *chunks, (b"IDAT", pixels), (b"IEND", b"")))


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, WHITE), ("L", 7, (7, 7, 7)), ("LA", (7, 255), (7, 7, 7)), ("RGB", (1, 2, 3), (1, 2, 3)),
        ("RGBA", (1, 2, 3, 255), (1, 2, 3)), ("RGBA", (255, 0, 0, 0), WHITE), ("LA", (0, 0), WHITE),
        ("RGBA", (255, 0, 0, 51), (255, 204, 204)), ("I;16", 255, (0, 0, 0)), ("I;16", 256, (1, 1, 1)),
        ("I;16", 65535, WHITE),
    ],
)  # fmt: skip
def test_every_mode_becomes_three_channels(mode, colour, expected):
    pixels = decoded(encoded(Image.new(mode, (4, 2), colour)))
    assert pixels.shape == (2, 4, 3) and (pixels == expected).all()


def test_a_palette_is_looked_up():
    image = Image.new("P", (2, 1))
    image.putpalette([*GREEN, *RED])
    image.putpixel((0, 0), 1)
    for kind in ("PNG", "GIF", "BMP"):
        assert decoded(encoded(image, kind)).tolist() == [[list(RED), list(GREEN)]]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_entry_of_a_palette_is_white(kind):
    image = Image.new("P", (2, 1))
    image.putpalette([*GREEN, *RED])
    image.putpixel((0, 0), 1)
    assert decoded(encoded(image, kind, transparency=1)).tolist() == [[list(WHITE), list(GREEN)]]


def test_a_transparent_colour_is_white():
    assert decoded(encoded(Image.new("RGB", (1, 1), RED), transparency=RED)).tolist() == [[list(WHITE)]]
    assert decoded(encoded(Image.new("L", (1, 1), 7), transparency=7)).tolist() == [[list(WHITE)]]
    content = png(16, 0, [bytes([1, 0, 1, 1])], (b"tRNS", bytes([1, 0])))  # 256 is transparent, 257 is not
    assert decoded(content).tolist() == [[list(WHITE), [1, 1, 1]]]


def test_cmyk_as_jpeg_and_tiff():
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert (decoded(encoded(image, "TIFF")) == RED).all()
    assert np.abs(decoded(encoded(image, "JPEG", quality=100)).astype(int) - RED).max() <= 2


def test_sixteen_bits_in_both_orders_of_bytes():
    values = np.array([[255, 256, 257, 65535]], dtype=np.uint16)
    little, big = Image.fromarray(values), Image.frombytes("I;16B", (4, 1), values.astype(">u2").tobytes())
    for content in (encoded(little, "TIFF"), encoded(big, "TIFF"), encoded(little)):
        assert decoded(content)[0, :, 1].tolist() == [0, 1, 1, 255]
    assert decoded(png(16, 2, [bytes([1, 0, 0, 255, 255, 255])])).tolist() == [[[1, 0, 255]]]


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_of_32_bits_are_refused(mode):
    with pytest.raises(ValueError, match=rf"row 12 cannot be decoded: its pixels have 32 bits \(mode {mode}\).*8 or 16 bits"):
        decoded(encoded(Image.new(mode, (2, 2)), "TIFF"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(kind):
    image = Image.new("RGB", (64, 32), "white")
    image.paste(RED, (0, 0, 32, 32))  # the left half
    exif = Image.Exif()
    for orientation, shape, place in [(1, (32, 64, 3), (16, 8)), (6, (64, 32, 3), (8, 16)), (3, (32, 64, 3), (16, 56))]:
        exif[0x0112] = orientation
        pixels = decoded(encoded(image, kind, exif=exif))
        assert pixels.shape == shape and np.abs(pixels[place].astype(int) - RED).max() < 10


def test_orientation_6_of_16_bits_gives_2x4_from_4x2():
    exif = Image.Exif()
    exif[0x0112] = 6
    values = np.array([[256, 512, 768, 1024], [0, 0, 0, 0]], dtype=np.uint16)
    assert decoded(encoded(Image.fromarray(values), exif=exif))[:, :, 0].tolist() == [[0, 1], [0, 2], [0, 3], [0, 4]]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_data_are_no_broken_image():
    image = Image.new("RGB", (8, 8), "white")
    assert (decoded(encoded(image, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01")) == 255).all()
    assert (decoded(encoded(image, "JPEG", exif=b"Exif\0\0no TIFF at all")) == 255).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_several_frames_the_first(kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN)]
    options = {"lossless": True} if kind == "WEBP" else {}
    assert (decoded(encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)) == RED).all()


def test_what_is_no_image_says_how_it_begins(tmp_path):
    path = tmp_path / "notes.jpg"
    path.write_text("hello world")
    with pytest.raises(ValueError, match=r"notes\.jpg is no image: it begins with b'hello wo', which is none of PNG, JPEG"):
        decode({"bytes": None, "path": str(path)}, str(path))
    with pytest.raises(ValueError, match="row 12 is no image"):  # Pillow would start a program for it
        decoded(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n")


def test_nothing_empty_and_missing(tmp_path):
    path = tmp_path / "empty.jpg"
    path.touch()
    with pytest.raises(ValueError, match=r"empty\.jpg is empty \(0 bytes\): an image was expected"):
        decode({"bytes": None, "path": str(path)}, str(path))
    with pytest.raises(ValueError, match="row 12 is empty"):
        decoded(b"")
    with pytest.raises(ValueError, match="row 3 has no image: neither bytes nor a path"):
        decode({"bytes": None, "path": None}, "train, row 3")
    with pytest.raises(FileNotFoundError, match=r"none\.jpg does not exist"):
        decode({"bytes": None, "path": str(tmp_path / "none.jpg")}, "train, row 3")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        decode({"bytes": None, "path": str(tmp_path)}, "train, row 3")


def noise():
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF"])
def test_a_truncated_file_is_never_a_picture(kind):
    content = encoded(noise(), kind)
    for size in (len(content) - 60, len(content) // 2, 30):
        with pytest.raises(ValueError, match="^train.parquet, row 12 (cannot be decoded: |is no image: )") as error:
            decoded(content[:size])
        assert "\n" not in str(error.value) and " object at 0x" not in str(error.value)


def test_more_pixels_than_pillow_takes_are_refused(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(Image.new("L", (21, 10)))
    with pytest.raises(ValueError, match=r"row 12 cannot be decoded: Image size \(210 pixels\) exceeds limit of 200 pixels"):
        decoded(content)


class Files:
    """What a loader's worker decodes."""

    def __init__(self, *paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return decode({"bytes": None, "path": self.paths[i]}, self.paths[i])


def test_a_worker_names_the_file(tmp_path):
    good, bad = tmp_path / "good.jpg", tmp_path / "bad.jpg"
    good.write_bytes(encoded(noise(), "JPEG"))
    bad.write_bytes(encoded(noise(), "JPEG")[:-60])
    loader = DataLoader(Files(str(good), str(bad)), batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(ValueError, match=r"bad\.jpg cannot be decoded: .*truncated"):
        for pixels in loader:
            assert pixels.shape == (32, 32, 3)
