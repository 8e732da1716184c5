"""Seconds of one optimizer step: ours beside a nanoGPT-style module and transformers' GPT-2, on the CPU.

    python -m tests.benchmarks.gpt_step [--threads 2] [--rounds 40] [--steps 5]

The size of configs/gpt_char.yaml: vocabulary 65, context 64, batch 12, 4 layers, 4 heads, 128 wide, dropout 0, on random
batches, timed as tests/benchmarks/timing.py says. This measures the network, loss and optimizer, not the runner.

nanoGPT asks for fused AdamW on CUDA only, so "AdamW" is torch's default here; "fused" gives it ours.
Source: https://github.com/karpathy/nanoGPT, model.py and train.py, written anew.
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_models.losses.language import token_cross_entropy
from lit_models.nn.gpt import GPT
from tests.benchmarks.timing import Row, measure, report

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


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5, help="optimizer steps of each row in a round")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    table = rows()
    data = torch.randint(VOCAB, (args.steps, BATCH, CONTEXT + 1))
    batches = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in data]
    report(table, measure(table, batches, args.rounds), args.steps, BATCH * CONTEXT)


if __name__ == "__main__":
    main()
