"""pip fetches from a folder of toy distributions here: PIP_NO_INDEX keeps it from any index."""

import hashlib
import importlib.util
import os
import shlex
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from datamodules.sources import packages
from datamodules.sources.packages import fetch

METADATA = "Metadata-Version: 2.1\nName: toy-data\nVersion: 1.0\n"
BACKEND = """
from pathlib import Path
MARK = {mark!r}
def prepare_metadata_for_build_wheel(folder, config_settings=None):
    Path(MARK).touch()
    (Path(folder) / "toy_data-1.0.dist-info").mkdir()
    (Path(folder) / "toy_data-1.0.dist-info/METADATA").write_text({metadata!r})
    return "toy_data-1.0.dist-info"
def build_wheel(folder, config_settings=None, metadata_directory=None):
    raise NotImplementedError
"""


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes distributions from, with toy_data 1.0 as a wheel and as source; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with zipfile.ZipFile(folder / "toy_data-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {"METADATA": METADATA, "WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n", "RECORD": ""}.items():
            wheel.writestr(f"toy_data-1.0.dist-info/{name}", text)
    tree = tmp_path / "toy_data-1.0"
    tree.mkdir()
    (tree / "PKG-INFO").write_text(METADATA)
    (tree / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    (tree / "backend.py").write_text(BACKEND.format(mark=str(tmp_path / "run"), metadata=METADATA))
    with tarfile.open(folder / "toy_data-1.0.tar.gz", "w:gz") as archive:
        archive.add(tree, "toy_data-1.0")
    return folder


@pytest.fixture
def pip_runs(tmp_path, monkeypatch):
    """The file with a line for each time that pip is started."""
    log, script = tmp_path / "pip.log", tmp_path / "python"
    script.write_text(f'#!/bin/sh\necho "$@" >> {shlex.quote(str(log))}\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o755)
    log.touch()
    monkeypatch.setattr(packages.sys, "executable", str(script))
    return log


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def in_cache(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache/lit-pipeline/packages").iterdir() if path.suffix != ".lock")


@pytest.mark.parametrize(("name", "source"), [("toy_data-1.0-py3-none-any.whl", False), ("toy_data-1.0.tar.gz", True)])
def test_one_file_fetched_once_and_not_installed(tmp_path, index, pip_runs, name, source):
    expected = sha256(index / name)
    path = fetch("toy-data==1.0", expected, source=source)
    assert path == tmp_path / "cache/lit-pipeline/packages" / name
    assert path.read_bytes() == (index / name).read_bytes()
    assert in_cache(tmp_path) == [name]
    assert importlib.util.find_spec("toy_data") is None
    assert fetch("toy-data==1.0", expected, source=source) == path
    assert len(pip_runs.read_text().splitlines()) == 1


def test_both_kinds_stand_side_by_side(tmp_path, index):
    wheel, archive = (index / name for name in ("toy_data-1.0-py3-none-any.whl", "toy_data-1.0.tar.gz"))
    for _ in range(2):
        assert fetch("toy-data==1.0", sha256(archive), source=True).name == archive.name
        assert fetch("toy-data==1.0", sha256(wheel), source=False).name == wheel.name
    assert len(in_cache(tmp_path)) == 2


def test_a_wrong_file_is_refused_before_anything_in_it_is_run(tmp_path, index):
    right = sha256(index / "toy_data-1.0.tar.gz")
    with pytest.raises(ValueError, match=rf"^toy-data==1\.0 has the sha256 {right}, where {'0' * 64} was expected.*") as error:
        fetch("toy-data==1.0", "0" * 64, source=True)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists() and in_cache(tmp_path) == []
    fetch("toy-data==1.0", right, source=True)
    assert (tmp_path / "run").exists()


def test_a_damaged_file_is_fetched_again(tmp_path, index, pip_runs):
    name = "toy_data-1.0-py3-none-any.whl"
    path = fetch("toy-data==1.0", sha256(index / name), source=False)
    path.write_bytes(path.read_bytes()[:-1])
    assert fetch("toy-data==1.0", sha256(index / name), source=False) == path
    assert path.read_bytes() == (index / name).read_bytes()
    assert len(pip_runs.read_text().splitlines()) == 2 and in_cache(tmp_path) == [name]


@pytest.mark.parametrize("requirement", ["toy-data==1.0", "Toy.Data==1.0", "toy_data==1.0"])
def test_a_file_put_there_by_hand_is_taken(tmp_path, index, pip_runs, requirement):
    folder = tmp_path / "cache/lit-pipeline/packages"
    folder.mkdir(parents=True)
    (folder / "toy_data-1.0.tar.gz.part").write_bytes(b"of an earlier version")
    (index / "toy_data-1.0.tar.gz").rename(folder / "toy_data-1.0.tar.gz")
    found = fetch(requirement, sha256(folder / "toy_data-1.0.tar.gz"), source=True)
    assert found == folder / "toy_data-1.0.tar.gz" and not pip_runs.read_text()


def test_what_is_not_there_is_named_with_what_to_do(tmp_path, index):
    with pytest.raises(FileNotFoundError) as error:
        fetch("toy-dota==1.0", "0" * 64, source=True)
    folder = tmp_path / "cache/lit-pipeline/packages"
    said = "ERROR: No matching distribution found for toy-dota==1.0"
    by_hand = f"pip download --no-deps --no-binary toy-dota --dest {folder} toy-dota==1.0"
    assert str(error.value).startswith(f"toy-dota==1.0 could not be fetched: {said}")
    assert str(error.value).endswith(by_hand) and "\n" not in str(error.value)
    assert in_cache(tmp_path) == []


def test_a_python_without_pip(tmp_path, index, monkeypatch):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho /usr/bin/python: No module named pip >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setattr(packages.sys, "executable", str(script))
    with pytest.raises(FileNotFoundError, match="could not be fetched: /usr/bin/python: No module named pip; .* pip download "):
        fetch("toy-data==1.0", "0" * 64, source=False)


def test_several_at_once_fetch_it_once(tmp_path, index, pip_runs):
    expected = sha256(index / "toy_data-1.0-py3-none-any.whl")
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: fetch("toy-data==1.0", expected, source=False), range(4)))
    assert len(set(paths)) == 1 and len(pip_runs.read_text().splitlines()) == 1
