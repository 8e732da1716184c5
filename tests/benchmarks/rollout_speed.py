"""Tokens per second of a rollout: ours beside transformers' generate, both with a cache, and beside generation without one.

    python -m tests.benchmarks.rollout_speed [--threads 2] [--rounds 5]

The size of configs/alignment/ppo.yaml: 128 prompts of 1 to 8 tokens, 40 new tokens each, vocabulary 2048, context 64, 4 layers,
4 heads, 128 wide; random weights, no end token, so that all write as many. All draw at temperature 1. Rounds alternate; a row's
figure is the median, a ratio the median over rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from lit_models.nn.generation import filter_logits
from lit_models.nn.gpt import GPT
from lit_models.nn.rollout import quantile, rollout

VOCAB, CONTEXT, PAD = 2048, 64, 0


def make_prompts(count: int) -> tuple[Tensor, Tensor]:
    """Padded on the right, and their lengths."""
    lengths = torch.randint(1, 9, (count,))
    ids = torch.randint(2, VOCAB, (count, int(lengths.max())))
    return ids.masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], PAD), lengths


def left_padded(prompts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The same padded on the left, and the mask of tokens."""
    width = prompts.shape[1]
    shift = width - lengths[:, None]
    place = torch.arange(width)
    mask = place >= shift
    return torch.where(mask, prompts.gather(1, (place - shift).clamp(min=0)), PAD), mask


@torch.no_grad()
def uncached(net: GPT, prompts: Tensor, lengths: Tensor, draws: Tensor) -> Tensor:
    """Every token from a forward of the whole sequence."""
    ids, mask = left_padded(prompts, lengths)
    for t in range(draws.shape[1]):
        log_probs = filter_logits(net.head(net.features(ids, attention_mask=mask)[:, -1]))
        ids = torch.cat((ids, quantile(log_probs, draws[:, t])[:, None]), dim=1)
        mask = torch.cat((mask, mask.new_ones(len(ids), 1)), dim=1)
    return ids


def main(argv: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--new_tokens", type=int, default=40)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    net = GPT(VOCAB, CONTEXT, num_layers=4, num_heads=4, embed_dim=128).eval()
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=128, n_layer=4, n_head=4, attn_implementation="sdpa")
    theirs = GPT2LMHeadModel(config).eval()
    prompts, lengths = make_prompts(args.prompts)
    ids, mask = left_padded(prompts, lengths)
    draws = torch.rand(args.prompts, args.new_tokens)
    options = {"max_new_tokens": args.new_tokens, "do_sample": True, "top_k": 0, "pad_token_id": PAD, "eos_token_id": VOCAB}
    rows: dict[str, Callable[[], object]] = {
        "ours": lambda: rollout(net, prompts, lengths, draws, eos_id=VOCAB, pad_id=PAD),
        "transformers generate, cached": lambda: theirs.generate(ids, attention_mask=mask.long(), **options),
        "ours, without a cache": lambda: uncached(net, prompts, lengths, draws),
    }
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for number in range(-1, args.rounds):
        for name, row in list(rows.items())[:: 1 if number % 2 else -1]:
            started = time.perf_counter()
            row()
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    found = {}
    for name, own in seconds.items():
        found[name] = statistics.median(a / b for a, b in zip(own, seconds["ours"], strict=True))
        rate = args.prompts * args.new_tokens / statistics.median(own)
        print(f"{name:32} {rate:10,.0f} tokens/s   {found[name]:6.2f} times the time of ours")
    return found


if __name__ == "__main__":
    main()
