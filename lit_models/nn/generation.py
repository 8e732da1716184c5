"""Decoding: which tokens may be sampled, and a batch of prompts continued token by token."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lit_models.nn.gpt import GPT

TOP_P_ROUNDING = 1e-6  # float32 log-probabilities of .5 and .3 add up to .8 only within rounding


def filter_logits(
    logits: Float[Tensor, "B V"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "B V"]:
    """Log-probabilities (nats, float32) to sample from; -inf for what is filtered out.

    temperature divides the logits; 0 leaves the most likely token alone.
    top_k keeps the k most likely tokens, all of them when k is more than V.
    top_p keeps the fewest most likely tokens that together reach probability p (within 1e-6), and one at least.
    They apply in this order. Among equally likely tokens the lower id comes first.

    Raises: ValueError for temperature < 0, top_k < 1, top_p outside [0, 1].
    Source: Fan et al. 2018, section 5 (top-k); Holtzman et al. 2020, section 3.1 (top-p).
    """
    _check_sampling(temperature, top_k, top_p)
    if temperature == 0:
        temperature, top_k, top_p = 1.0, 1, None
    logits = logits.float() if temperature == 1 else logits.float() / temperature
    logp = logits.log_softmax(-1)
    if top_p == 1.0:
        top_p = None
    if top_k is None and top_p is None:
        return logp
    ranked, ids = logp.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        ranked[:, top_k:] = -math.inf
    if top_p is not None:
        probs = ranked.double().softmax(-1)
        before = probs.cumsum(-1) - probs  # what more likely tokens sum to
        remove = before >= top_p - TOP_P_ROUNDING
        remove[:, 0] = False
        ranked = ranked.masked_fill(remove, -math.inf)
    return torch.empty_like(logp).scatter_(1, ids, ranked).log_softmax(-1)


def generate(
    net: GPT,
    prompts: list[list[int]],
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_id: int | None = None,
    seed: int | list[int] = 0,
    use_cache: bool = True,
) -> Iterator[list[int | None]]:
    """Yields at each step one new token id per prompt, eos_id included, and None for rows that ended with it before.

    Stops after max_new_tokens steps, or when every row has ended. Beyond max_seq_len a step attends to the last
    max_seq_len tokens, which are then read anew, as their positions have changed.
    Each row draws from a generator of its own, seeded with seed (or its item of seed): a row does not depend on the others.
    The net is in eval mode during a step and as before between steps. Sampling as in filter_logits.

    Raises: ValueError at the call, for no or empty prompts, a prompt longer than max_seq_len, ids outside the
    vocabulary, a number of seeds that is not that of prompts, and sampling values that filter_logits refuses.
    """
    _check_sampling(temperature, top_k, top_p)
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens {max_new_tokens} is negative")
    if not prompts:
        raise ValueError("no prompts")
    vocab_size = net.token_embedding.num_embeddings
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {row} is empty")
        if len(prompt) > net.max_seq_len:
            raise ValueError(f"prompt {row} of {len(prompt)} tokens is longer than max_seq_len {net.max_seq_len}")
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise ValueError(f"prompt {row} has ids {min(prompt)} to {max(prompt)}, vocab_size is {vocab_size}")
    seeds = [seed] * len(prompts) if isinstance(seed, int) else seed
    if len(seeds) != len(prompts):
        raise ValueError(f"{len(seeds)} seeds for {len(prompts)} prompts")
    log_probs = partial(filter_logits, temperature=temperature, top_k=top_k, top_p=top_p)
    return _decode(net, prompts, max_new_tokens, log_probs, eos_id, seeds, use_cache)


@torch.inference_mode()
def _decode(
    net: GPT,
    prompts: list[list[int]],
    max_new_tokens: int,
    log_probs: Callable[[Tensor], Tensor],
    eos_id: int | None,
    seeds: list[int],
    use_cache: bool,
) -> Iterator[list[int | None]]:
    batch, width = len(prompts), max(map(len, prompts))
    device = net.token_embedding.weight.device
    tokens = torch.zeros(batch, width + max_new_tokens, dtype=torch.long, device=device)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    for row, prompt in enumerate(prompts):  # left padding: every row's next token falls in the same column
        tokens[row, width - len(prompt) : width] = torch.tensor(prompt, device=device)
        mask[row, : width - len(prompt)] = False
    padded = any(len(prompt) < width for prompt in prompts)
    generators = [torch.Generator().manual_seed(s) for s in seeds]
    cache = net.new_cache(batch, min(width + max_new_tokens, net.max_seq_len)) if use_cache else None
    ended = [False] * batch

    for end in range(width, width + max_new_tokens):
        begin = max(0, end - net.max_seq_len)
        if begin:
            cache = None
        with _evaluating(net):
            features = net.features(
                tokens[:, (cache[0].length if cache else begin) : end],
                attention_mask=mask[:, begin:end] if padded else None,
                cache=cache,
            )
            logits = net.head(features[:, -1])  # (B, V)
        logp = log_probs(logits).cpu()
        drawn = [int(torch.multinomial(logp[row].exp(), 1, generator=g)) for row, g in enumerate(generators)]
        tokens[:, end] = torch.tensor(drawn, device=device)
        yield [None if done else token for done, token in zip(ended, drawn, strict=True)]
        ended = [done or token == eos_id for done, token in zip(ended, drawn, strict=True)]
        if all(ended):
            return


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    """Eval mode inside, and afterwards each module in the mode it had."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature {temperature} is not a number from 0 up")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k {top_k} is not at least 1")
    if top_p is not None and not 0 <= top_p <= 1:
        raise ValueError(f"top_p {top_p} is not in [0, 1]")
