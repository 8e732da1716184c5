"""A tiny CLIP, its batches, and its gradient; run as a program, the share of one rank of two.

python -m tests.lit_models.clip_ranks RANK STORE OUT
"""

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from lit_models.clip import LitCLIP
from lit_models.nn.clip import CLIP

SIZES: dict[str, Any] = {
    "max_seq_len": 8, "projection_dim": 16, "patch_size": 4, "image_num_layers": 2, "image_num_heads": 2,
    "image_embed_dim": 16, "text_num_layers": 2, "text_num_heads": 2, "text_embed_dim": 16,
}  # fmt: skip
EOS = 49


def tiny(loss: str = "softmax", world_size: int = 1, rank: int = 0, **options: Any) -> LitCLIP:
    torch.manual_seed(5)
    lit = LitCLIP(
        CLIP(8, 50, EOS, **SIZES, logit_bias=loss == "sigmoid"), partial(torch.optim.SGD, lr=0.1), loss=loss, **options
    )
    with torch.no_grad():
        for p in lit.net.parameters():
            p.add_(0.1 * torch.randn_like(p))
    lit._trainer = SimpleNamespace(world_size=world_size, global_rank=rank)
    return lit.train()


def pairs(first: int = 0, last: int = 64, micro_batch_size: int = 64) -> dict[str, Any]:
    """Pairs `first` to `last` of 64, some captions and images among them equal, across the halves too."""
    generator = torch.Generator().manual_seed(3)
    images, ids = torch.randn(64, 3, 8, 8, generator=generator), torch.randint(2, EOS, (64, 6), generator=generator)
    captions, pictures = torch.arange(64), torch.arange(64)
    captions[[5, 40, 41]], pictures[[7, 50]] = 5, 7
    ids[:, -1] = EOS
    ids, images = ids[captions], images[pictures]
    batch = {
        "images": images,
        "input_ids": ids,
        "caption_numbers": captions,
        "image_numbers": pictures,
        "index": torch.arange(64),
    }
    return {**{k: v[first:last] for k, v in batch.items()}, "num_pairs": last - first, "micro_batch_size": micro_batch_size}


def gradient(lit: LitCLIP, batch: dict[str, Any]) -> tuple[float, dict[str, torch.Tensor]]:
    """Sum of the losses, and its gradient."""
    loss = lit.step(batch)
    loss.sum.backward()
    return float(loss.sum.detach()), {name: p.grad for name, p in lit.net.named_parameters() if p.grad is not None}


def main(rank: int, store: Path, out: Path, loss: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    total, grads = gradient(tiny(loss, 2, rank), pairs(32 * rank, 32 * rank + 32))
    for grad in grads.values():
        torch.distributed.all_reduce(grad)
    if rank == 0:
        torch.save(grads, out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
