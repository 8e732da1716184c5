"""The benchmarks of whole trainers run, and time as many steps as they say."""

import pytest

from tests.benchmarks import ppo_iteration, sft_step
from tests.benchmarks.trainers import Clock, compare

TINY = ["--threads", "1", "--rounds", "1", "--iterations", "1", "--embed_dim", "16", "--num_layers", "1"]


@pytest.mark.parametrize(("benchmark", "unit"), [(ppo_iteration, "iteration"), (sft_step, "step")])
def test_both_trainers_are_timed(benchmark: object, unit: str, capsys: pytest.CaptureFixture[str]) -> None:
    ratios = benchmark.main(TINY)  # type: ignore[attr-defined]
    assert ratios["ours"] == 1 and ratios["trl"] > 0
    assert f"1 rounds of 1 {unit}s" in (printed := capsys.readouterr().out) and printed.count(f" ms/{unit}") == 2


def test_the_first_step_is_not_counted_and_a_missing_one_is_noticed() -> None:
    clock = Clock()
    clock.ends = [1.0, 3.0, 3.5]
    assert clock.seconds() == [2.0, 0.5]
    made = {"ours": [1.0, 2.0, 3.0], "other": [4.0, 4.0, 5.0]}
    rows = {name: lambda *args, own=own: own for name, own in made.items()}
    assert compare(rows, "step", 1, 2, 3) == {"ours": 1, "other": 2}
    with pytest.raises(AssertionError, match="ours: 3 of 4 were timed"):
        compare({"ours": rows["ours"]}, "step", 1, 1, 4)
