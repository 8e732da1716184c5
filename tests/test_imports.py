"""Who may import whom (the arrows of the design), read from the import statements; and that a wrong arrow is seen."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "datamodules", "lit_models")
PURE = ("lit_models.nn", "lit_models.losses", "lit_models.optim")
BASES = ("lit_models.base", "lit_models.image_classifier", "lit_models.policy")  # of LightningModules


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, module: str = "", is_package: bool = False) -> set[str]:
    """Every module, and every name out of a module, that import statements anywhere in `source` name."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package and node.level == 1 else -(node.level - is_package)]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def is_in(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def allowed(module: str, imported: str) -> bool:
    """Whether the arrow from `module` to `imported` is one of the design's."""
    if is_in(imported, ("pytorch_lightning",)):
        return False
    for package in PURE:
        if is_in(module, (package,)):
            return is_in(imported, (package, "torch", "jaxtyping", *sys.stdlib_module_names))
    if is_in(module, ("lit_models.metrics",)):
        return is_in(imported, ("lit_models.metrics", "torch", "torchmetrics", "jaxtyping", *sys.stdlib_module_names))
    if is_in(module, ("datamodules",)):
        return not is_in(imported, ("lit_models", "pipeline"))
    if is_in(module, ("lit_models",)):
        contracts = ("datamodules.batch", "datamodules.tokenizers.base")
        ours = is_in(imported, (*BASES, "lit_models.metrics", *PURE, *contracts))
        return ours or not is_in(imported, PACKAGES)
    return True  # the runner and the tests


def wrong_arrows(module: str, source: str, is_package: bool = False) -> list[str]:
    return [f"{module} -> {name}" for name in sorted(imports(source, module, is_package)) if not allowed(module, name)]


FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_the_files_are_there():
    names = {module_name(path) for path in FILES}
    assert {*PACKAGES, *PURE, "lit_models.base", "datamodules.batch", "pipeline.cli"} <= names


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_arrows(path):
    assert wrong_arrows(module_name(path), path.read_text(), path.name == "__init__.py") == []


def test_nobody_imports_pytorch_lightning():
    for path in (ROOT / "tests").rglob("*.py"):  # the packages are looked at above
        assert wrong_arrows(module_name(path), path.read_text(), path.name == "__init__.py") == []


@pytest.mark.parametrize("path", [path for path in FILES if path.name == "__init__.py"], ids=module_name)
def test_a_package_is_a_docstring(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) and len(tree.body) == 1


def test_every_folder_of_code_is_a_package():
    assert not [path for path in FILES if not (path.parent / "__init__.py").exists()]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("lit_models.gpt", "from datamodules.text import TextDataModule"),
        ("lit_models.gpt", "import datamodules"),
        ("lit_models.gpt", "from datamodules import order"),
        ("lit_models.gpt", "from datamodules.tokenizers.bpe import BPETokenizer"),
        ("lit_models.gpt", "from lit_models.bert import LitBERT"),
        ("lit_models.gpt", "from .bert import LitBERT"),
        ("lit_models.gpt", "def f():\n    from pipeline.figures import curve"),
        ("lit_models.gpt", "import torch, pytorch_lightning as pl"),
        ("lit_models.nn.gpt", "from lightning.pytorch import LightningModule"),
        ("lit_models.nn.gpt", "import numpy as np"),
        ("lit_models.nn.gpt", "from einops import rearrange"),
        ("lit_models.nn.gpt", "from lit_models.losses.language import token_cross_entropy"),
        ("lit_models.nn.gpt", "from ..losses import language"),
        ("lit_models.nn.gpt", "from lit_models.base import LitBase"),
        ("lit_models.losses.language", "import lit_models.nn.gpt"),
        ("lit_models.metrics.spans", "from lit_models.losses.language import token_cross_entropy"),
        ("lit_models.losses.language", "from datamodules.batch import IGNORE_INDEX"),
        ("lit_models.optim.schedules", "if True:\n    from lit_models import nn"),
        ("datamodules.text", "from lit_models.nn.gpt import GPT"),
        ("datamodules.text", "try:\n    import pipeline.cli\nexcept ImportError: pass"),
        ("datamodules.tokenizers.bpe", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import lit_models"),
        ("pipeline.cli", "from pytorch_lightning.cli import LightningCLI"),
        ("tests.test_x", "import pytorch_lightning"),
    ],
)
def test_a_wrong_arrow_is_seen(module, source):
    assert len(wrong_arrows(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pipeline.cli", "from lit_models.base import LitBase\nfrom datamodules.base import BaseDataModule\nimport wandb"),
        ("lit_models.gpt", "from datamodules.batch import TokenBatch\nfrom datamodules.tokenizers.base import Tokenizer"),
        ("lit_models.gpt", "from lit_models.base import LitBase\nfrom .nn.gpt import GPT\nimport lightning.pytorch"),
        ("lit_models.nn.gpt", "import math\nfrom torch import nn\nfrom .attention import KVCache\nfrom jaxtyping import Float"),
        ("lit_models.bert", "from lit_models.metrics.spans import spans"),
        ("datamodules.text", "from datamodules.base import BaseDataModule\nimport numpy\nfrom . import token_cache"),
    ],
)
def test_a_right_arrow_passes(module, source):
    assert wrong_arrows(module, source) == []


def test_relative_imports_are_resolved():
    assert imports("from . import a", "p.q.m") == {"p.q.a"}
    assert imports("from .. import a", "p.q.m") == {"p.a"}
    assert imports("from ..r.s import a", "p.q.m") == {"p.r.s.a"}
    assert imports("from . import a", "p.q", is_package=True) == {"p.q.a"}
    assert imports("from .. import a", "p.q", is_package=True) == {"p.a"}
