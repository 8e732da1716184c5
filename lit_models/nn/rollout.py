"""Responses drawn from a policy, as it is trained on them: a batch of prompts at once, with a cache of keys and values."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lit_models.nn.attention import KVCache
from lit_models.nn.generation import filter_logits
from lit_models.nn.gpt import GPT

SHRINK = 0.75  # of the rows are still being written: the others are taken out of the batch


@dataclass(frozen=True)
class Rollout:
    """Prompts with their responses, each from position 0 on, padded on the right.

    `response` is True at the tokens that were drawn, the end token included. `allowed` says which tokens could be drawn at each
    of them, where top_k or top_p left some out: [b, t] belongs to the t-th token of response b.
    """

    tokens: Int[Tensor, "B S"]
    response: Bool[Tensor, "B S"]
    ended: Bool[Tensor, "B"]  # with the end token, before the limit
    allowed: Bool[Tensor, "B T V"] | None


@torch.no_grad()
def rollout(
    net: GPT,
    prompts: Int[Tensor, "B P"],
    lengths: Int[Tensor, "B"],
    draws: Float[Tensor, "B T"],
    *,
    eos_id: int,
    pad_id: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Rollout:
    """One response of up to T tokens for each prompt. The network is in eval mode, which is the caller's affair.

    prompts: padded on the right; lengths say how long each is.
    draws: uniform numbers in [0, 1): token t of response b is the quantile draws[b, t] of its distribution, so that a response
        depends on its own numbers alone, not on the batch. Sampling as in filter_logits.

    Raises: ValueError for a temperature of 0, an empty prompt, or prompts and responses longer than max_seq_len together.
    """
    batch, width = prompts.shape
    num_new = draws.shape[1]
    if temperature <= 0:
        raise ValueError(f"temperature {temperature}: a policy that is trained draws its tokens, so it must be above 0")
    if int(lengths.min()) < 1:
        raise ValueError(f"prompt {int(lengths.argmin())} is empty")
    if width + num_new > net.max_seq_len:
        raise ValueError(f"prompts of {width} and {num_new} new tokens are longer than max_seq_len {net.max_seq_len}")
    device = prompts.device
    filtered = (top_k is not None and top_k < net.token_embedding.num_embeddings) or (top_p is not None and top_p < 1)
    place = torch.arange(width, device=device)
    shift = width - lengths[:, None]  # padded on the left, every row's next token falls in the same column
    columns = (place - shift).clamp(min=0)
    mask = place >= shift
    step = torch.where(mask, prompts.gather(1, columns), pad_id)
    mask = torch.cat((mask, mask.new_ones(batch, num_new)), dim=1)
    padded = not bool(mask.all())
    drawn = torch.full((batch, num_new), pad_id, dtype=torch.long, device=device)
    written = torch.zeros(batch, num_new, dtype=torch.bool, device=device)
    sets: list[Tensor] | None = [] if filtered else None
    rows = torch.arange(batch, device=device)  # those in the batch
    over = torch.zeros(batch, dtype=torch.bool, device=device)
    cache = net.new_cache(batch, width + num_new)
    for t in range(num_new):
        shown = mask[rows, : width + t] if padded else None
        logits = net.head(net.features(step, attention_mask=shown, cache=cache)[:, -1])
        log_probs = filter_logits(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        tokens = quantile(log_probs, draws[rows, t])
        drawn[rows, t], written[rows, t] = tokens, True
        if sets is not None:
            allowed = torch.zeros(batch, logits.shape[1], dtype=torch.bool, device=device)
            allowed[rows] = log_probs > -torch.inf
            sets.append(allowed)
        over |= tokens == eos_id
        num_left = len(rows) - int(over.sum())
        if num_left == 0 or t == num_new - 1:
            break
        step = tokens[:, None]
        if num_left <= SHRINK * len(rows):  # a row that has ended goes on unseen until then: taking rows out copies the cache
            left = ~over
            rows, step, over = rows[left], step[left], over[left]
            cache = [KVCache(layer.keys[left], layer.values[left], layer.length) for layer in cache]
    ends = written & (drawn == eos_id)
    written &= ends.int().cumsum(1) - ends.int() == 0  # up to the first end token, which counts
    ended = (ends & written).any(1)
    return _packed(prompts, lengths, drawn, written, ended, sets, pad_id)


def quantile(log_probs: Float[Tensor, "B V"], draws: Float[Tensor, "B"]) -> Int[Tensor, "B"]:
    """The first token at which the distribution function exceeds the draw: a token of probability 0 is never it."""
    cumulated = log_probs.exp().cumsum(-1, dtype=torch.float64)
    total = cumulated[:, -1:]
    below = total.nextafter(total.new_zeros(()))  # the product may have been rounded up to the total
    target = torch.minimum(draws.double()[:, None] * total, below)
    return torch.searchsorted(cumulated, target, right=True).squeeze(1)


def _packed(
    prompts: Tensor, lengths: Tensor, drawn: Tensor, written: Tensor, ended: Tensor, sets: list[Tensor] | None, pad_id: int
) -> Rollout:
    """Each response directly behind its prompt."""
    batch, width = prompts.shape
    num_new = written.sum(1)
    longest = int((lengths + num_new).max())
    place = torch.arange(longest, device=prompts.device)
    own = torch.cat((prompts, drawn), dim=1)
    source = torch.where(place < lengths[:, None], place, place - lengths[:, None] + width).clamp(max=own.shape[1] - 1)
    response = (place >= lengths[:, None]) & (place < (lengths + num_new)[:, None])
    inside = place < (lengths + num_new)[:, None]
    tokens = torch.where(inside, own.gather(1, source), pad_id)
    allowed = torch.stack(sets, dim=1)[:, : int(num_new.max())] if sets else None
    return Rollout(tokens, response, ended, allowed)
