"""Fully sharded data-parallel training: each process keeps its share of weights, gradients and optimizer state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from pipeline import sharded
from pipeline.sharded import Pieces


class FSDP(ModelParallelStrategy):
    """torch's FSDP2 over all processes: every transformer block is gathered when it is computed, and given up after.

    Checkpoints are folders with a file for each process (`pipeline.sharded`); a run goes on from one on any number of
    processes, sharded or not. LitBase.configure_model does the sharding. CPUs (gloo) and GPUs (NCCL).
    """

    def setup_environment(self) -> None:
        self._data_parallel_size, self._tensor_parallel_size = self.num_nodes * self.num_processes, 1
        super().setup_environment()

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.lightning_module is not None
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        return getattr(optimizer, "_optimizer", optimizer).state_dict()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        path = Path(self.broadcast(filepath))
        beside = path.with_name(f".{path.name}.new")
        if self.is_global_zero:
            sharded.remove(beside)
        self.barrier()
        sharded.write(checkpoint, beside, self.global_rank, self.world_size)
        self.barrier()
        if self.is_global_zero:
            sharded.put_in_place(beside, path)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        if sharded.is_sharded(checkpoint_path):
            return sharded.read(Path(checkpoint_path), whole=False)
        return torch.load(checkpoint_path, map_location="cpu", weights_only=True, mmap=True)

    @torch.no_grad()
    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.lightning_module is not None
        for name, own in self.lightning_module.state_dict().items():
            given = checkpoint["state_dict"][name]
            if isinstance(own, DTensor):
                own.to_local().copy_(_share(given, own))
            else:
                own.copy_(given.whole() if isinstance(given, Pieces) else given)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, given in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            params = [p for group in optimizer.param_groups for p in group["params"]]
            state = {i: {k: _like(v, params[i]) for k, v in entry.items()} for i, entry in given["state"].items()}
            optimizer.load_state_dict({**given, "state": state})


def _share(given: Tensor | Pieces, own: DTensor) -> Tensor:
    """The rows of a whole tensor that this process keeps of `own`: torch.chunk's."""
    mesh = own.device_mesh
    size = -(-own.shape[0] // mesh.size())
    first = min(mesh.get_local_rank() * size, own.shape[0])
    last = min(first + size, own.shape[0])
    return given.rows(first, last) if isinstance(given, Pieces) else given[first:last]


def _like(value: Any, param: Tensor) -> Any:
    """A value of the optimizer's state, sharded as its parameter is where it has its shape."""
    if isinstance(param, DTensor) and isinstance(value, Tensor | Pieces) and value.shape == param.shape:
        local = _share(value, param).to(param.device, copy=True)
        return DTensor.from_local(
            local, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
        )
    return value.whole() if isinstance(value, Pieces) else value
