"""Retrieval and zero-shot classification by similarity, with ties and several right answers."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

CHUNK = 1024  # queries whose similarities are held at once


def recall_at(
    queries: Float[Tensor, "Q E"],
    candidates: Float[Tensor, "C E"],
    right: Bool[Tensor, "Q C"],
    ks: tuple[int, ...] = (1, 5, 10),
) -> dict[int, float]:
    """Probability that a right candidate is among the first k, over all orders of equal similarities; the mean over queries.

    So a model that maps everything to one point has what chance gives, k / C with one right candidate, and not 1.
    A similarity that is not a number counts as the lowest. Queries without a right candidate are left out.

    Raises:
        ValueError: no query has a right candidate.
    """
    answered = right.any(1)
    if not answered.any():
        raise ValueError("no query has a right candidate")
    total = {k: 0.0 for k in ks}
    queries, right = queries[answered], right[answered]
    for first in range(0, len(queries), CHUNK):
        scores = (queries[first : first + CHUNK].double() @ candidates.double().T).float().nan_to_num(-torch.inf)
        is_right = right[first : first + CHUNK]
        best = scores.masked_fill(~is_right, -torch.inf).amax(1, keepdim=True)
        above = (scores > best).sum(1)  # wrong ones, all of them: best is the highest right score
        tied = scores == best
        tied_right, tied_wrong = (tied & is_right).sum(1), (tied & ~is_right).sum(1)
        for k in ks:
            total[k] += float(hit_probability(k - above, tied_right, tied_wrong).sum())
    return {k: value / len(queries) for k, value in total.items()}


def hit_probability(places: Tensor, num_right: Tensor, num_wrong: Tensor) -> Float[Tensor, "Q"]:
    """Probability that the first `places` of num_right + num_wrong equals in random order hold a right one, each (Q,)."""
    wrong, all_equals = num_wrong.double(), (num_wrong + num_right).double()
    places = places.clamp(min=0).double()
    # 1 - C(wrong, places) / C(all, places), as a quotient of factorials; 1 where there are more places than wrong ones.
    misses = (
        torch.lgamma(wrong + 1) + torch.lgamma(all_equals - places + 1)
        - torch.lgamma((wrong - places).clamp(min=0) + 1) - torch.lgamma(all_equals + 1)
    )  # fmt: skip
    return torch.where(places > wrong, 1.0, 1 - misses.exp()).clamp(0, 1)
