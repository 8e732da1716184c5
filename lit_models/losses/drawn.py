"""What a policy's losses need of its logits, without a second table of their size."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

ROWS = 128  # at once on CPUs: the passes over a block of logits stay in the cache
FLOOR = -1e30  # in place of -inf where it meets a 0


def drawn_log_probs(logits: Float[Tensor, "N V"], tokens: Int[Tensor, "N"]) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
    """log p of the token that was drawn in each row, and the entropy of the row's distribution, in nats.

    A token that cannot be drawn has the logit -inf: it adds nothing, and has no gradient. Differentiable once.
    """
    return _Drawn.apply(logits, tokens)


def _blocks(*tables: Tensor) -> Any:
    """The same rows of all of them, a block at a time; all rows at once on a GPU, where a launch costs more than memory."""
    size = ROWS if tables[0].device.type == "cpu" else max(1, len(tables[0]))
    return zip(*(table.split(size) for table in tables), strict=True)


class _Drawn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        log_probs, entropies, totals = (logits.new_empty(len(logits)) for _ in range(3))
        for rows, own, out, spread, total in _blocks(logits, tokens, log_probs, entropies, totals):
            total.copy_(rows.logsumexp(1))
            out.copy_(rows.gather(1, own[:, None]).squeeze(1) - total)
            finite = rows.clamp(min=FLOOR)
            spread.copy_(total - (rows - total[:, None]).exp_().mul_(finite).sum(1))
        ctx.save_for_backward(logits, tokens, totals, entropies)
        return log_probs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropies: Tensor | None) -> tuple[Tensor | None, None]:
        logits, tokens, totals, entropies = ctx.saved_tensors
        found = torch.empty_like(logits)
        none = torch.zeros_like(totals)
        first = none if of_log_probs is None else of_log_probs
        tables = (found, logits, tokens, totals, entropies, first, none if of_entropies is None else of_entropies)
        for out, rows, own, total, spread, one, other in _blocks(*tables):
            torch.sub(rows, total[:, None], out=out)
            if of_entropies is None:
                out.exp_().mul_(-one[:, None])
            else:  # d H / d logit = - p (log p + H)
                weight = out.clamp(min=FLOOR).add_(spread[:, None]).mul_(other[:, None]).add_(one[:, None])
                out.exp_().mul_(weight).neg_()
            out.scatter_add_(1, own[:, None], one[:, None])
        return found, None
