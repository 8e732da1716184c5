"""The runner: `python -m pipeline COMMAND`. The only package that imports both datamodules and lit_models."""
