"""Networks: plain nn.Modules that take tensors and give tensors.

Shape letters: B batch, T time, S source time, D embed, H heads, K head dim, V vocabulary, L layers.
"""
