"""`chat`: a trained language model answers what is typed. Needs its checkpoint only."""

import sys
from collections.abc import Iterator

from jsonargparse import auto_cli

from lit_models.nn.generation import generate
from lit_models.nn.gpt import GPT
from pipeline.errors import BadInput
from pipeline.generate import OBJECTIVES, stream_text
from pipeline.trained import load_trained


def chat(
    run_dir: str | None = None, ckpt_path: str = "best", max_new_tokens: int = 60, temperature: float = 1.0,
    top_k: int | None = None, top_p: float | None = None, seed: int = 0, device: str = "auto",
) -> None:  # fmt: skip
    """Answers each line that is typed, until an empty line or Ctrl-D.

    Args:
        run_dir: run folder of a model from SFT, PPO or DPO.
        ckpt_path: best, last or a file; with a file run_dir is not needed.
        max_new_tokens: tokens of an answer at most.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: keep the k likeliest tokens.
        top_p: keep the fewest likeliest tokens that reach this probability together.
        seed: answer number i draws with seed + i.
        device: auto, cpu, cuda, ...
    """
    net, tokenizer, _, _ = load_trained(GPT, OBJECTIVES, run_dir, ckpt_path, device)
    if not 0 < max_new_tokens < net.max_seq_len:
        raise BadInput(f"max_new_tokens is {max_new_tokens}; it must be from 1 to {net.max_seq_len - 1}, the context less one")
    if tokenizer.eos_id is None:
        raise BadInput("this model's tokenizer has no [EOS], so that no answer would end: train it with one")
    for number, line in enumerate(lines()):
        ids = tokenizer.encode(line)
        if len(ids) + max_new_tokens > net.max_seq_len:
            limit = net.max_seq_len - max_new_tokens
            print(f"that is {len(ids)} tokens, and there is room for {limit} with {max_new_tokens} to answer: shorten it")
            continue
        steps = generate(
            net, [ids], max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
            eos_id=tokenizer.eos_id, seed=seed + number,
        )  # fmt: skip
        print(line, end="", flush=True)
        for piece in stream_text(steps, tokenizer):
            print(piece, end="", flush=True)
        print()


def lines() -> Iterator[str]:
    """What is typed, line by line; an empty line and the end of input end it."""
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not line.strip():
            return
        yield line.strip()


def main(argv: list[str]) -> int:
    sys.argv[0] = "python -m pipeline chat"
    auto_cli(chat, args=argv[1:], as_positional=False)
    return 0
