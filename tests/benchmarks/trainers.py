"""Seconds of a training step in whole trainers, Lightning's beside another, in turn in one process.

Both train several steps in each round; the first of them is not counted. A figure is the median over rounds of the rounds'
medians, and so is the ratio.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer


class Clock(Callback):
    """Seconds between the ends of iterations."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_batch_end(self, *args: Any) -> None:
        self.ends.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.ends, self.ends[1:], strict=False)]

    def for_transformers(self) -> Any:
        """The same for transformers' trainers."""
        from transformers import TrainerCallback

        class Steps(TrainerCallback):
            def on_step_end(inner, *args: Any, **kwargs: Any) -> None:  # noqa: N805
                self.on_train_batch_end()

        return Steps()


def fit(module: LightningModule, data: LightningDataModule, steps: int) -> list[float]:
    """Seconds of all but the first step."""
    clock = Clock()
    Trainer(
        accelerator="cpu", max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, callbacks=[clock], limit_val_batches=0,
    ).fit(module, data)  # fmt: skip
    return clock.seconds()


def arguments(description: str | None, argv: list[str] | None, rounds: int, iterations: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--iterations", type=int, default=iterations, help="counted ones of each round")
    parser.add_argument("--embed_dim", type=int, default=128)
    parser.add_argument("--num_layers", type=int, default=4)
    return parser.parse_args(argv)


def compare(
    rows: Mapping[str, Callable[..., list[float]]], unit: str, threads: int, rounds: int, iterations: int, *sizes: int
) -> dict[str, float]:
    """Prints seconds of each row and their ratio to the first row's, which it returns."""
    torch.set_num_threads(threads)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for name, row in list(rows.items())[:: 1 if number % 2 else -1]:
                made = row(iterations + 1, *sizes, Path(folder))
                assert len(made) == iterations, f"{name}: {len(made)} of {iterations} were timed"
                seconds[name].append(statistics.median(made))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {rounds} rounds of {iterations} {unit}s")
    first = next(iter(seconds.values()))
    ratios = {name: statistics.median(a / b for a, b in zip(own, first, strict=True)) for name, own in seconds.items()}
    for name, own in seconds.items():
        print(f"{name:8} {statistics.median(own) * 1e3:9.1f} ms/{unit}   {ratios[name]:5.2f} times the time of ours")
    return ratios
