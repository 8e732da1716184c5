"""`generate`: text from a trained language model. Needs its checkpoint only."""

import sys
from collections.abc import Iterator
from pathlib import Path

from jsonargparse import auto_cli

from datamodules.tokenizers.base import Tokenizer
from lit_models.nn.generation import generate as continue_prompts
from lit_models.nn.gpt import GPT
from pipeline.errors import BadInput
from pipeline.trained import load_trained

OBJECTIVES = ("lit_models.gpt.LitGPT", "lit_models.ppo.LitPPO", "lit_models.dpo.LitDPO")


def generate(
    run_dir: str | None = None,
    prompt: str = "",
    prompts_file: str | None = None,
    ckpt_path: str = "best",
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    num_samples: int = 1,
    seed: int = 0,
    stop_at_eos: bool = True,
    use_cache: bool = True,
    device: str = "auto",
) -> None:
    """Continues prompts with a trained language model and prints the text as it comes.

    Args:
        run_dir: run folder of the model.
        prompt: text to continue; empty starts a new document.
        prompts_file: file with one prompt a line, continued as one batch.
        ckpt_path: best, last or a file; with a file run_dir is not needed.
        max_new_tokens: tokens to add at most.
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: keep the k likeliest tokens.
        top_p: keep the fewest likeliest tokens that reach this probability together.
        num_samples: continuations of each prompt; number i draws with seed + i.
        seed: the same seed gives the same text, whatever other prompts are in the batch.
        stop_at_eos: end where the model ends the document.
        use_cache: keep keys and values of earlier tokens; the text is the same without, and slower to come.
        device: auto, cpu, cuda, ...
    """
    if num_samples < 1:
        raise BadInput(f"num_samples is {num_samples}; it must be at least 1")
    net, tokenizer, _, _ = load_trained(GPT, OBJECTIVES, run_dir, ckpt_path, device)
    prompts = [text for text in _prompts(prompt, prompts_file) for _ in range(num_samples)]
    ids = [_encode(text, tokenizer, net.max_seq_len) for text in prompts]
    seeds = [seed + i % num_samples for i in range(len(prompts))]
    steps = continue_prompts(
        net, ids, max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
        eos_id=tokenizer.eos_id if stop_at_eos else None, seed=seeds, use_cache=use_cache,
    )  # fmt: skip
    if len(prompts) == 1:
        print(prompts[0], end="", flush=True)
        for piece in stream_text(steps, tokenizer):
            print(piece, end="", flush=True)
        print()
        return
    rows: list[list[int]] = [[] for _ in prompts]
    for step in steps:
        for row, token in zip(rows, step, strict=True):
            if token is not None:
                row.append(token)
    for i, (text, row) in enumerate(zip(prompts, rows, strict=True)):
        print(f"--- {i + 1} of {len(prompts)}\n{text}{tokenizer.decode(row)}")


def stream_text(steps: Iterator[list[int | None]], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of the first row, piece by piece; a character comes when its last byte does."""
    ids: list[int] = []
    shown = 0
    for step in steps:
        if step[0] is not None:
            ids.append(step[0])
        text = tokenizer.decode(ids)
        whole = len(text.rstrip("\ufffd"))
        if whole > shown:
            yield text[shown:whole]
            shown = whole
    yield tokenizer.decode(ids)[shown:]


def _prompts(prompt: str, prompts_file: str | None) -> list[str]:
    if prompts_file is None:
        return [prompt]
    if prompt:
        raise BadInput("give either --prompt or --prompts_file, not both")
    if not Path(prompts_file).is_file():
        raise BadInput(f"no prompts_file at {prompts_file}")
    lines = [line for line in Path(prompts_file).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise BadInput(f"{prompts_file} holds no prompt")
    return lines


def _encode(text: str, tokenizer: Tokenizer, max_seq_len: int) -> list[int]:
    ids = tokenizer.encode(text)
    if not ids:
        if tokenizer.eos_id is None:
            raise BadInput(
                "the prompt is empty, and this model's tokenizer has no [EOS] to begin a document with: give --prompt"
            )
        return [tokenizer.eos_id]
    if len(ids) > max_seq_len:
        raise BadInput(f"the prompt has {len(ids)} tokens; the model's context (max_seq_len) is {max_seq_len}: shorten it")
    return ids


def main(argv: list[str]) -> int:
    sys.argv[0] = "python -m pipeline generate"
    auto_cli(generate, args=argv[1:], as_positional=False)
    return 0
