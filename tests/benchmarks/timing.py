"""Seconds of one optimizer step of several networks, side by side: what gpt_step, bert_step and vit_step have in common.

A step is forward, loss, backward, clipping at 1.0, AdamW, zero_grad. All rows live in one process with the same allocator
settings (the system's, unless MALLOC_* is set outside) and alternate: every round runs one step of each batch of each row,
in turn forwards and backwards, so that a slow spell of the machine meets all of them alike. A round counts by the median of
its steps; a ratio is the median over rounds of row / first row.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lit_models.optim.param_groups import param_groups

WARM_UP = 3  # rounds that are not counted


class Row:
    """A network, its loss and its optimizer. The loss takes the network and the tensors of a batch."""

    def __init__(self, net: nn.Module, loss: Callable[..., Tensor], fused: bool) -> None:
        self.net, self.loss = net.train(), loss
        groups = [{k: v for k, v in g.items() if k in ("params", "weight_decay")} for g in param_groups(net)]
        options = {"fused": True} if fused else {}
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, **options)

    def step(self, *batch: Tensor) -> float:
        loss = self.loss(self.net, *batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


@dataclass
class Timed:
    """Of each row: the median seconds of a step in each round, and the loss of its first and its last step."""

    seconds: dict[str, list[float]]
    first_loss: dict[str, float]
    last_loss: dict[str, float]


def measure(rows: Mapping[str, Row], batches: Sequence[tuple[Tensor, ...]], rounds: int) -> Timed:
    """Every row sees the same batches in the same order."""
    timed = Timed({name: [] for name in rows}, {}, {})
    for number in range(-WARM_UP, rounds):
        for name, row in list(rows.items())[:: 1 if number % 2 else -1]:
            seconds = []
            for batch in batches:
                start = time.perf_counter()
                loss = row.step(*batch)
                seconds.append(time.perf_counter() - start)
                timed.first_loss.setdefault(name, loss)
                timed.last_loss[name] = loss
            if number >= 0:
                timed.seconds[name].append(statistics.median(seconds))
    return timed


def report(rows: Mapping[str, Row], timed: Timed, steps: int, count: float, unit: str = "tokens") -> None:
    """Prints a line for each row; `count` is a step's number of tokens or other units."""
    settings = {k: v for k, v in os.environ.items() if k.startswith("MALLOC_") or k == "LD_PRELOAD"}
    first = next(iter(timed.seconds.values()))
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"{len(first)} rounds of {steps} steps, allocator {settings or 'as the system has it'}"
    )
    print(f"{'':34} {'ms/step':>8} {f'{unit}/s':>9} {'/ first':>8} {'parameters':>11} {'last loss':>9}")
    for name, seconds in timed.seconds.items():
        median = statistics.median(seconds)
        ratio = statistics.median(a / b for a, b in zip(seconds, first, strict=True))
        size = sum(p.numel() for p in rows[name].net.parameters())
        line = f"{median * 1e3:8.2f} {count / median:9,.0f} {ratio:8.2f} {size:11,} {timed.last_loss[name]:9.4f}"
        print(f"{name:34} {line}")
