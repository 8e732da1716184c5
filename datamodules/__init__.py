"""Where batches come from: sources, tokenizers and Lightning datamodules. Knows no model."""
