"""Learning-rate schedules, each called with the optimizer and the run's number of optimizer steps.

Every class has a pure `factor(step, total_steps, ...)`, fit for a figure: what each group's learning rate is multiplied
by in update `step + 1`, for step 0, 1, ..., total_steps - 1. Warm-up is linear, (step + 1) / warmup_steps, so the first
update is not spent at 0 (nanoGPT's convention); its last step is the peak, 1. What falls, falls from the step after the
peak and ends exactly at step total_steps - 1. A warm-up longer than the run is cut off with it.

All raise ValueError, with the number, for a negative or infinite count and for a ratio outside [0, 1].
A state holds nothing about the schedule's shape: after a resume with other arguments, the new ones hold at once.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class _Schedule(LambdaLR):
    """LambdaLR over a function of the step that stays out of the state."""

    def __init__(self, optimizer: Optimizer, factor: Callable[[int], float]) -> None:
        super().__init__(optimizer, factor)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at the state's step, by this schedule's own factor. Load the optimizer's state first."""
        super().load_state_dict(state_dict)
        self._last_lr = [lr * f(self.last_epoch) for lr, f in zip(self.base_lrs, self.lr_lambdas, strict=True)]
        for group, lr in zip(self.optimizer.param_groups, self._last_lr, strict=True):
            group["lr"] = lr


def _check(total_steps: int, warmup_steps: int, **ratios: float) -> None:
    for name, count in {"total_steps": total_steps, "warmup_steps": warmup_steps}.items():
        if not 0 <= count < math.inf:
            raise ValueError(f"{name} {count} is not a finite number of steps, 0 or more")
    for name, ratio in ratios.items():
        if not 0 <= ratio <= 1:
            raise ValueError(f"{name} {ratio} is not in [0, 1]")


def _warmup(step: int, warmup_steps: int) -> float:
    return min(1.0, (step + 1) / max(1, warmup_steps))


def _fall(step: int, total_steps: int, start: int) -> float:
    """How much of the way from step `start` (0.0) to the last step (1.0) is behind."""
    return min(1.0, max(0, step - start) / max(1, total_steps - 1 - start))


def _peak(warmup_steps: int) -> int:
    return max(1, warmup_steps) - 1


class WarmupCosine(_Schedule):
    """Warm-up, then half a cosine from 1 to `min_ratio`.

    Source: Loshchilov and Hutter, "SGDR", arXiv:1608.03983, equation 5, without restarts.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0, min_ratio: float = 0.0) -> None:
        _check(total_steps, warmup_steps, min_ratio=min_ratio)
        factor = partial(self.factor, total_steps=total_steps, warmup_steps=warmup_steps, min_ratio=min_ratio)
        super().__init__(optimizer, factor)

    @staticmethod
    def factor(step: int, total_steps: int, *, warmup_steps: int = 0, min_ratio: float = 0.0) -> float:
        """Factor of update `step + 1`."""
        fall = _fall(step, total_steps, _peak(warmup_steps))
        cosine = min_ratio + (1 - min_ratio) * (1 + math.cos(math.pi * fall)) / 2
        return _warmup(step, warmup_steps) * cosine


class WarmupLinear(_Schedule):
    """Warm-up, then a straight line from 1 to `min_ratio`.

    Source: Devlin et al., "BERT", arXiv:1810.04805, appendix A.2.
    """

    def __init__(self, optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0, min_ratio: float = 0.0) -> None:
        _check(total_steps, warmup_steps, min_ratio=min_ratio)
        factor = partial(self.factor, total_steps=total_steps, warmup_steps=warmup_steps, min_ratio=min_ratio)
        super().__init__(optimizer, factor)

    @staticmethod
    def factor(step: int, total_steps: int, *, warmup_steps: int = 0, min_ratio: float = 0.0) -> float:
        """Factor of update `step + 1`."""
        fall = _fall(step, total_steps, _peak(warmup_steps))
        return _warmup(step, warmup_steps) * (1 - fall + min_ratio * fall)


class WarmupStableDecay(_Schedule):
    """Warm-up, a plateau at 1, then a straight line to `min_ratio` over the last `decay_ratio` of the run's steps.

    Source: Hu et al., "MiniCPM", arXiv:2404.06395, section 4; the line is that of Hägele et al., arXiv:2405.18392.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        *,
        warmup_steps: int = 0,
        decay_ratio: float = 0.2,
        min_ratio: float = 0.0,
    ) -> None:
        _check(total_steps, warmup_steps, decay_ratio=decay_ratio, min_ratio=min_ratio)
        shape = partial(self.factor, warmup_steps=warmup_steps, decay_ratio=decay_ratio, min_ratio=min_ratio)
        super().__init__(optimizer, partial(shape, total_steps=total_steps))

    @staticmethod
    def factor(
        step: int, total_steps: int, *, warmup_steps: int = 0, decay_ratio: float = 0.2, min_ratio: float = 0.0
    ) -> float:
        """Factor of update `step + 1`."""
        decay_steps = max(1, round(decay_ratio * total_steps))
        start = max(_peak(warmup_steps), total_steps - 1 - decay_steps)
        fall = _fall(step, total_steps, start) if decay_ratio else 0.0
        return _warmup(step, warmup_steps) * (1 - fall + min_ratio * fall)


class StepDecay(_Schedule):
    """Warm-up, then `gamma` once more from each of `milestones` (fractions of the run) on.

    Source: He et al., "ResNet", arXiv:1512.03385, section 4.2 (0.1 at 32k and 48k of 64k steps: [0.5, 0.75]).
    """

    def __init__(
        self,
        optimizer: Optimizer,
        total_steps: int,
        *,
        milestones: list[float],
        gamma: float = 0.1,
        warmup_steps: int = 0,
    ) -> None:
        _check(total_steps, warmup_steps, gamma=gamma, **{f"milestones[{i}]": m for i, m in enumerate(milestones)})
        shape = partial(self.factor, milestones=milestones, gamma=gamma, warmup_steps=warmup_steps)
        super().__init__(optimizer, partial(shape, total_steps=total_steps))

    @staticmethod
    def factor(step: int, total_steps: int, *, milestones: list[float], gamma: float = 0.1, warmup_steps: int = 0) -> float:
        """Factor of update `step + 1`."""
        passed = sum(step >= round(m * total_steps) for m in milestones)
        return _warmup(step, warmup_steps) * gamma**passed


class Constant(_Schedule):
    """Warm-up, then 1."""

    def __init__(self, optimizer: Optimizer, total_steps: int, *, warmup_steps: int = 0) -> None:
        _check(total_steps, warmup_steps)
        super().__init__(optimizer, partial(self.factor, total_steps=total_steps, warmup_steps=warmup_steps))

    @staticmethod
    def factor(step: int, total_steps: int, *, warmup_steps: int = 0) -> float:
        """Factor of update `step + 1`."""
        return _warmup(step, warmup_steps)
