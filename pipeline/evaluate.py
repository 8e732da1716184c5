"""validate, test and predict on a trained run."""

from pathlib import Path

import torch
from lightning.pytorch import Trainer
from rich.console import Console
from rich.table import Table

from datamodules.base import BaseDataModule
from lit_models.base import LitBase
from lit_models.nn.weights import check_fits
from pipeline import errors
from pipeline.checkpoint_io import read
from pipeline.errors import BadInput
from pipeline.run_folder import RunFolder


def evaluate(trainer: Trainer, model: LitBase, data: BaseDataModule, run: RunFolder, command: str, weights: Path) -> None:
    """Prints the metrics of a split and adds them to results.json."""
    step = _load(model, data, command, weights)
    errors.begin(run.path)
    getattr(trainer, command)(model, datamodule=data, verbose=False)
    if not trainer.is_global_zero:
        return
    if not any(name.endswith("/loss") for name in model.epoch_metrics):
        raise BadInput(f"the {'validation' if command == 'validate' else 'test'} split has no labels: see predict")
    if run.config.exists():
        run.write_results(**{command: {"checkpoint": weights.name, "step": step, **model.epoch_metrics}})
    table = Table(title=f"{command} of {weights}, step {step}", title_justify="left")
    table.add_column("metric")
    table.add_column("value", justify="right")
    for name, value in model.epoch_metrics.items():
        table.add_row(name, f"{value:.6f}")
    Console().print(table)
    print(f"written to {run.results}" if run.config.exists() else f"{run.path} is no run folder: nothing was written")


def predict(trainer: Trainer, model: LitBase, data: BaseDataModule, run: RunFolder, weights: Path, form: str) -> None:
    """Writes one row per sample of the test split: predictions.csv or predictions.parquet in the run folder."""
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    _load(model, data, "predict", weights)
    errors.begin(run.path)
    batches = trainer.predict(model, datamodule=data) or []
    rank = trainer.global_rank
    columns = (
        {name: torch.cat([batch[name] for batch in batches]).tolist() for name in batches[0]}
        if batches and not data.idle
        else {}
    )
    if trainer.world_size > 1:
        parts: list[dict[str, list[float]]] = [{} for _ in range(trainer.world_size)]
        torch.distributed.all_gather_object(parts, columns)
        columns = {name: sum((part.get(name, []) for part in parts), []) for name in next(p for p in parts if p)}
    if rank:
        return
    order = sorted(range(len(columns["index"])), key=lambda i: (columns["index"][i], columns.get("place", columns["index"])[i]))
    columns = {name: [values[i] for i in order] for name, values in columns.items()}
    table = pyarrow.table(data.readable("test", columns))
    path = run.path / f"predictions.{form}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if form == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)
    print(f"{table.num_rows} predictions ({', '.join(table.column_names)}) written to {path}")


def _load(model: LitBase, data: BaseDataModule, command: str, weights: Path) -> int:
    data.dataset("validation" if command == "validate" else "test")  # refuses a split that is not there, before anything runs
    checkpoint = read(weights)
    check_fits(model, checkpoint["state_dict"], weights)
    known, given = (assets.get("classes") for assets in (checkpoint["assets"], data.assets()))
    if known != given:
        raise BadInput(f"{weights} was trained on the classes {known}, and the data have {given}")
    model.load_state_dict(checkpoint["state_dict"])
    return checkpoint["global_step"]
