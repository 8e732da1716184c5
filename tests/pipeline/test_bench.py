import json
from pathlib import Path
from typing import Any


def test_bench_measures_what_it_says(small: list[str], inside: Any, tmp_path: Path) -> None:
    code, out, last = inside("bench", *small, "--steps", 20, "--block", 5, "--out", tmp_path / "bench.json")
    assert code == 0, last
    result = json.loads((tmp_path / "bench.json").read_text())
    assert result["steps"] == 20 and result["threads"] >= 1
    assert result["bare_step_ms_median"] > 0 and result["step_ms_median"] > 0
    assert abs(result["harness_ms_mean"] - (result["step_ms_mean"] - result["bare_step_ms_mean"])) < 1e-9
    assert 0 < result["mfu"] < 1 and 0 <= result["data_wait_share"] < 1
    assert abs(result["tokens_per_second"] * result["step_ms_mean"] / 1e3 - 8 * 16) < 1e-6
    assert "harness_share" in out and not (tmp_path / "runs").exists()
