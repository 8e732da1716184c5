"""Shapes in signatures are checked while the tests run; results do not depend on threads or order."""

from collections.abc import Iterator

import pytest
import torch
from jaxtyping import install_import_hook

# The tower: an int is a float, as for every type checker.
install_import_hook(
    ["lit_models.nn", "lit_models.losses"], "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
)

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
