import os
import subprocess
import sys

import pytest

from datamodules.sources.files import TextFiles
from datamodules.sources.hub import HubText
from datamodules.sources.stdlib import StdlibDocs
from datamodules.sources.wikipedia import Wikipedia
from datamodules.tokenizers.base import Tokenizer
from pipeline.tokenize import main, make_source, tokenize


def test_saves_a_tokenizer_and_says_how_to_use_it(tmp_path, capsys):
    out = tmp_path / "deep" / "tok.json"
    main(["tokenize", "--source", "stdlib", "--vocab_size", "600", "--out", str(out)])
    tokenizer = Tokenizer.load(out)
    assert (tokenizer.vocab_size, tokenizer.eos_id) == (600, 5)
    printed = capsys.readouterr().out
    splits = StdlibDocs().load()
    text = splits["validation"]["text"][:]
    rate = sum(len(t.encode()) for t in text) / sum(len(tokenizer.encode(t)) for t in text)
    assert f" {rate:.3f} " in printed and rate > 2
    assert f"{len(splits['train'])} train, {len(text)} validation" in printed
    assert f"--data.init_args.tokenizer.init_args.path {out}\n" in printed


@pytest.mark.parametrize(("kind", "size"), [("chars", 107), ("bytes", 257)])
def test_the_other_kinds(tmp_path, kind, size):
    tokenize("stdlib", out=str(tmp_path / "tok.json"), kind=kind, special_tokens=["[UNK]"])
    tokenizer = Tokenizer.load(tmp_path / "tok.json")
    assert tokenizer.kind == kind
    assert tokenizer.vocab_size == (size if kind == "bytes" else len(tokenizer.characters) + 1)


def test_sources():
    assert isinstance(make_source("wikipedia"), Wikipedia)
    assert isinstance(make_source("stdlib"), StdlibDocs)
    files = make_source("books/*.txt")
    assert isinstance(files, TextFiles) and files.paths == {"train": ["books/*.txt"]}
    for name, fields in [
        ("hub:a/b", ("a/b", None, "text")),
        ("hub:a/b:c", ("a/b", "c", "text")),
        ("hub:a/b:c:d", ("a/b", "c", "d")),
        ("hub:a/b::d", ("a/b", None, "d")),
    ]:
        hub = make_source(name)
        assert isinstance(hub, HubText) and (hub.name, hub.config, hub.column) == fields
    for name in ("hub:", "hub:a:b:c:d"):
        with pytest.raises(ValueError, match=r"should read hub:NAME\[:CONFIG\[:COLUMN\]\]"):
            make_source(name)


def test_faults_name_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.txt does not exist"):
        tokenize(str(tmp_path / "none.txt"), out=str(tmp_path / "tok.json"))
    with pytest.raises(ValueError, match=r"vocab_size 100 .* 262 is the least"):
        tokenize("stdlib", 100, out=str(tmp_path / "tok.json"))
    with pytest.raises(ValueError, match="is a folder"):
        tokenize("stdlib", out=str(tmp_path))
    (tmp_path / "a.txt").write_text("a" * 95 + "b" * 5)
    with pytest.raises(ValueError, match=r"a\.txt: validation, the character 'b'"):
        tokenize(str(tmp_path / "a.txt"), out=str(tmp_path / "tok.json"), kind="chars", special_tokens=[])
    assert not (tmp_path / "tok.json").exists()


def test_a_misspelt_option_exits_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["tokenize", "--source", "stdlib", "--vocab_siz", "300", "--out", str(tmp_path / "tok.json")])
    assert stop.value.code == 2
    assert "--vocab_siz" in capsys.readouterr().err.strip().splitlines()[-1]


def test_torch_is_not_imported(tmp_path):
    script = (
        "import sys\nfrom pipeline.tokenize import main\n"
        f"main(['tokenize', '--source', 'stdlib', '--out', {str(tmp_path / 'tok.json')!r}])\n"
        "assert not {'torch', 'lightning', 'transformers'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, capture_output=True)
