"""PPO against the best policy there is, on responses so short that all of them can be listed.

    python -m tests.benchmarks.enumerable [--seeds 10] [--out runs/alignment/enumerable_seeds]

The best policy for E[reward] - beta KL(policy, reference) is the reference times exp(reward / beta), normalised. Trains the
start of configs/alignment/enumerable_sft.yaml once, then configs/alignment/enumerable.yaml with each seed, and computes of each
policy the objective J exactly, over every response, unfinished ones included. Writes optimum, reached objective and their
ratio, (J - J_ref) / (J* - J_ref), to results.json.
"""

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from datamodules.sources.letters import LETTERS, alphabetical
from datamodules.tokenizers.base import Tokenizer
from lit_models.nn.gpt import GPT
from pipeline import errors
from pipeline.__main__ import main as run
from pipeline.trained import load_trained

SFT, PPO = "configs/alignment/enumerable_sft.yaml", "configs/alignment/enumerable.yaml"
BETA, MAX_NEW_TOKENS = 0.3, 5  # those of the config


def responses(tokenizer: Tokenizer) -> list[list[int]]:
    """Every response: what ends with the end token within the limit, and what the limit cuts off."""
    others = [i for i in range(tokenizer.vocab_size) if i != tokenizer.eos_id]
    ended = [[*ids, tokenizer.eos_id] for n in range(MAX_NEW_TOKENS) for ids in itertools.product(others, repeat=n)]
    return [*ended, *map(list, itertools.product(others, repeat=MAX_NEW_TOKENS))]


@torch.no_grad()
def log_probs(net: GPT, prompt: list[int], listed: list[list[int]]) -> Tensor:
    """(R,) of each response to a prompt, in float64."""
    rows = [torch.tensor(prompt + ids) for ids in listed]
    table = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    logits = torch.cat([net.double()(part[:, :-1]) for part in table.split(2048)])
    each = logits.log_softmax(-1).gather(-1, table[:, 1:, None]).squeeze(-1)  # of every token but the first
    place = torch.arange(each.shape[1])
    lengths = torch.tensor([len(ids) for ids in listed])[:, None]
    first = len(prompt) - 1
    return each.masked_fill((place < first) | (place >= first + lengths), 0.0).sum(1)


def objectives(policy: GPT, reference: GPT, tokenizer: Tokenizer) -> dict[str, float]:
    """The mean over prompts of J of the policy, of the reference and of the best policy; and the KL of the policy."""
    listed, rows = responses(tokenizer), []
    for letter in LETTERS:
        prompt = tokenizer.encode(letter)
        rewards = torch.tensor(alphabetical([letter + tokenizer.decode(ids) for ids in listed]), dtype=torch.float64)
        own, start = log_probs(policy, prompt, listed), log_probs(reference, prompt, listed)
        assert abs(float(own.exp().sum()) - 1) < 1e-9, "the responses are not all there are"
        kl = (own.exp() * (own - start)).sum()
        best = BETA * (start + rewards / BETA).logsumexp(0)
        rows.append(torch.stack(((own.exp() * rewards).sum() - BETA * kl, (start.exp() * rewards).sum(), best, kl)))
    reached, at_start, best, kl = torch.stack(rows).mean(0).tolist()
    return {"J": reached, "J_ref": at_start, "J_best": best, "kl": kl, "ratio": (reached - at_start) / (best - at_start)}


def fit(*args: Any) -> None:
    errors.running = None
    code = run(["fit", *map(str, args), "--trainer.accelerator=cpu", "--trainer.logger=false", "--fresh"])
    assert code == 0, f"fit ended with {code}"


def load(run_dir: Path, objective: str) -> tuple[GPT, Tokenizer]:
    net, tokenizer, _, _ = load_trained(GPT, objective, str(run_dir), "last", "cpu")
    return net, tokenizer


def seeds(count: int, out: Path, *options: str) -> list[dict[str, float]]:
    """The results of `count` seeds, each a run in `out`; options are those of the PPO runs."""
    fit("--config", SFT, "--run_dir", out / "sft")
    reference, tokenizer = load(out / "sft", "lit_models.gpt.LitGPT")
    found = []
    for seed in range(count):
        folder = out / f"seed_{seed}"
        start = ["--model.init_args.init_from", out / "sft"]
        fit("--config", PPO, "--run_dir", folder, "--seed_everything", seed, *start, *options)
        policy, _ = load(folder, "lit_models.ppo.LitPPO")
        found.append({"seed": seed, **objectives(policy, reference, tokenizer)})
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/alignment/enumerable_seeds"))
    args = parser.parse_args(argv)
    started = time.perf_counter()
    found = seeds(args.seeds, args.out)
    seconds = time.perf_counter() - started
    results = args.out / "results.json"
    results.write_text(json.dumps({"seconds": round(seconds, 1), "seeds": found}, indent=1))
    table = Table(*found[0])
    for row in found:
        table.add_row(*(str(value) if isinstance(value, int) else f"{value:.4f}" for value in row.values()))
    Console().print(table)
    reached = sum(row["ratio"] >= 0.97 for row in found)
    print(f"{reached} of {len(found)} seeds close at least 97 % of the gap; {seconds:.0f} s; written to {results}")


if __name__ == "__main__":
    main()
