"""What evaluation counts: pure functions on tensors and labels, whose results add up over batches and ranks."""
