"""The run folder: the one place where everything of a run goes, and what makes a second start a continuation."""

import csv
import importlib.metadata
import io
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from datamodules.files import write_atomic
from pipeline.errors import BadInput

HARMLESS = (
    "run_dir", "checkpoint", "wandb", "data.init_args.cache_dir", "data.init_args.eval_batch_size",
    "data.init_args.micro_batch_size", "data.init_args.num_workers", "model.init_args.compile", "trainer.accelerator",
    "trainer.benchmark", "trainer.callbacks", "trainer.check_val_every_n_epoch", "trainer.detect_anomaly",
    "trainer.deterministic", "trainer.devices", "trainer.enable_autolog_hparams", "trainer.enable_model_summary",
    "trainer.enable_progress_bar", "trainer.limit_predict_batches", "trainer.limit_test_batches",
    "trainer.limit_val_batches", "trainer.log_every_n_steps", "trainer.logger", "trainer.max_epochs",
    "trainer.max_steps", "trainer.max_time", "trainer.num_nodes", "trainer.num_sanity_val_steps", "trainer.plugins",
    "trainer.profiler", "trainer.strategy", "trainer.val_check_interval",
)  # fmt: skip
"""Keys that do not change the mathematics of a step: they may change when a run is continued."""


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}. Lists stay values."""
    if not isinstance(tree, Mapping) or not tree:
        return {prefix: tree}
    return {k: v for key, sub in tree.items() for k, v in flatten(sub, f"{prefix}.{key}" if prefix else key).items()}


class RunFolder:
    """Files of a run: config.yaml, metrics.csv, results.json, checkpoints/, figures/, wandb/."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.csv"
        self.results = self.path / "results.json"
        self.checkpoints = self.path / "checkpoints"
        self.figures = self.path / "figures"

    def refuse_strangers(self) -> None:
        """Raises BadInput where the folder exists and is no run's: nothing of anyone else's is written over."""
        if self.path.exists() and not self.path.is_dir():
            raise BadInput(f"run_dir {self.path} is a file; it must be a folder, or not exist yet")
        own = (".config.yaml", ".lock")  # what a kill may leave of the first second
        strange = self.path.is_dir() and any(not entry.name.startswith(own) for entry in self.path.iterdir())
        if strange and not self.config.exists():
            raise BadInput(f"run_dir {self.path} holds other files and no config.yaml of a run: choose another --run_dir")

    @contextmanager
    def locked(self, seconds: float = 60) -> Iterator[None]:
        """Makes the folder, and keeps other processes from training in it meanwhile.

        Raises:
            BadInput: another one has it, and keeps it. (One that was killed may need a moment to end.)
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                print(f"waiting for another process that trains in {self.path}", flush=True)
                lock.acquire(timeout=seconds)
        except Timeout:
            raise BadInput(f"another process is training in {self.path}: stop it, or choose another --run_dir") from None
        except NotImplementedError:  # a file system without locks
            pass
        try:
            yield
        finally:
            lock.release()

    def differences(self, config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """(harmless, refused) changes `key: old -> new` of the config against the one the run was started with."""
        if not self.config.exists():
            return [], []
        old, new = flatten(yaml.safe_load(self.config.read_text())), flatten(config)
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        harmless = [key for key in changed if any(key == h or key.startswith(f"{h}.") for h in HARMLESS)]
        lines = {key: f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}" for key in changed}
        return [lines[k] for k in harmless], [lines[k] for k in changed if k not in harmless]

    def start(self, config: Mapping[str, Any]) -> None:
        """Makes the folder and writes the whole resolved config, nulls kept."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.config, yaml.safe_dump(dict(config), sort_keys=False))  # first: it marks the folder as a run's
        for folder in (self.checkpoints, self.figures):
            folder.mkdir(exist_ok=True)
        stale = [*self.path.glob(".*.tmp"), *(p for end in ("tmp", "new", "old") for p in self.checkpoints.glob(f".*.{end}"))]
        for path in stale:  # left by a kill
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.results.unlink(missing_ok=True)
        (self.path / "error.txt").unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes the run (`--fresh`)."""
        if not self.path.is_dir():
            return
        entries = [entry for entry in self.path.iterdir() if entry.name != ".lock"]
        for entry in sorted(entries, key=lambda entry: entry == self.config):  # config.yaml, the mark, goes last
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def cut_metrics(self, step: int, validated: bool) -> None:
        """Drops the rows that a run continued from `step` will write again: later ones, and step's own validation row
        unless it is already behind."""
        if not self.metrics.exists():
            return
        with open(self.metrics, newline="") as f:
            reader = csv.DictReader(f)
            columns = list(reader.fieldnames or [])
            rows = [row for row in reader if _keep(row, step, validated)]
        write_atomic(self.metrics, to_csv(columns, rows))

    def rows(self) -> list[dict[str, float]]:
        """The rows of metrics.csv, empty cells left out."""
        if not self.metrics.exists():
            return []
        with open(self.metrics, newline="") as f:
            return [{k: float(v) for k, v in row.items() if v not in (None, "")} for row in csv.DictReader(f)]

    def wandb_id(self) -> str:
        """The id of the run's W&B run: one for the folder's life."""
        path = self.path / "wandb" / "run_id"
        if path.exists() and (found := path.read_text().strip()):
            return found
        import secrets

        path.parent.mkdir(exist_ok=True)
        made = secrets.token_hex(4)
        write_atomic(path, made)
        return made

    def write_results(self, **results: Any) -> None:
        """Merges into results.json."""
        old = json.loads(self.results.read_text()) if self.results.exists() else {}
        packages = ("lightning", "torch", "torchmetrics", "datasets", "tokenizers", "wandb")
        versions = {name: importlib.metadata.version(name) for name in packages}
        command = "python -m pipeline " + " ".join(sys.argv[1:])
        write_atomic(self.results, json.dumps({**old, **results, "versions": versions, "command": command}, indent=2) + "\n")


def _keep(row: Mapping[str, str], step: int, validated: bool) -> bool:
    try:
        at = int(row["step"])
    except (KeyError, TypeError, ValueError):  # a line that a kill cut short
        return False
    is_validation = any(name.startswith("val/") and value for name, value in row.items() if name)
    return at < step or (at == step and (validated or not is_validation))


def to_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
