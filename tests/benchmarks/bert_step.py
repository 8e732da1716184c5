"""Seconds of one pre-training step: our BERT beside transformers' with the same weights, on the CPU.

    python -m tests.benchmarks.bert_step [--threads 2] [--rounds 20] [--steps 3] [--embed_dim 192]

The size of configs/bert.yaml: vocabulary 4096, 32 pairs of 128 tokens, 4 layers, 4 heads, 192 wide; but dropout 0, so that
the losses must be equal: the first step's are compared. Pairs are of 104 to 128 tokens, one of them of 128, and padded:
about 10 % is padding. 15 % of the tokens are predicted. Timed as tests/benchmarks/timing.py says; tokens/s leaves padding out.

transformers' BertForPreTraining computes the vocabulary's logits at every place, ours at the predicted ones only. Both take
the batch as their own data pipelines give it: the labels of all places there, the predicted places here.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining

from lit_models.losses.language import token_cross_entropy
from lit_models.nn.bert import BERT
from tests.benchmarks.timing import Row, measure, report
from tests.lit_models.nn.test_bert import theirs_by_ours

IGNORE, PAD, MASK, NUM_SPECIAL = -100, 0, 4, 5
TOLERANCE = 1e-4  # of the first step's loss, in nats


def make_batch(size: int, context: int, vocab_size: int) -> tuple[Tensor, ...]:
    """input_ids, segment_ids, attention_mask, labels, predicted places, next_sentence."""
    length = torch.randint(context - context * 3 // 16, context + 1, (size,))
    length[0] = context
    place = torch.arange(context)
    mask = place < length[:, None]
    tokens = torch.randint(NUM_SPECIAL, vocab_size, (size, context))
    chosen = (torch.rand(size, context) < 0.15) & mask
    chosen[:, 1] |= ~chosen.any(1)  # a pair has one at least
    ids = tokens.where(~chosen, MASK).where(mask, PAD)
    segments = ((place >= length[:, None] // 2) & mask).long()
    labels = tokens.where(chosen, IGNORE)
    return ids, segments, mask, labels, chosen.flatten().nonzero().squeeze(1), torch.randint(2, (size,))


def ours_loss(net: nn.Module, ids: Tensor, segments: Tensor, mask: Tensor, labels: Tensor, predicted: Tensor, nsp: Tensor):
    logits = net(ids, segments, mask, predicted)
    total, count = token_cross_entropy(logits.mlm, labels.flatten()[predicted])
    return total / count + F.cross_entropy(logits.nsp, nsp)


def hf_loss(net: nn.Module, ids: Tensor, segments: Tensor, mask: Tensor, labels: Tensor, _: Tensor, nsp: Tensor):
    return net(
        input_ids=ids, token_type_ids=segments, attention_mask=mask, labels=labels, next_sentence_label=nsp
    ).loss  # fmt: skip


def rows(vocab_size: int, context: int, num_layers: int, num_heads: int, embed_dim: int) -> dict[str, Row]:
    """All with the weights of the first of transformers'."""

    def theirs(attention: str) -> BertForPreTraining:
        config = BertConfig(
            vocab_size=vocab_size, hidden_size=embed_dim, num_hidden_layers=num_layers, num_attention_heads=num_heads,
            intermediate_size=4 * embed_dim, max_position_embeddings=context, pad_token_id=PAD,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation=attention,
        )  # fmt: skip
        return BertForPreTraining(config)

    reference = theirs("eager")
    named = dict(reference.named_parameters())

    def ours() -> BERT:
        net = BERT(vocab_size, context, num_layers=num_layers, num_heads=num_heads, embed_dim=embed_dim)
        with torch.no_grad():
            for name, names in theirs_by_ours(net).items():
                net.get_parameter(name).copy_(torch.cat([named[each] for each in names]))
        return net

    out = {f"ours, AdamW{' fused' * fused}": Row(ours(), ours_loss, fused) for fused in (True, False)}
    for attention in ("eager", "sdpa"):
        for fused in (False, True):
            net = theirs(attention)
            net.load_state_dict(reference.state_dict())
            out[f"transformers {attention}, AdamW{' fused' * fused}"] = Row(net, hf_loss, fused)
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each row in a round")
    parser.add_argument("--batch_size", type=int, default=32, help="pairs in a step")
    parser.add_argument("--context", type=int, default=128, help="tokens of the longest pair")
    parser.add_argument("--vocab_size", type=int, default=4096)
    parser.add_argument("--num_layers", type=int, default=4)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--embed_dim", type=int, default=192)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    table = rows(args.vocab_size, args.context, args.num_layers, args.num_heads, args.embed_dim)
    batches = [make_batch(args.batch_size, args.context, args.vocab_size) for _ in range(args.steps)]
    mask = torch.stack([batch[2] for batch in batches])
    predicted = sum(len(batch[4]) for batch in batches) / mask.sum()
    print(f"{1 - mask.float().mean():.1%} of a batch is padding, {predicted:.1%} of its tokens are predicted")

    timed = measure(table, batches, args.rounds)
    losses = timed.first_loss
    ours, theirs = ([loss for name, loss in losses.items() if name.startswith(who)] for who in ("ours", "transformers"))
    apart = max(losses.values()) - min(losses.values())
    print(f"the first step's loss: ours {ours[0]:.6f}, transformers' {theirs[0]:.6f}; all within {apart:.1e}")
    assert apart <= TOLERANCE, losses
    report(table, timed, args.steps, mask.sum().item() / args.steps)


if __name__ == "__main__":
    main()
