"""A tiny policy, its prompts, and one step of PPO; run as a program, the share of one rank of two.

python -m tests.lit_models.ppo_ranks RANK STORE OUT
"""

import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from datamodules.tokenizers.chars import CharTokenizer
from lit_models.losses.update import Update
from lit_models.nn.gpt import GPT
from lit_models.nn.sampling import Sampling
from lit_models.ppo import LitPPO

LETTERS = "abcdefgh"
HERE = "tests.lit_models.ppo_ranks"


def count_a(texts: Sequence[str]) -> list[float]:
    return [float(text.count("a")) for text in texts]


def length(texts: Sequence[str]) -> list[int]:
    return [len(text) for text in texts]


def tokenizer() -> CharTokenizer:
    made = CharTokenizer(["[PAD]", "[EOS]"])
    made.train([LETTERS])
    return made


def policy(
    update: Update = Update(minibatch_size=8, epochs=2), sampling: Sampling = Sampling(6), world_size: int = 1, rank: int = 0,  # noqa: B008
    **options: Any,
) -> LitPPO:  # fmt: skip
    """With weights at random, large enough for a fault to show, and a step of plain gradient descent."""
    torch.manual_seed(3)
    net = GPT(10, 16, num_layers=2, num_heads=2, embed_dim=16, scalar_head=update.advantage == "gae")
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    options = {"reward": f"{HERE}.count_a", **options}
    lit = LitPPO(net, partial(torch.optim.SGD, lr=0.1), sampling=sampling, update=update, **options)
    data = SimpleNamespace(assets=lambda: {"tokenizer": tokenizer().to_json()})
    progress = SimpleNamespace(increment_ready=lambda: None, increment_completed=lambda: None)
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(manual_optimization=SimpleNamespace(optim_step_progress=progress)))
    lit._trainer = SimpleNamespace(
        world_size=world_size, global_rank=rank, global_step=0, datamodule=data, lr_scheduler_configs=[], fit_loop=loop
    )
    optimizer = torch.optim.SGD(lit.net.parameters(), lr=0.1)
    lit.optimizers = lambda use_pl_optimizer=True: optimizer  # type: ignore[method-assign]
    lit.setup("fit")
    return lit.train()


def prompts(first: int = 0, last: int = 8, micro_batch_size: int = 64) -> dict[str, Any]:
    """Prompts `first` to `last` of eight, of 1 to 4 letters."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([1, 4, 2, 3, 3, 1, 4, 2])
    ids = torch.randint(2, 10, (8, 4), generator=generator).masked_fill(torch.arange(4) >= lengths[:, None], 0)
    batch = {"input_ids": ids, "lengths": lengths, "seeds": torch.arange(100, 108), "index": torch.arange(8)}
    return {**{name: value[first:last] for name, value in batch.items()}, "micro_batch_size": micro_batch_size}


def main(rank: int, store: str, out: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    lit = policy(world_size=2, rank=rank)
    lit.training_step(prompts(4 * rank, 4 * rank + 4), 0)
    if rank == 0:
        torch.save({"net": lit.net.state_dict(), "logged": lit.step_metrics()}, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:4])
