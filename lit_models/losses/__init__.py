"""Losses: pure functions on tensors that return a sum and the count it was summed over."""
