"""Seconds of a step of supervised fine-tuning: LitGPT in Lightning's Trainer beside TRL's SFTTrainer.

    python -m tests.benchmarks.sft_step [--threads 2] [--rounds 3] [--iterations 40]

The data and the size of configs/alignment/sft.yaml (64 sentences of movie reviews, vocabulary 2048, context 64, 4 layers,
4 heads, 128 wide) without dropout, the loss on the response alone, AdamW. Both have the same ids and draw batches as they do by
default: ours of about one length, TRL's of any.
"""

from functools import partial
from pathlib import Path

import torch

from datamodules.responses import ResponseDataModule
from datamodules.sources.alignment_reviews import ReviewResponses
from datamodules.tokenizers.bpe import BPETokenizer
from lit_models.gpt import LitGPT
from lit_models.nn.gpt import GPT
from tests.benchmarks.trainers import Clock, arguments, compare, fit

CONTEXT, BATCH = 64, 64


def responses() -> ResponseDataModule:
    return ResponseDataModule(ReviewResponses(), BPETokenizer(vocab_size=2048, lowercase=True), BATCH, CONTEXT)


def ours(steps: int, width: int, layers: int, folder: Path) -> list[float]:
    torch.manual_seed(0)
    data = responses()
    data.prepare()
    net = GPT(data.vocab_size, CONTEXT, num_layers=layers, num_heads=4, embed_dim=width)
    return fit(LitGPT(net, partial(torch.optim.AdamW, lr=1e-4)), data, steps)


def trl_sft(steps: int, width: int, layers: int, folder: Path) -> list[float]:
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    torch.manual_seed(0)
    data = responses()
    data.prepare()
    rows = data.dataset("train")
    own = data.tokenizer
    ids = [rows._sequence(row).tolist() for row in rows.rows]
    masks = [
        [0] * length + [1] * (len(row) - length)
        for row, length in zip(ids, rows.prompts.lengths[rows.rows].tolist(), strict=True)
    ]
    vocabulary = {str(i): i for i in range(own.vocab_size)}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="0")), pad_token=str(own.pad_id),
        eos_token=str(own.eos_id),
    )  # fmt: skip
    config = GPT2Config(
        vocab_size=own.vocab_size, n_positions=CONTEXT, n_embd=width, n_layer=layers, n_head=4, attn_implementation="sdpa",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=own.pad_id, eos_token_id=own.eos_id,
        bos_token_id=own.eos_id,
    )  # fmt: skip
    options = SFTConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=1e-4,
        max_length=CONTEXT, completion_only_loss=True, gradient_checkpointing=False, bf16=False, use_cpu=True,
        report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=10**6,
    )  # fmt: skip
    clock = Clock()
    dataset = Dataset.from_dict({"input_ids": ids, "completion_mask": masks})
    model = GPT2LMHeadModel(config)
    SFTTrainer(model, options, train_dataset=dataset, processing_class=fast, callbacks=[clock.for_transformers()]).train()
    return clock.seconds()


def main(argv: list[str] | None = None) -> dict[str, float]:
    args = arguments(__doc__, argv, rounds=3, iterations=40)
    rows = {"ours": ours, "trl": trl_sft}
    return compare(rows, "step", args.threads, args.rounds, args.iterations, args.embed_dim, args.num_layers)


if __name__ == "__main__":
    main()
