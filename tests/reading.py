"""Starting the runner as a user does, and reading back what it has written."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

SMALL = [
    "--config", "configs/gpt_char.yaml", "--model.init_args.net.num_layers", "1", "--model.init_args.net.num_heads", "2",
    "--model.init_args.net.embed_dim", "16", "--model.init_args.net.max_seq_len", "16", "--data.init_args.batch_size", "8",
    "--trainer.accelerator", "cpu", "--trainer.max_steps", "12", "--trainer.val_check_interval", "5",
    "--trainer.log_every_n_steps", "1", "--trainer.callbacks", "[]", "--checkpoint.every_n_steps", "3",
]  # fmt: skip
"""Options of a run of a few seconds; data.init_args.source.init_args.paths is still to be given."""

TINY_CLIP = [
    "--config", "configs/clip.yaml", "--model.init_args.net.image_num_layers=1", "--model.init_args.net.image_num_heads=2",
    "--model.init_args.net.image_embed_dim=16", "--model.init_args.net.text_num_layers=1",
    "--model.init_args.net.text_num_heads=2", "--model.init_args.net.text_embed_dim=16",
    "--model.init_args.net.projection_dim=16", "--data.init_args.batch_size=16", "--data.init_args.eval_batch_size=100",
    "--trainer.accelerator=cpu", "--trainer.max_steps=6", "--trainer.val_check_interval=3", "--trainer.callbacks=[]",
    "--trainer.log_every_n_steps=1", "--checkpoint.every_n_steps=2",
    "--data.init_args.source.init_args.train=[remix]", "--data.init_args.source.init_args.validation=[elusive]",
    "--data.init_args.source.init_args.test=[fontawesome_brands]", "--checkpoint.monitor=val/zero_shot_elusive",
]  # fmt: skip
"""Options of a run of a few seconds, on icons of three fonts."""


def run_pipeline(*args: Any, timeout: float = 240, **env: str) -> subprocess.CompletedProcess[str]:
    """`python -m pipeline ...` as a process of its own."""
    command = [sys.executable, "-m", "pipeline", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", **env},
        capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Every record of the run's offline W&B files, in order."""
    found = []
    for path in sorted((run_dir / "wandb").glob("offline-run-*/*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
        for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines():
            found.append(json.loads(line))
    return found


def history(run_dir: Path) -> list[dict[str, Any]]:
    return [record["history"]["item"] for record in records(run_dir) if record["type"] == "history"]


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def train_rows(run_dir: Path) -> list[tuple[int, float]]:
    """(step, train/loss) of metrics.csv."""
    return [(int(r["step"]), float(r["train/loss"])) for r in read_csv(run_dir / "metrics.csv") if r["train/loss"]]
