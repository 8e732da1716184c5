"""What every objective shares: token-exact loss, optimizer and schedule, dropout seeds, exact metrics, warm start."""

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.checkpoint import checkpoint

from lit_models.nn.transformer import TransformerBlock
from lit_models.nn.weights import load_weights
from lit_models.optim.param_groups import param_groups

OptimizerFactory = Callable[[Iterable], Optimizer]
SchedulerFactory = Callable[[Optimizer, int], LRScheduler]


@dataclass(frozen=True, slots=True)
class Loss:
    """A step's loss as a sum and the count it was summed over; further metrics as (sum, count) too.

    In training the names of `metrics` are the same in every step.
    """

    sum: Tensor  # scalar, with a graph even when count is 0
    count: Tensor  # scalar int64: tokens, pairs or samples
    metrics: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    counts: Mapping[str, Tensor] = field(default_factory=dict)  # whole numbers that add up over batches, in evaluation only
    rows: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # (keys (n,), values (n, ...)), in evaluation only


class LitBase(LightningModule):
    """An objective: a network, and what `step` makes of a batch.

    Gradients are those of sum / count over the whole optimizer step: all micro-batches and ranks together, so that neither
    micro-batching nor uneven lengths nor the number of ranks changes them. A step without a single counted element changes
    nothing. Epoch metrics are sums over counts, exact to the last digit on any number of ranks.

    Args:
        net: the network.
        optimizer: called with parameter groups (`lit_models.optim.param_groups`).
        lr_scheduler: called with the optimizer and the run's number of optimizer steps; stepped after every optimizer step.
        init_from: run folder or checkpoint whose weights the network starts from (warm start: optimizer and step start anew).
            Modules named in the network's `heads` belong to a task and may differ; all the rest must fit.
        compile: run the network's blocks through torch.compile.
        activation_checkpointing: keep only what goes into each transformer block and compute it again in the backward pass:
            less memory for about a third more time.
        ema_decay: validate, keep and export an exponential moving average of the weights, a = d a + (1 - d) w after each step
            with d = min(ema_decay, (1 + step) / (10 + step)).
        replace_head: a head that does not fit the checkpoint's starts anew; else that is an error.
    """

    unit = "samples"
    """What `units` counts: the word in `perf/{unit}_per_second`."""
    counted = "sample"
    """What the loss is a mean over."""
    next_command = "test --run_dir {run_dir}"
    """What one does with a trained model."""

    def __init__(
        self, net: nn.Module, optimizer: OptimizerFactory, lr_scheduler: SchedulerFactory | None = None,
        init_from: str | None = None, compile: bool = False, replace_head: bool = True,
        activation_checkpointing: bool = False, ema_decay: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if ema_decay is not None and not 0.0 <= ema_decay < 1.0:
            raise ValueError(f"ema_decay {ema_decay} is not in [0, 1)")
        if activation_checkpointing and not transformer_blocks(net):
            raise ValueError(f"activation_checkpointing: {type(net).__name__} has no transformer blocks")
        self.save_hyperparameters(logger=False)
        self.net, self.init_from, self.compile_net = net, init_from, compile
        self.checkpoint_blocks, self.ema_decay = activation_checkpointing, ema_decay
        self._optimizer_factory, self._scheduler_factory = optimizer, lr_scheduler
        self.assets: dict[str, Any] = {}
        self._loaded_hparams: dict[str, Any] = {}
        self._window: Tensor | None = None  # (2 + 2 * metrics,) sums and counts of the optimizer step under way, this rank
        self._window_names: list[str] = []  # of the metrics in it
        self._last: dict[str, Tensor | float] = {}  # of the last optimizer step, all ranks
        self._evaluated: list[dict[str, tuple[Tensor, Tensor]]] = []
        self._counted: dict[str, Tensor] = {}
        self._kept: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self.epoch_metrics: dict[str, float] = {}  # of the last validation or test
        self.epoch_counts: dict[str, Tensor] = {}  # of the same, all ranks
        self.epoch_rows: dict[str, Tensor] = {}  # of the same, all ranks, in the order of their keys; on the CPU
        if init_from:
            heads = [f"net.{name}." for name in getattr(net, "heads", ())]
            print(load_weights(self, init_from, heads, prefix="net.", replace=replace_head))

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes the running hook here some fifty times a step, and a module's own way costs 4 us each time.
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    # ---- what an objective writes -------------------------------------------------------------------------------------

    @abstractmethod
    def step(self, batch: Any) -> Loss:
        """The loss of a batch, in training and evaluation alike."""

    @abstractmethod
    def units(self, batch: Any) -> int:
        """Tokens or samples in a batch, for throughput."""

    def flops_per_unit(self) -> float | None:
        """Floating-point operations of forward and backward for one unit, or None where it is not known."""
        return None

    def derived_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Metrics that follow from the exact epoch means, `epoch_counts` and `epoch_rows`, such as perplexity from loss."""
        return {}

    def check_data(self, data: Any) -> None:
        """Raises ValueError where the data do not fit the model; called before a run begins."""

    def monitored(self, data: Any) -> list[str] | None:
        """The metrics that a validation on this data will have, as far as the objective can tell beforehand; None if not."""
        return None

    # ---- training -----------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        """Shards the network where the strategy has a mesh of devices (`pipeline.fsdp`)."""
        if self._device_mesh is None or any(isinstance(p, DTensor) for p in self.net.parameters()):
            return
        mesh = self._device_mesh["data_parallel"]
        for block in transformer_blocks(self.net):
            fully_shard(block, mesh=mesh)
        fully_shard(self.net, mesh=mesh)
        for method in ("features", "head", "scalars", "scores"):  # what objectives call beside forward
            if hasattr(self.net, method):
                register_fsdp_forward_method(self.net, method)

    def on_fit_start(self) -> None:
        """Raises ValueError where an optimizer would unscale float16 gradients itself, after they have been clipped."""
        unscales = any(getattr(o, "_step_supports_amp_scaling", False) for o in self.trainer.optimizers)
        if unscales and self.trainer.precision == "16-mixed" and self.trainer.gradient_clip_val:
            raise ValueError(
                "precision 16-mixed with clipping needs an optimizer that is not fused: set fused: false, or bf16-mixed"
            )
        if self.checkpoint_blocks:
            for block in transformer_blocks(self.net):
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
        if self.compile_net:
            for module in transformer_blocks(self.net) or [self.net]:  # type: ignore[list-item]
                module.compile()  # in place: the names of the weights stay

    def on_train_start(self) -> None:
        if self._loaded_hparams.get("optimizer", self.hparams.get("optimizer")) == self.hparams.get("optimizer"):
            return
        # Continued with another optimizer config: the restored state brought the old rates and options back.
        for optimizer, scheduler in zip(self.trainer.optimizers, self._schedulers(), strict=True):
            made = self._optimizer_factory(param_groups(self.net))
            for group, new in zip(optimizer.param_groups, made.param_groups, strict=True):
                group |= {key: value for key, value in new.items() if key not in ("params", "param_names")}
                group["initial_lr"] = new["lr"]
            if scheduler is not None:
                scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
                scheduler.load_state_dict(scheduler.state_dict())  # sets the groups' rates for its step

    def _schedulers(self) -> list[LRScheduler | None]:
        return [config.scheduler for config in self.trainer.lr_scheduler_configs] or [None]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        # Dropout is a function of (seed, micro-batch, rank), so that a resumed run needs no stored random state.
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        seed = ((seed * 1_000_003 + batch_idx) * 1_000_003 + self.global_rank) % 2**63
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(seed)
        loss = self.step(batch)
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        sums = [(loss.sum.detach(), loss.count), *loss.metrics.values()]
        window = torch.stack([value.to(dtype) for pair in sums for value in pair])
        self._window_names = list(loss.metrics)
        self._window = window if self._window is None else self._window + window
        return loss.sum

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        window, self._window = self._window, None
        assert window is not None
        world_size = self.trainer.world_size
        if world_size > 1:
            torch.distributed.all_reduce(window)
        total, count, *others = window
        # Lightning has divided by the accumulated micro-batches, DDP by the ranks: undo both, divide by the count.
        scale = (self.trainer.accumulate_grad_batches * world_size / count.clamp(min=1)).float()
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(grads, scale)
        norm = nn.utils.get_total_norm(grads)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self._last = {"loss": total / count.clamp(min=1), "grad_norm": norm, "lr": optimizer.param_groups[0]["lr"]}
        pairs = zip(self._window_names, others[::2], others[1::2], strict=True)
        self._last |= {name: part / number.clamp(min=1) for name, part, number in pairs}
        if not count.is_cuda and not count:  # on a GPU this would wait for the device: there the gradients are merely zero
            for p in self.parameters():
                p.grad = None

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        if not gradient_clip_val:
            return
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradient_clip_algorithm == "value":
            nn.utils.clip_grad_value_(params, gradient_clip_val)
        elif params:
            nn.utils.clip_grads_with_norm_(params, gradient_clip_val, self._last["grad_norm"])  # type: ignore[arg-type]

    def step_metrics(self) -> dict[str, float]:
        """The last optimizer step over all ranks: loss and metrics (before the update), gradient norm (before clipping), rate.

        Reading it waits for the device: call it on logging steps only.
        """
        last = {name: float(value) for name, value in self._last.items()}
        optim = {f"optim/{name}": last.pop(name) for name in ("lr", "grad_norm")}
        return {**{f"train/{name}": value for name, value in last.items()}, **optim}

    def configure_optimizers(self) -> Any:
        optimizer = self._optimizer_factory(param_groups(self.net))
        if self._scheduler_factory is None:
            return optimizer
        scheduler = self._scheduler_factory(optimizer, self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # ---- evaluation ---------------------------------------------------------------------------------------------------

    def _evaluate(self, batch: Any) -> None:
        loss = self.step(batch)
        self._evaluated.append({"loss": (loss.sum.detach(), loss.count), **loss.metrics})
        self._counted |= {name: self._counted.get(name, 0) + count for name, count in loss.counts.items()}
        for name, (keys, values) in loss.rows.items():
            self._kept.setdefault(name, []).append((keys.cpu(), values.detach().cpu()))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self._evaluate(batch)

    def _finish_evaluation(self, stage: str) -> None:
        rows = [{name: (float(s), float(n)) for name, (s, n) in row.items()} for row in self._evaluated]
        counts = {name: count.cpu() for name, count in self._counted.items()}
        kept = self._kept
        self._evaluated, self._counted, self._kept = [], {}, {}
        if getattr(getattr(self.trainer, "datamodule", None), "idle", False):
            rows, counts, kept = [], {}, {}  # this rank only kept the others company
        if self.trainer.world_size > 1:
            gathered: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(gathered, (rows, counts, kept))
            rows = [row for part, _, _ in gathered for row in part]
            names = dict.fromkeys(name for _, part, _ in gathered for name in part)
            counts = {name: sum(part[name] for _, part, _ in gathered if name in part) for name in names}
            names = dict.fromkeys(name for _, _, part in gathered for name in part)
            kept = {name: [pair for _, _, part in gathered for pair in part.get(name, [])] for name in names}
        self.epoch_counts, self.epoch_rows = counts, {name: in_order(pairs) for name, pairs in kept.items()}
        means = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            # fsum rounds once, so the order in which ranks saw the batches cannot show.
            total, count = (math.fsum(row[name][i] for row in rows if name in row) for i in (0, 1))
            if count:
                means[name] = total / count
        means |= self.derived_metrics(means)
        self.epoch_metrics = {f"{stage}/{name}": value for name, value in means.items()}
        self.log_dict(self.epoch_metrics, logger=False)  # for callbacks that monitor; the tracker writes the row

    def on_validation_epoch_end(self) -> None:
        self._finish_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._finish_evaluation("test")

    # ---- checkpoints --------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        datamodule = getattr(self._trainer, "datamodule", None)
        checkpoint["assets"] = datamodule.assets() if datamodule is not None else self.assets
        plain = {name: value for name, value in checkpoint.get("hyper_parameters", {}).items() if _is_plain(value)}
        # Loaded outside the runner, the module holds objects where the checkpoint had their arguments: those are kept.
        checkpoint["hyper_parameters"] = {**self._loaded_hparams, **plain, "init_from": None}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.assets = checkpoint.get("assets", {})
        self._loaded_hparams = checkpoint.get("hyper_parameters", {})


def transformer_blocks(net: nn.Module) -> list[TransformerBlock]:
    return [module for module in net.modules() if isinstance(module, TransformerBlock)]


def in_order(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Values of all batches in the order of their keys; of a key that came twice, once."""
    keys, values = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    _, places = np.unique(keys.numpy(), return_index=True)
    return values[torch.from_numpy(places)]


def _is_plain(value: Any) -> bool:
    """By exact type: a subclass (an enum that is a str, a numpy float) is pickled as its own class."""
    if type(value) is dict:
        return all(_is_plain(part) for pair in value.items() for part in pair)
    if type(value) in (list, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or type(value) in (str, int, float, bool)
