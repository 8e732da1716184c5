"""Factors worked out by hand, state, and the way a YAML names a schedule."""

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jsonargparse import ArgumentParser
from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_models.optim.schedules import Constant, StepDecay, WarmupCosine, WarmupLinear, WarmupStableDecay

SCHEDULES = [
    (WarmupCosine, {"min_ratio": 0.1}),
    (WarmupLinear, {"min_ratio": 0.1}),
    (WarmupStableDecay, {"min_ratio": 0.1}),
    (StepDecay, {"milestones": [0.5]}),
    (Constant, {}),
]


def optimizer(lr: float = 1.0) -> Optimizer:
    return AdamW([{"params": [nn.Parameter(torch.zeros(1))]}, {"params": [nn.Parameter(torch.zeros(1))], "lr": lr / 4}], lr)


def rates(schedule: LRScheduler, count: int) -> list[float]:
    """The first group's rate at each of the next `count` updates."""
    out = []
    for _ in range(count):
        out.append(schedule.optimizer.param_groups[0]["lr"])
        schedule.optimizer.step()
        schedule.step()
    return out


@pytest.mark.parametrize(
    ("schedule", "total", "options", "expected"),
    [
        # 1/2, 1, then (1 + cos(pi k / 4)) / 2 for k = 1..4
        (WarmupCosine, 6, {"warmup_steps": 2}, [0.5, 1.0, 0.8535534, 0.5, 0.1464466, 0.0]),
        (WarmupCosine, 5, {"min_ratio": 0.2}, [1.0, 0.8828427, 0.6, 0.3171573, 0.2]),
        (WarmupLinear, 6, {"warmup_steps": 2, "min_ratio": 0.2}, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]),
        (WarmupLinear, 5, {}, [1.0, 0.75, 0.5, 0.25, 0.0]),
        (WarmupStableDecay, 10, {"warmup_steps": 2, "decay_ratio": 0.4}, [0.5, *[1.0] * 5, 0.75, 0.5, 0.25, 0.0]),
        (WarmupStableDecay, 5, {"min_ratio": 0.5}, [1.0, 1.0, 1.0, 1.0, 0.5]),
        (WarmupStableDecay, 3, {"decay_ratio": 0.0}, [1.0, 1.0, 1.0]),
        (StepDecay, 8, {"milestones": [0.5, 0.75]}, [1.0] * 4 + [0.1] * 2 + [0.01] * 2),
        (StepDecay, 4, {"milestones": [0.75, 0.5], "gamma": 0.5, "warmup_steps": 2}, [0.5, 1.0, 0.5, 0.25]),
        (StepDecay, 100, {"milestones": [0.29]}, [1.0] * 29 + [0.1] * 71),  # 0.29 * 100 is 28.999999999999996
        (Constant, 3, {}, [1.0, 1.0, 1.0]),
        (Constant, 4, {"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_factors_by_hand(schedule: Any, total: int, options: dict[str, Any], expected: list[float]) -> None:
    assert [schedule.factor(s, total, **options) for s in range(total)] == pytest.approx(expected, abs=1e-7)
    made = schedule(optimizer(), total, **options)
    assert rates(made, total) == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("schedule", [WarmupCosine, WarmupLinear, WarmupStableDecay])
def test_the_last_update_is_exactly_at_the_minimum_and_stays_there(schedule: Any) -> None:
    for total, warmup in [(2, 0), (7, 0), (7, 3), (1000, 100), (101, 100)]:
        assert schedule.factor(total - 1, total, warmup_steps=warmup, min_ratio=0.1) == 0.1
        assert schedule.factor(total + 3, total, warmup_steps=warmup, min_ratio=0.1) == 0.1
        assert schedule.factor(max(0, warmup - 1), total, warmup_steps=warmup, min_ratio=0.1) == 1.0


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES)
def test_a_warmup_longer_than_the_run_is_cut_off(schedule: Any, options: dict[str, Any]) -> None:
    if schedule is StepDecay:
        options = {"milestones": [1.0]}
    assert rates(schedule(optimizer(), 3, warmup_steps=10, **options), 3) == pytest.approx([0.1, 0.2, 0.3])
    assert schedule(optimizer(), 1, **options).get_last_lr() == [1.0, 0.25]  # a run of one update trains


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES)
def test_every_group_keeps_its_own_rate(schedule: Any, options: dict[str, Any]) -> None:
    made = schedule(optimizer(0.8), 10, warmup_steps=4, **options)
    for step in range(10):
        factor = schedule.factor(step, 10, warmup_steps=4, **options)
        assert made.get_last_lr() == pytest.approx([0.8 * factor, 0.2 * factor])
        made.optimizer.step()
        made.step()


def saved(made: LRScheduler) -> Any:
    file = io.BytesIO()
    torch.save({"optimizer": made.optimizer.state_dict(), "schedule": made.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES)
def test_it_resumes_to_the_bit(schedule: Any, options: dict[str, Any]) -> None:
    whole = rates(schedule(optimizer(0.3), 12, warmup_steps=3, **options), 12)
    made = schedule(optimizer(0.3), 12, warmup_steps=3, **options)
    rates(made, 7)
    state = saved(made)
    resumed = schedule(optimizer(0.3), 12, warmup_steps=3, **options)
    resumed.optimizer.load_state_dict(state["optimizer"])
    resumed.load_state_dict(state["schedule"])
    assert resumed.get_last_lr()[0] == whole[7]
    assert rates(resumed, 5) == whole[7:]


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES[:-1])
def test_a_resumed_run_of_another_length_follows_the_new_length(schedule: Any, options: dict[str, Any]) -> None:
    made = schedule(optimizer(), 10, **options)
    rates(made, 9)
    state = saved(made)
    longer = schedule(optimizer(), 20, **options)
    longer.optimizer.load_state_dict(state["optimizer"])
    longer.load_state_dict(state["schedule"])
    expected = [schedule.factor(s, 20, **options) for s in range(9, 20)]
    assert expected[0] != schedule.factor(9, 10, **options)
    assert longer.get_last_lr() == [expected[0], expected[0] / 4]
    assert rates(longer, 11) == expected


def test_the_state_holds_no_shape() -> None:
    states = [
        WarmupCosine(optimizer(), n, warmup_steps=w, min_ratio=r).state_dict() for n, w, r in [(10, 1, 0.1), (99, 0, 0.5)]
    ]
    assert states[0] == states[1]
    assert copy.deepcopy(WarmupCosine(optimizer(), 10)).get_last_lr() == [1.0, 0.25]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: WarmupCosine(o, 10, warmup_steps=-1), "warmup_steps -1"),
        (lambda o: WarmupCosine(o, 10, min_ratio=1.5), "min_ratio 1.5"),
        (lambda o: WarmupLinear(o, 10, min_ratio=-0.1), "min_ratio -0.1"),
        (lambda o: WarmupLinear(o, math.inf), "total_steps inf"),
        (lambda o: WarmupLinear(o, 10, min_ratio=math.nan), "min_ratio nan"),
        (lambda o: WarmupStableDecay(o, 10, decay_ratio=2.0), "decay_ratio 2.0"),
        (lambda o: StepDecay(o, 10, milestones=[0.5, 30]), r"milestones\[1\] 30"),
        (lambda o: StepDecay(o, 10, milestones=[0.5], gamma=-1), "gamma -1"),
        (lambda o: Constant(o, -1), "total_steps -1"),
    ],
)
def test_bad_values_are_refused(make: Callable[[Optimizer], LRScheduler], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(optimizer())


def parser() -> ArgumentParser:
    out = ArgumentParser(exit_on_error=False)
    out.add_argument("--schedule", type=Callable[[Optimizer, int], LRScheduler])
    return out


@pytest.mark.parametrize(("schedule", "options"), SCHEDULES)
def test_a_yaml_names_it(schedule: Any, options: dict[str, Any]) -> None:
    block = {
        "class_path": f"lit_models.optim.schedules.{schedule.__name__}",
        "init_args": {"warmup_steps": 100, **options},
    }
    made = parser().instantiate(parser().parse_object({"schedule": block})).schedule(optimizer(), 1000)
    assert type(made) is schedule
    assert made.get_last_lr() == [0.01, 0.0025]
    assert made.lr_lambdas[0](999) == schedule.factor(999, 1000, warmup_steps=100, **options)


@pytest.mark.parametrize(
    ("init_args", "message"),
    [
        ({"warmup": 100}, "warmup"),
        ({"warmup_steps": "many"}, "many"),
        ({"min_ratio": [0.1]}, "min_ratio"),
        ({"total_steps": 5}, "total_steps"),
    ],
)
def test_a_yaml_with_a_bad_key_or_type_is_refused(init_args: dict[str, Any], message: str) -> None:
    block = {"class_path": "lit_models.optim.schedules.WarmupCosine", "init_args": init_args}
    with pytest.raises(Exception, match=message):
        parser().parse_object({"schedule": block})
