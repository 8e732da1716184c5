import pickle

import pytest

from datamodules.sources.base import cut_characters
from datamodules.sources.files import TextFiles
from datamodules.sources.stdlib import StdlibDocs


@pytest.fixture
def folder(tmp_path):
    """Real prose in three files, one of them in a folder below."""
    texts = StdlibDocs().load()["validation"]["text"]
    (tmp_path / "deep").mkdir()
    for name, text in zip(["b.txt", "a.txt", "deep/c.txt"], texts, strict=False):
        (tmp_path / name).write_text(text)
    (tmp_path / "ignored.md").write_text("# not a text file")
    return tmp_path


def test_one_file_is_cut_as_nanogpt_cuts_it(tmp_path):
    text = "".join(chr(97 + i % 26) for i in range(1_115_394))  # as long as Tiny Shakespeare
    (tmp_path / "input.txt").write_text(text)
    splits = TextFiles(str(tmp_path / "input.txt")).load()
    assert {split: len(rows["text"][0]) for split, rows in splits.items()} == {"train": 1_003_854, "validation": 111_540}
    assert splits["train"]["text"][0] + splits["validation"]["text"][0] == text


def test_a_document_on_the_border_is_cut():
    assert cut_characters(["abcd", "efgh", "ij"], 0.4) == (["abcd", "ef"], ["gh", "ij"])
    assert cut_characters(["x"], 0.1) == ([], ["x"])


def test_files_folders_and_globs_each_file_once_sorted(folder):
    def names(*paths):
        return [str(p.relative_to(folder)) for p in TextFiles([str(folder / p) for p in paths]).files()["train"]]

    assert names("") == names("**/*.txt") == names("deep", "b.txt", "a.txt", "*.txt") == ["a.txt", "b.txt", "deep/c.txt"]
    assert names("ignored.md") == ["ignored.md"]


def test_a_name_with_brackets_is_a_file_before_it_is_a_glob(tmp_path):
    (tmp_path / "a[1].txt").write_text("text")
    assert [p.name for p in TextFiles(str(tmp_path / "a[1].txt")).files()["train"]] == ["a[1].txt"]


def test_own_validation_and_test_files(folder):
    names = {"paths": "a.txt", "val_paths": "b.txt", "test_paths": "deep"}
    splits = TextFiles(**{key: str(folder / name) for key, name in names.items()}).load()
    files = {"train": "a.txt", "validation": "b.txt", "test": "deep/c.txt"}
    assert {s: rows["text"][:] for s, rows in splits.items()} == {s: [(folder / f).read_text()] for s, f in files.items()}


def test_byte_order_mark_and_line_ends(tmp_path):
    (tmp_path / "w.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n\r\n")
    splits = TextFiles(str(tmp_path / "w.txt")).load()
    assert splits["train"]["text"][0] + splits["validation"]["text"][0] == "one\ntwo\nthree\n\n"


@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_empty_file_is_named(folder, content):
    (folder / "empty.txt").write_bytes(content)
    with pytest.raises(ValueError, match=r"empty\.txt is empty"):
        TextFiles(str(folder)).load()


def test_invalid_utf8_names_file_and_byte(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\u00e9 au lait".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8 at byte 3 \(0xe9\)"):
        TextFiles(str(tmp_path / "latin.txt")).load()


@pytest.mark.parametrize("name", ["none.txt", "none/*.txt", "deep/none", "."])
def test_nothing_there_names_the_path(tmp_path, name):
    (tmp_path / "deep").mkdir()
    source = TextFiles(str(tmp_path / name))
    for call in (source.load, source.fingerprint):
        with pytest.raises(FileNotFoundError, match="none" if "none" in name else r"holds no \*\.txt file"):
            call()


def test_a_file_in_two_splits_is_refused(folder):
    with pytest.raises(ValueError, match=r"a\.txt is in both train and validation"):
        TextFiles(str(folder), val_paths=str(folder / "a.txt")).load()


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 10])
def test_val_fraction_out_of_range(fraction):
    with pytest.raises(ValueError, match=rf"val_fraction {fraction} must lie between 0 and 1"):
        TextFiles("x", val_fraction=fraction)


def test_a_short_file_is_kept_and_named(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    source = TextFiles(str(tmp_path / "short.txt"))
    assert [rows["text"][:] for rows in source.load().values()] == [["shor"], ["t"]]
    assert "short.txt" in source.describe()


def test_fingerprint_follows_content_and_options_not_place(folder, tmp_path_factory):
    first = TextFiles(str(folder)).fingerprint()
    copy = tmp_path_factory.mktemp("copy")
    for path in TextFiles(str(folder)).files()["train"]:
        (copy / path.name).write_bytes(path.read_bytes())
    assert TextFiles(str(copy)).fingerprint() == first
    assert TextFiles(str(copy), val_fraction=0.2).fingerprint() != first
    with (copy / "a.txt").open("a") as file:
        file.write("x")
    assert TextFiles(str(copy)).fingerprint() != first


def test_p03_pickles_small(folder):
    assert len(pickle.dumps(TextFiles(str(folder)))) < 1000
