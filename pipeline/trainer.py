"""The trainer of a run: optimizer steps turned into Lightning's micro-batches, epochs into steps, the run's own callbacks."""

import os
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy

from datamodules.base import BaseDataModule
from lit_models.base import LitBase
from pipeline.callbacks.checkpoints import Checkpoints
from pipeline.callbacks.ema import EMA
from pipeline.callbacks.progress import RunProgress
from pipeline.callbacks.stop import StopOnSignal
from pipeline.callbacks.tracker import Tracker
from pipeline.callbacks.validation import Validation
from pipeline.checkpoint_io import AtomicCheckpointIO
from pipeline.errors import BadInput
from pipeline.processes import Watch
from pipeline.run_folder import RunFolder

REFUSED = {
    "accumulate_grad_batches": (1, "set data.init_args.micro_batch_size: accumulation follows from it"),
    "fast_dev_run": (False, "use --config configs/trainer/debug.yaml"),
    "overfit_batches": (0.0, "use --trainer.limit_train_batches"),
    "use_distributed_sampler": (False, "the loaders deal samples to the ranks themselves"),
    "reload_dataloaders_every_n_epochs": (0, "the training loader spans the run"),
    "enable_checkpointing": (None, "set checkpoint.every_n_steps"),
}


def build_trainer(
    command: str, args: dict[str, Any], model: LitBase, data: BaseDataModule, run: RunFolder, checkpoint: Any
) -> Trainer:
    """The trainer for a command, from the config's trainer section; all its counts are optimizer steps.

    Raises:
        BadInput: a value that would break one of the run's promises, or no length of the run.
    """
    for name, (default, instead) in REFUSED.items():
        if args.get(name) not in (default, None):
            raise BadInput(f"trainer.{name} {args[name]} is not for this runner: {instead}")
    plugins = args.get("plugins") or []
    args |= launched()
    if args["strategy"] in ("auto", "ddp"):
        args["strategy"] = _strategy(args)
    args["default_root_dir"] = str(run.path)
    args["plugins"] = [*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()]
    callbacks = args["callbacks"] or []
    user_callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    predicted = "limit_predict_batches" if command == "predict" else "limit_test_batches"
    limited = {"train": "limit_train_batches", "validation": "limit_val_batches", "test": predicted}
    data.limits = {split: args[name] for split, name in limited.items()}
    args |= {name: None for name in limited.values() if args[name] != 0}  # Lightning would count each rank's own batches
    if command != "fit":
        args |= {
            "callbacks": [Watch(), *user_callbacks],
            "logger": False,
            "max_steps": -1,
            "max_epochs": 1,
            "val_check_interval": 1.0,
        }
        args["enable_checkpointing"] = False
        return Trainer(**args)

    per_epoch = data.steps_per_epoch
    total = _total_steps(args, per_epoch)
    interval = _validation_interval(args, per_epoch)
    tracker = Tracker()
    checkpoints = Checkpoints(run.checkpoints, checkpoint.monitor, checkpoint.mode, checkpoint.every_n_steps)
    average = [EMA(model.ema_decay)] if model.ema_decay is not None else []  # first: its update is part of the step
    progress = [RunProgress(tracker)] if args["enable_progress_bar"] is not False else []
    own = [Watch(), *average, Validation(checkpoints), tracker, *progress, StopOnSignal(checkpoints), checkpoints]
    if args["logger"] not in (None, True, False):
        raise BadInput("trainer.logger can only be true or false; W&B's settings stand under wandb")
    args |= {
        "callbacks": [*own, *user_callbacks],
        "logger": False,  # loggers write into the run folder, which there is only once the run begins
        "max_steps": total,
        "max_epochs": -1,
        "check_val_every_n_epoch": None,
        "val_check_interval": interval,
    }
    trainer = Trainer(**args)
    accumulation = data.accumulation(trainer.num_devices * trainer.num_nodes)
    trainer.accumulate_grad_batches = accumulation
    trainer.val_check_interval = interval * accumulation
    return trainer


def launched() -> dict[str, int]:
    """devices and num_nodes as srun or torchrun has started them; nothing where the runner starts its processes itself."""
    if SLURMEnvironment.detect():
        nodes = int(os.environ.get("SLURM_NNODES", 1))
        return {"num_nodes": nodes, "devices": int(os.environ["SLURM_NTASKS"]) // nodes}
    if TorchElasticEnvironment.detect():
        local = int(os.environ["LOCAL_WORLD_SIZE"])
        return {"num_nodes": int(os.environ["WORLD_SIZE"]) // local, "devices": local}
    return {}


def _strategy(args: dict[str, Any]) -> Any:
    """Plain DDP, told that every parameter has a gradient and that buffers need no broadcast (ranks may validate unequally)."""
    if args["strategy"] == "auto" and args["devices"] in (1, "1") and args["num_nodes"] == 1:
        return "auto"
    if args["strategy"] == "auto" and args["devices"] in ("auto", -1, "-1"):
        import torch

        if torch.cuda.device_count() < 2 and args["num_nodes"] == 1:
            return "auto"
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


def _total_steps(args: dict[str, Any], per_epoch: int) -> int:
    epochs, steps = args["max_epochs"], args["max_steps"]
    by_epochs = epochs * per_epoch if epochs is not None and epochs >= 0 else None
    by_steps = steps if steps is not None and steps >= 0 else None
    limits = [limit for limit in (by_epochs, by_steps) if limit is not None]
    if not limits:
        raise BadInput("the run has no length: set trainer.max_steps (optimizer steps) or trainer.max_epochs")
    return min(limits)


def _validation_interval(args: dict[str, Any], per_epoch: int) -> int:
    """Optimizer steps between validations; a fraction is one of an epoch."""
    interval = args["val_check_interval"]
    interval = 1.0 if interval is None else interval
    if isinstance(interval, int) and interval >= 1:
        return interval
    if isinstance(interval, float) and 0 < interval <= 1:
        return max(1, round(interval * per_epoch * (args["check_val_every_n_epoch"] or 1)))
    wanted = "a number of optimizer steps or a fraction of an epoch"
    raise BadInput(f"trainer.val_check_interval is {interval}; it must be {wanted}")
