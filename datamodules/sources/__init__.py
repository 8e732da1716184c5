"""Where examples come from: one class per source, `load() -> datasets.DatasetDict` with stated columns."""
