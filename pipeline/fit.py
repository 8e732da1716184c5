"""A training run in its folder: new, continued, or already done."""

import difflib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.table import Table

from datamodules.base import BaseDataModule
from lit_models.base import LitBase
from lit_models.nn.weights import check_fits
from pipeline import checkpoint_io, errors
from pipeline.callbacks.checkpoints import Checkpoints
from pipeline.callbacks.parts import callback
from pipeline.callbacks.tracker import Tracker
from pipeline.errors import BadInput
from pipeline.run_folder import RunFolder
from pipeline.tracking import MetricsFile, RunLogger, WandbConfig


def run_fit(
    trainer: Trainer, model: LitBase, data: BaseDataModule, run: RunFolder, config: Mapping[str, Any],
    wandb: WandbConfig | None, *, fresh: bool, allow_changes: bool,
) -> None:  # fmt: skip
    """Trains to the end, from the newest checkpoint of the run folder where there is one.

    Raises:
        BadInput: the folder holds something else, or a run whose config differs in more than harmless ways; or the monitored
            metric cannot come.
    """
    model.check_data(data)
    check_monitor(trainer, model, data)
    first = getattr(rank_zero_only, "rank", 0) == 0
    if first:
        run.refuse_strangers()
    with run.locked() if first else nullcontext():
        _train(trainer, model, data, run, config, wandb, fresh=fresh, allow_changes=allow_changes)


def _train(
    trainer: Trainer, model: LitBase, data: BaseDataModule, run: RunFolder, config: Mapping[str, Any],
    wandb: WandbConfig | None, *, fresh: bool, allow_changes: bool,
) -> None:  # fmt: skip
    first = getattr(rank_zero_only, "rank", 0) == 0
    found = None if fresh else checkpoint_io.newest(run.checkpoints)
    if found is not None:
        check_fits(model, found[1]["state_dict"], found[0])
        if first:
            _compare(run, config, allow_changes)
    done = found[1]["global_step"] if found else 0
    if done >= trainer.max_steps and run.results.exists():
        if first:
            at = f"{run.path} is at step {done} of {trainer.max_steps}"
            print(f"nothing left to train: {at}; raise trainer.max_steps or use --fresh")
        return
    if first:
        if fresh:
            run.clear()
        run.start(config)
        pending = bool(found and _state(found[1], Checkpoints).get("val_pending"))
        run.cut_metrics(done, validated=not pending) if found else run.metrics.unlink(missing_ok=True)
    tracked = [RunLogger(run, wandb, config)] if wandb else []
    trainer.loggers = [MetricsFile(run), *tracked]
    if first:
        for logger in tracked:
            logger.begin()
        if found:
            print(f"continuing {run.path} from step {done} ({found[0].name})")
    errors.begin(run.path)
    path = str(found[0]) if found else None
    del found
    trainer.fit(model, datamodule=data, ckpt_path=path, weights_only=True)
    if first:
        _report(trainer, model, run)
    for logger in tracked:
        logger.end(run)


def check_monitor(trainer: Trainer, model: LitBase, data: BaseDataModule) -> None:
    """Raises BadInput where the objective knows that no validation will have the metric of best.ckpt."""
    monitor, names = callback(trainer, Checkpoints).monitor, model.monitored(data)
    if names is None or monitor in names:
        return
    near = difflib.get_close_matches(monitor, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    why = "; a group has zero-shot accuracy only if training knows two of its captions" if "zero_shot" in monitor else ""
    raise BadInput(f"checkpoint.monitor {monitor} is not a metric of this run{why}; {hint}")


def _compare(run: RunFolder, config: Mapping[str, Any], allow_changes: bool) -> None:
    harmless, refused = run.differences(config)
    for line in harmless:
        print(f"changed: {line}")
    if refused and not allow_changes:
        raise BadInput(
            f"{run.path} was begun with another config: {'; '.join(refused)}. Go on all the same with --allow_changes,"
            " start anew with --fresh, or choose another --run_dir"
        )
    for line in refused:
        print(f"changed, as --allow_changes says: {line}")


def _state(checkpoint: Mapping[str, Any], callback: type) -> dict[str, Any]:
    states = checkpoint.get("callbacks", {})
    return next((state for name, state in states.items() if name.startswith(callback.__qualname__)), {})


def _report(trainer: Trainer, model: LitBase, run: RunFolder) -> None:
    """Writes results.json and tells the user how it went, where it is and what to do next."""
    tracker, saved = callback(trainer, Tracker), callback(trainer, Checkpoints)
    last = {name: value for row in run.rows() for name, value in row.items() if name != "step"}
    best = {"step": saved.best_step, saved.monitor: saved.best_score} if saved.best_score is not None else None
    run.write_results(
        status="done", steps=trainer.global_step, seconds=round(tracker.seconds, 3), **{model.unit: tracker.units},
        best=best, last=last,
    )  # fmt: skip
    table = Table(title=f"{run.path}: {trainer.global_step} steps in {tracker.seconds:.0f} s", title_justify="left")
    table.add_column("metric")
    table.add_column("last", justify="right")
    for name, value in last.items():
        if name.startswith(("train/loss", "val/")):
            table.add_row(_words(name, model), f"{value:.4f}")
    if best:
        table.add_row(f"best {saved.monitor} (step {saved.best_step})", f"{saved.best_score:.4f}")
    console = Console()
    console.print(table)
    print(f"run folder: {run.path}")
    for logger in trainer.loggers:
        if isinstance(logger, RunLogger) and logger.experiment.offline:
            print(f"upload to W&B: {logger.upload_command()}   (look at it here: wandb leet {run.path}/wandb/latest-run)")
    print(f"next: python -m pipeline {model.next_command.format(run_dir=run.path)}")


def _words(name: str, module: LitBase) -> str:
    if name.endswith("/loss"):
        return f"{name} (nats per {module.counted})"
    return name
