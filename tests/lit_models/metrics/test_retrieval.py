"""Recall with ties and several right answers, against every order of the ties."""

from itertools import permutations

import pytest
import torch

from lit_models.metrics import retrieval
from lit_models.metrics.retrieval import recall_at


def by_orders(scores: list[int], right: list[bool], k: int) -> float:
    """Share of the orders that agree with the scores in which a right one is among the first k."""
    orders = [
        o for o in permutations(range(len(scores))) if all(scores[a] >= scores[b] for a, b in zip(o, o[1:], strict=False))
    ]
    return sum(any(right[i] for i in order[:k]) for order in orders) / len(orders)


def test_every_order_of_equal_scores_counts_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        scores = torch.randint(0, 3, (6,), generator=generator)
        right = torch.rand(6, generator=generator) < 0.4
        right[0] = True
        found = recall_at(torch.ones(1, 1), scores[:, None].float(), right[None], ks=(1, 2, 4, 6))
        for k, value in found.items():
            assert value == pytest.approx(by_orders(scores.tolist(), right.tolist(), k), abs=1e-12)


@pytest.mark.parametrize("value", [1.0, 0.0, torch.nan])
def test_a_collapsed_model_has_what_chance_gives(value: float) -> None:
    features = torch.full((40, 8), value)
    for k, found in recall_at(features, features, torch.eye(40, dtype=torch.bool)).items():
        assert found == pytest.approx(k / 40, abs=1e-12)


def test_one_feature_that_is_no_number_is_the_last() -> None:
    queries, candidates = torch.ones(2, 1), torch.tensor([[torch.nan], [0.5]])
    assert recall_at(queries, candidates, torch.eye(2, dtype=torch.bool), ks=(1,)) == {1: 0.5}


def test_more_places_than_candidates_find_everything() -> None:
    features = torch.randn(3, 4)
    assert recall_at(features, features, torch.eye(3, dtype=torch.bool).roll(1, 0), ks=(3, 10)) == {3: 1.0, 10: 1.0}


def test_queries_without_a_right_candidate_are_left_out() -> None:
    features, right = torch.eye(3), torch.eye(3, dtype=torch.bool)
    right[1] = False
    assert recall_at(features, features, right, ks=(1,)) == {1: 1.0}
    with pytest.raises(ValueError, match="no query has a right candidate"):
        recall_at(features, features, torch.zeros(3, 3, dtype=torch.bool))


def test_queries_are_taken_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, candidates, right = torch.randn(7, 4), torch.randn(9, 4), torch.rand(7, 9) < 0.3
    whole = recall_at(queries, candidates, right)
    monkeypatch.setattr(retrieval, "CHUNK", 2)
    assert recall_at(queries, candidates, right) == pytest.approx(whole, abs=1e-12)
