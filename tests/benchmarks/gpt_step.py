"""Seconds of one optimizer step: ours beside a nanoGPT-style module and transformers' GPT-2, on the CPU.

    python -m tests.benchmarks.gpt_step [--threads 2] [--rounds 40] [--steps 5]

The size of configs/gpt_char.yaml: vocabulary 65, context 64, batch 12, 4 layers, 4 heads, 128 wide, dropout 0. A step
is forward, loss, backward, clipping at 1.0, AdamW, zero_grad, on the same random batches. All rows live in one process
with the same allocator settings (the system's, unless MALLOC_* is set outside) and alternate: every round runs `steps`
steps of each row, in turn forwards and backwards, so that a slow spell of the machine meets all of them alike. A round
counts by the median of its steps; a ratio is the median over rounds of row / first row. This measures the network, loss
and optimizer, not the runner.

nanoGPT asks for fused AdamW on CUDA only, so "AdamW" is torch's default here; "fused" gives it ours.
Source: https://github.com/karpathy/nanoGPT, model.py and train.py, written anew.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.losses.language import token_cross_entropy
from lit_models.nn.gpt import GPT
from lit_models.optim.param_groups import param_groups

VOCAB, CONTEXT, BATCH, LAYERS, HEADS, WIDTH = 65, 64, 12, 4, 4, 128


class NanoBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(d, dim=2)
        q, k, v = (y.view(b, t, HEADS, d // HEADS).transpose(1, 2) for y in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).contiguous().view(b, t, d))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class NanoGPT(nn.Module):
    """nanoGPT's model: no biases, exact GELU, tied head, attention by scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.h = nn.ModuleList(NanoBlock() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH, bias=False)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.wte.weight = self.lm_head.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * LAYERS) if name.endswith("proj.weight") else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Row:
    """A network, its loss and its optimizer."""

    def __init__(self, net: nn.Module, loss: Callable[[nn.Module, Tensor, Tensor], Tensor], fused: bool) -> None:
        self.net, self.loss = net.train(), loss
        groups = [{k: v for k, v in g.items() if k in ("params", "weight_decay")} for g in param_groups(net)]
        options = {"fused": True} if fused else {}
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1, **options)

    def step(self, ids: Tensor, labels: Tensor) -> float:
        loss = self.loss(self.net, ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def ours_loss(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    total, count = token_cross_entropy(net(ids), labels)
    return total / count


def nano_loss(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    logits = net(ids)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-1)


def hf_loss(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
    return net(input_ids=ids, labels=labels, shift_labels=labels, use_cache=False).loss


def rows() -> dict[str, Row]:
    """Ours first; transformers' where it is installed."""

    def ours() -> GPT:
        return GPT(vocab_size=VOCAB, max_seq_len=CONTEXT, num_layers=LAYERS, num_heads=HEADS, embed_dim=WIDTH)

    out = {
        "ours, AdamW fused": Row(ours(), ours_loss, fused=True),
        "ours, AdamW": Row(ours(), ours_loss, fused=False),
        "nanoGPT, AdamW": Row(NanoGPT(), nano_loss, fused=False),
        "nanoGPT, AdamW fused": Row(NanoGPT(), nano_loss, fused=True),
    }
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        print("transformers is not installed: its rows are left out")
        return out
    for attention in ("eager", "sdpa"):
        config = GPT2Config(
            vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            attn_implementation=attention,
        )  # fmt: skip
        for fused in (False, True):
            name = f"transformers {attention}, AdamW{' fused' * fused}"
            net = GPT2LMHeadModel(config)
            net.loss_type = "ForCausalLM"  # its default, without the warning
            out[name] = Row(net, hf_loss, fused)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps of each row in a round")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    table = rows()
    data = torch.randint(VOCAB, (args.steps, BATCH, CONTEXT + 1))
    batches = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in data]
    times: dict[str, list[float]] = {name: [] for name in table}
    losses: dict[str, float] = {}
    for number in range(-3, args.rounds):  # three rounds warm up
        for name, row in list(table.items())[:: 1 if number % 2 else -1]:
            seconds = []
            for ids, labels in batches:
                start = time.perf_counter()
                losses[name] = row.step(ids, labels)
                seconds.append(time.perf_counter() - start)
            if number >= 0:
                times[name].append(statistics.median(seconds))
    settings = {k: v for k, v in os.environ.items() if k.startswith("MALLOC_") or k == "LD_PRELOAD"}
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"{args.rounds} rounds of {args.steps} steps, allocator {settings or 'as the system has it'}"
    )
    first = next(iter(times.values()))
    print(f"{'':34} {'ms/step':>8} {'tokens/s':>9} {'/ first':>8} {'parameters':>11} {'last loss':>9}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        ratio = statistics.median(a / b for a, b in zip(seconds, first, strict=True))
        size = sum(p.numel() for p in table[name].net.parameters())
        line = f"{median * 1e3:8.2f} {BATCH * CONTEXT / median:9,.0f} {ratio:8.2f} {size:11,} {losses[name]:9.4f}"
        print(f"{name:34} {line}")


if __name__ == "__main__":
    main()
