"""`bench`: what a step of a config costs, and what of it is the harness."""

import argparse
import copy
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.table import Table
from torch import nn

from datamodules.files import write_atomic
from lit_models.base import LitBase
from pipeline.callbacks.parts import callbacks, datamodule, train_loader
from pipeline.cli import PipelineCLI, quiet
from pipeline.flops import peak_flops, precision_dtype


class BareLoop(Callback):
    """Between blocks of the trainer's steps, the same number of steps in a bare loop: same network, batches and optimizer.

    Alternating in one process, so that a noisy machine is noisy for both.
    """

    def __init__(self, block: int) -> None:
        self.block = block
        self.trained: list[list[float]] = []  # seconds of each step, by block
        self.bare: list[list[float]] = []
        self.units = 0  # of the bare loop

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, LitBase)
        self.module = pl_module
        self.net = copy.deepcopy(pl_module.net)
        original, pl_module.net = pl_module.net, self.net  # the optimizer of the copy
        made = pl_module.configure_optimizers()
        pl_module.net = original
        self.optimizer = made["optimizer"] if isinstance(made, dict) else made
        self.scheduler = made["lr_scheduler"]["scheduler"] if isinstance(made, dict) else None
        self.batches = iter(datamodule(trainer).train_dataloader())
        self.times: list[float] = []
        self.at = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        now = time.perf_counter()
        self.times.append(now - self.at)
        if len(self.times) == self.block:
            self.trained.append(self.times)
            self.bare.append([self._bare_step(trainer) for _ in range(self.block)])
            self.times = []
        self.at = time.perf_counter()

    def _bare_step(self, trainer: Trainer) -> float:
        start = time.perf_counter()
        original, self.module.net = self.module.net, self.net
        total = torch.zeros((), dtype=torch.int64)
        with trainer.precision_plugin.forward_context():
            for _ in range(trainer.accumulate_grad_batches):
                batch = trainer.strategy.batch_to_device(next(self.batches))
                loss = self.module.step(batch)
                loss.sum.backward()
                self.units += self.module.units(batch)
                total = total + loss.count.cpu()
        for p in self.net.parameters():
            if p.grad is not None:
                p.grad.div_(float(total))
        if trainer.gradient_clip_val:
            nn.utils.clip_grad_norm_(self.net.parameters(), trainer.gradient_clip_val)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
        self.module.net = original
        return time.perf_counter() - start


class BenchCLI(PipelineCLI):
    """A fit of a few hundred steps in a folder of its own, with the callbacks, logging and checkpoints of the config."""

    block = 20
    out: str | None = None

    def fit(self, **_: Any) -> None:
        bare = BareLoop(self.block)
        callbacks(self.trainer).append(bare)
        super().fit()
        result = summary(bare, self.trainer, self.model)
        table = Table(title=f"bench of {self.given.get('model.class_path') or ''}", title_justify="left")
        table.add_column("what")
        table.add_column("value", justify="right")
        for name, value in result.items():
            table.add_row(name, f"{value:,.4g}" if isinstance(value, float) else str(value))
        Console().print(table)
        if self.out:
            write_atomic(Path(self.out), json.dumps(result, indent=2) + "\n")
            print(f"written to {self.out}")
        else:
            print(json.dumps(result))


def summary(bare: BareLoop, trainer: Trainer, model: LitBase) -> dict[str, Any]:
    """The figures. Means are over whole blocks, so that what happens only now and then (logging, saving) is in them."""
    trained, plain = bare.trained[1:], bare.bare[1:]  # the first block warms up
    step = statistics.mean(s for block in trained for s in block)
    bare_step = statistics.mean(s for block in plain for s in block)
    overheads = [statistics.mean(t) - statistics.mean(b) for t, b in zip(trained, plain, strict=True)]
    loader = train_loader(trainer)
    per_step = bare.units / sum(map(len, bare.bare))
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "device": str(model.device),
        "steps": sum(map(len, trained)),
        "step_ms_median": 1e3 * statistics.median(s for block in trained for s in block),
        "step_ms_mean": 1e3 * step,
        "bare_step_ms_median": 1e3 * statistics.median(s for block in plain for s in block),
        "bare_step_ms_mean": 1e3 * bare_step,
        "harness_ms_median_of_blocks": 1e3 * statistics.median(overheads),
        "harness_ms_mean": 1e3 * (step - bare_step),
        "harness_share": (step - bare_step) / bare_step,
        f"{model.unit}_per_second": per_step / step,
        "data_wait_share": loader.seconds_waited / (loader.served * step / trainer.accumulate_grad_batches),
    }
    flops = model.flops_per_unit()
    if flops is not None:
        peak = peak_flops(model.device, precision_dtype(trainer.precision))
        result |= {"matmul_gflops": peak / 1e9, "mfu": flops * per_step / step / peak}
    return result


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline bench", allow_abbrev=False,
        description="Times the steps of a config: takes the options of fit (--config, overrides) and these.",
    )  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=200, help="optimizer steps to time, and as many in a bare loop (default 200)"
    )
    parser.add_argument("--block", type=int, default=20, help="steps between changes from the one to the other (default 20)")
    parser.add_argument("--out", help="file for the figures as JSON; without it they are printed")
    own, words = parser.parse_known_args(argv[1:])
    quiet()
    BenchCLI.block, BenchCLI.out = own.block, own.out
    with tempfile.TemporaryDirectory() as folder:
        steps = own.steps + own.block
        length = [f"--trainer.max_steps={steps + 1}", f"--trainer.val_check_interval={steps + 2}"]
        BenchCLI("fit", [*words, f"--run_dir={folder}/run", *length, "--trainer.limit_val_batches=0"])
    return 0
