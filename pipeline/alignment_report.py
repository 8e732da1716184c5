"""What a chain of SFT, reward model and PPO came to: a table, and figures of what the policy paid for its reward."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from pipeline import figures
from pipeline.errors import BadInput
from pipeline.run_folder import RunFolder

ROWS = {
    "score of the reward model": ("reference_score", "score"),
    "gold score": ("reference_gold", "gold"),
    "KL to SFT, nats per response": (None, "kl"),
    "reward less KL": ("reference_score", "objective"),
    "tokens of a response": (None, "response_length"),
    "share with an end": (None, "eos_share"),
}


def report(sft: Path, reward: Path, ppo: Path, out: Path) -> None:
    """Prints the table, and writes it to results.json and the figures to figures/ in `out`.

    Raises:
        BadInput: a run has not been evaluated.
    """
    policy = evaluated(ppo, "validate")
    accuracy = last(reward, "val/accuracy")
    table = Table(title="SFT and PPO on the same validation prompts, with the same draws", title_justify="left")
    for name in ("", "SFT", "PPO"):
        table.add_column(name, justify="left" if not name else "right")
    found: dict[str, Any] = {"reward_model_accuracy": accuracy, "gain_in_std": policy.get("val/gain_in_std")}
    for title, keys in ROWS.items():
        cells = [policy.get(f"val/{key}") if key else None for key in keys]
        if cells[1] is not None:
            table.add_row(title, *("" if cell is None else f"{cell:.3f}" for cell in cells))
            found[title] = dict(zip(("sft", "ppo"), cells, strict=True))
    console = Console()
    console.print(table)
    console.print(f"the reward model orders {accuracy:.1%} of the held-out preferences as people do")
    if found["gain_in_std"] is not None:
        console.print(f"PPO is {found['gain_in_std']:.2f} standard deviations of SFT's scores ahead")
    rows = RunFolder(ppo).rows()
    figures.save(gold_against_kl(rows), out / "figures" / "gold_against_kl.png")
    samples = sorted((ppo / "samples").glob("step_*.txt"), key=lambda path: int(path.stem.split("_")[1]))
    if samples:
        print(f"\n{samples[-1].read_text(encoding='utf-8')}")
    (out / "results.json").write_text(json.dumps(found, indent=1))
    print(f"results: {out / 'results.json'}; figure: {out / 'figures' / 'gold_against_kl.png'}; samples: {ppo / 'samples'}")
    print(f"next: python -m pipeline chat --run_dir {ppo}   (SFT: {sft})")


def evaluated(run_dir: Path, command: str) -> dict[str, float]:
    """What `validate` has written about a run."""
    try:
        return json.loads((run_dir / "results.json").read_text())[command]
    except (OSError, ValueError, KeyError):
        raise BadInput(f"{run_dir} has no results of {command}: python -m pipeline {command} --run_dir {run_dir}") from None


def last(run_dir: Path, name: str) -> float:
    values = [row[name] for row in RunFolder(run_dir).rows() if name in row]
    if not values:
        raise BadInput(f"{run_dir} has no {name} in its metrics.csv")
    return values[-1]


def gold_against_kl(rows: list[dict[str, float]]) -> Figure:
    """Score and gold score of each rollout against the KL that it costs; over-optimisation is where they part."""
    points = [row for row in rows if "train/kl" in row]
    kl = [row["train/kl"] for row in points]
    figure = Figure(figsize=(6.5, 4.6), layout="constrained")
    left = figure.subplots()
    left.plot(kl, [row["train/score"] for row in points], "o", markersize=4, color="tab:blue", label="reward model (left)")
    left.set(xlabel="KL to the SFT policy, nats per response", ylabel="score of the reward model")
    if points and "train/gold" in points[0]:
        right = left.twinx()
        right.plot(kl, [row["train/gold"] for row in points], "^", markersize=4, color="tab:orange", label="gold score (right)")
        right.set_ylabel("gold score")
    figure.legend(loc="outside upper center", ncols=2, fontsize=9, frameon=False)
    return figure
