"""A small real text, a small config, and the runner within this process."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reading import ROOT, SMALL, TINY_CLIP, run_pipeline


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20,000 characters of the Python language reference."""
    from datamodules.sources.stdlib import StdlibDocs

    path = tmp_path_factory.mktemp("text") / "reference.txt"
    path.write_text("\n\n".join(StdlibDocs().load()["train"]["text"])[:20_000], encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def documents(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text as a folder of 40 documents."""
    folder, content = tmp_path_factory.mktemp("documents"), text.read_text(encoding="utf-8")
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(content[i * 500 : (i + 1) * 500], encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP after six steps."""
    folder = tmp_path_factory.mktemp("clip") / "run"
    ran = run_pipeline("fit", *TINY_CLIP, "--run_dir", folder, XDG_CACHE_HOME=str(tmp_path_factory.getbasetemp() / "cache"))
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def small(text: Path) -> list[str]:
    """Options of fit for a run of a few seconds."""
    return [*SMALL, "--data.init_args.source.init_args.paths", str(text)]


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs a command within this process: (exit code, stdout, last line of stderr). Quicker, for what needs no own process."""
    from pipeline import errors
    from pipeline.__main__ import main

    def run(*args: Any) -> tuple[int, str, str]:
        errors.running = None
        code = main([str(a) for a in args])
        out, err = capsys.readouterr()
        return code, out, (err.strip().splitlines() or [""])[-1]

    yield run
    errors.running = None
