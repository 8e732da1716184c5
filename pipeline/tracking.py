"""Where metrics go: metrics.csv, the truth, and W&B."""

import csv
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from datamodules.files import write_atomic
from lit_models.nn.weights import find_checkpoint
from pipeline.run_folder import RunFolder, to_csv


@dataclass
class WandbConfig:
    """What W&B is told of a run.

    Args:
        project: where the run stands.
        entity: user or team; None is the account's own.
        name: of the run; None is the last part of run_dir.
        group: of runs that belong together.
        job_type: such as pretrain, sft, reward, ppo.
        tags: words to find the run by.
        artifacts: log the best and the last checkpoint as artifacts at the end.
    """

    project: str = "pipeline"
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: list[str] = field(default_factory=list)
    artifacts: bool = False


class MetricsFile(Logger):
    """metrics.csv: one row per event, flushed at once, full precision; a new column rewrites the file in one move."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__()
        self.path = run.metrics
        self.columns: list[str] = []
        if self.path.exists():
            with open(self.path, newline="") as f:
                self.columns = next(csv.reader(f), [])

    name = version = None  # type: ignore[assignment]

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """The config stands in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        new = [name for name in row if name not in self.columns]
        if new:
            self.columns += new
            old: list[dict[str, Any]] = []
            if self.path.exists():
                with open(self.path, newline="") as f:
                    old = list(csv.DictReader(f))
            write_atomic(self.path, to_csv(self.columns, [*old, row]))
            return
        with open(self.path, "a", newline="") as f:
            csv.DictWriter(f, self.columns, lineterminator="\n").writerow(row)


class RunLogger(WandbLogger):
    """The run's one W&B run: offline without a key, never waiting long for a network, continued when the run is."""

    def __init__(self, run: RunFolder, settings: WandbConfig, config: Mapping[str, Any]) -> None:
        self.run, self.config, self.artifacts = run, config, settings.artifacts
        super().__init__(
            save_dir=str(run.path), project=settings.project,
            entity=settings.entity, name=settings.name or run.path.name, group=settings.group,
            job_type=settings.job_type, tags=settings.tags, resume="allow",
        )  # fmt: skip

    @rank_zero_only
    def begin(self) -> None:
        """Opens the run, puts the whole config on it at step 0, and logs again what an earlier kill lost."""
        # A W&B service inherited from a parent process would outlive a kill of this one and hold the run's id as "in use".
        os.environ.pop("WANDB_SERVICE", None)
        import wandb

        had = sorted((self.run.path / "wandb").glob("offline-run-*/*.wandb"))
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # a look-up that waits without a network
        os.environ.setdefault("WANDB_SILENT", "true")
        mode = os.environ.get("WANDB_MODE") or ("online" if _has_key() else "offline")
        settings = wandb.Settings(init_timeout=20, console="off")
        self._wandb_init.pop("anonymous", None)  # deprecated; Lightning still passes it on
        self._wandb_init.update(id=self.run.wandb_id(), mode=mode, settings=settings)
        try:
            self.experiment.config.update(dict(self.config), allow_val_change=True)
        except (wandb.errors.CommError, wandb.errors.UsageError) as error:
            print(f"W&B cannot be reached ({' '.join(str(error).split())[:200]}): the run is tracked offline")
            wandb.teardown()
            self._experiment = None
            self._wandb_init.update(mode="offline")
            self.experiment.config.update(dict(self.config), allow_val_change=True)
        held = self._held(had)
        for row in self.run.rows():
            step = int(row.pop("step"))
            if (step, _kind(row)) not in held:
                self.log_metrics(row, step)
        if self.artifacts and not self.experiment.offline:  # offline, W&B takes none
            for artifact in artifacts_used(self.config):
                self.experiment.use_artifact(artifact)
        if self.experiment.offline:
            print(f"W&B is offline; to upload: {self.upload_command()}")

    def upload_command(self) -> str:
        return f"wandb sync {self.run.path}/wandb/offline-run-*"

    @rank_zero_only
    def end(self, run: RunFolder) -> None:
        """Logs the checkpoints as artifacts where asked to, and closes the run."""
        if self.artifacts:
            for name in ("best", "last"):
                path = run.checkpoints / f"{name}.ckpt"
                if path.exists():
                    self.experiment.log_artifact(_artifact(self.experiment.id, path), aliases=[name, "latest"])
        self.experiment.finish()

    def _held(self, offline_files: list[Path]) -> set[tuple[int, str]]:
        """(step, kind) of the rows that W&B has already."""
        if self.experiment.offline:
            return set().union(*map(_held_offline, offline_files))
        last = int(self.experiment.summary.get("trainer/global_step") or 0)
        return {(int(row["step"]), _kind(row)) for row in self.run.rows() if row["step"] <= last}


def artifacts_used(config: Mapping[str, Any]) -> list[Any]:
    """The checkpoints that a run starts from or is rewarded by, as the artifacts of their own runs.

    W&B tells versions by their contents: that of a run which logged its checkpoint is found again, none is uploaded twice.
    """
    given = (config.get("model") or {}).get("init_args") or {}
    found = []
    for name in ("init_from", "reward"):
        path = Path(given.get(name) or "")
        if given.get(name) and path.exists():
            checkpoint = find_checkpoint(path)
            run_id = checkpoint.parent.parent / "wandb" / "run_id"
            if run_id.is_file():
                found.append(_artifact(run_id.read_text().strip(), checkpoint))
    return found


def _artifact(run_id: str, checkpoint: Path) -> Any:
    import wandb

    artifact = wandb.Artifact(f"{run_id}-{checkpoint.stem}", type="model")
    artifact.add_file(str(checkpoint))
    return artifact


def _kind(row: Mapping[str, Any]) -> str:
    return "val" if any(name.startswith("val/") for name in row) else "train"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc
    from urllib.parse import urlparse

    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _held_offline(path: Path) -> set[tuple[int, str]]:
    """The rows in an offline run's file, which a kill may have cut short."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    held = set()
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
        try:
            item = json.loads(line).get("history", {}).get("item", {})
        except json.JSONDecodeError:
            continue
        if "train/loss" in item or _kind(item) == "val":
            held.add((int(item["trainer/global_step"]), _kind(item)))
    return held
