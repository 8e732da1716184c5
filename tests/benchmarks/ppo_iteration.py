"""Seconds of one iteration of PPO (rollout, scores, update): ours in Lightning's Trainer beside TRL's PPOTrainer.

    python -m tests.benchmarks.ppo_iteration [--threads 2] [--rounds 3] [--iterations 4]

The size of configs/alignment/ppo.yaml: 128 prompts of 1 to 8 tokens, up to 40 new tokens, vocabulary 2048, 4 layers, 4 heads,
128 wide, a reward model of the same size; 2 epochs of 2 minibatches of 64, AdamW; random weights, so that nearly all
responses have 40 tokens. TRL's values come from a network of their own, ours from a head of the policy: that is how each is
used. Timed as in tests/benchmarks/trainers.py.
"""

import random
from functools import partial
from pathlib import Path
from typing import Any

import torch

from datamodules.prompts import PromptDataModule
from datamodules.sources.base import Source, digest, to_dataset_dict
from datamodules.tokenizers.chars import CharTokenizer
from lit_models.losses.update import Update
from lit_models.nn.gpt import GPT
from lit_models.nn.sampling import Sampling
from lit_models.ppo import LitPPO
from tests.benchmarks.trainers import Clock, arguments, compare, fit

VOCAB, CONTEXT, BATCH, MINIBATCH, EPOCHS, NEW_TOKENS = 2048, 64, 128, 64, 2, 40
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class RandomPrompts(Source):
    """1 to 8 random letters; a column `prompt`."""

    def load(self) -> Any:
        draw = random.Random(0)
        texts = ["".join(draw.choices(LETTERS, k=draw.randint(1, 8))) for _ in range(16 * BATCH)]
        return to_dataset_dict({"train": [{"prompt": text, "row": str(i)} for i, text in enumerate(texts)]}, ["prompt", "row"])

    def fingerprint(self) -> str:
        return digest("random prompts", 1)

    def describe(self) -> str:
        return "random prompts"


def tokenizer() -> CharTokenizer:
    made = CharTokenizer(["[PAD]", "[EOS]"])
    made.train([LETTERS])
    return made


def sizes(width: int, layers: int) -> dict[str, Any]:
    return {"vocab_size": VOCAB, "max_seq_len": CONTEXT, "num_layers": layers, "num_heads": 4, "embed_dim": width}


def ours(iterations: int, width: int, layers: int, folder: Path) -> list[float]:
    torch.manual_seed(0)
    shape = {**sizes(width, layers), "scalar_head": True}
    reward, path = GPT(**shape), folder / "reward.ckpt"
    state = {f"net.{name}": value for name, value in reward.state_dict().items()}
    torch.save({"state_dict": state, "hyper_parameters": {"net": shape}}, path)
    update = Update(epochs=EPOCHS, minibatch_size=MINIBATCH, missing_eos_penalty=1.0)
    optimizer = partial(torch.optim.AdamW, lr=1e-5)
    lit = LitPPO(GPT(**shape), optimizer, reward=str(path), sampling=Sampling(NEW_TOKENS), update=update)
    data = PromptDataModule(RandomPrompts(), tokenizer(), BATCH, CONTEXT, NEW_TOKENS, cache_dir=str(folder))
    return fit(lit, data, iterations)


def trl_ppo(iterations: int, width: int, layers: int, folder: Path) -> list[float]:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import (
        GPT2Config,
        GPT2ForSequenceClassification,
        GPT2LMHeadModel,
        PreTrainedTokenizerFast,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    torch.manual_seed(0)
    own = tokenizer()
    vocabulary = {"[PAD]": own.pad_id, "[EOS]": own.eos_id} | {letter: own.encode(letter)[0] for letter in LETTERS}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="[EOS]")), pad_token="[PAD]", eos_token="[EOS]",
        padding_side="left",
    )  # fmt: skip
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=CONTEXT, n_embd=width, n_layer=layers, n_head=4, attn_implementation="sdpa", num_labels=1,
        pad_token_id=own.pad_id, eos_token_id=own.eos_id, bos_token_id=own.eos_id,
    )  # fmt: skip
    policy = GPT2LMHeadModel(config)
    reference = GPT2LMHeadModel(config)
    reference.load_state_dict(policy.state_dict())
    value, reward = GPT2ForSequenceClassification(config), GPT2ForSequenceClassification(config)
    prompts = RandomPrompts().load()["train"]["prompt"]
    options = PPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=MINIBATCH, gradient_accumulation_steps=BATCH // MINIBATCH,
        num_mini_batches=BATCH // MINIBATCH, num_ppo_epochs=EPOCHS, total_episodes=iterations * BATCH, learning_rate=1e-5,
        response_length=NEW_TOKENS, stop_token="eos", temperature=1.0, missing_eos_penalty=1.0, num_sample_generations=0,
        local_rollout_forward_batch_size=BATCH, gradient_checkpointing=False, bf16=False, use_cpu=True, report_to="none",
        save_strategy="no", eval_strategy="no", disable_tqdm=True, logging_steps=10**6,
    )  # fmt: skip
    clock = Clock()
    ids = Dataset.from_dict({"input_ids": [own.encode(text) for text in prompts]})
    few = ids.select(range(BATCH))
    trainer = PPOTrainer(options, fast, policy, reference, reward, ids, value, eval_dataset=few)
    trainer.add_callback(clock.for_transformers())
    trainer.train()
    return clock.seconds()


def main(argv: list[str] | None = None) -> dict[str, float]:
    args = arguments(__doc__, argv, rounds=3, iterations=4)
    rows = {"ours": ours, "trl": trl_ppo}
    return compare(rows, "iteration", args.threads, args.rounds, args.iterations, args.embed_dim, args.num_layers)


if __name__ == "__main__":
    main()
