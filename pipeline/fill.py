"""`fill`: the likeliest words for each [MASK] in a text. Needs the checkpoint of a trained BERT only."""

import sys

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from datamodules.encoded import SpecialIds, one_line
from datamodules.tokenizers.base import Tokenizer
from lit_models.nn.bert import BERT
from pipeline.errors import BadInput
from pipeline.trained import load_trained

MASK = "[MASK]"


def fill(text: str, run_dir: str | None = None, top_k: int = 5, ckpt_path: str = "best", device: str = "auto") -> None:
    """Prints the likeliest tokens for each [MASK] in a text with their probabilities, then the text with the best ones.

    A piece that goes on with the word before it is shown with ## in front.

    Args:
        text: a text in which [MASK] stands for each token to guess.
        run_dir: run folder of the model.
        top_k: tokens to show for each [MASK].
        ckpt_path: best, last or a file; with a file run_dir is not needed.
        device: auto, cpu, cuda, ...
    """
    parts = split_at_masks(text)
    net, tokenizer, _, _ = load_trained(BERT, "lit_models.bert.LitBERT", run_dir, ckpt_path, device)
    if not 1 <= top_k <= tokenizer.vocab_size:
        raise BadInput(f"top_k is {top_k}; it must be from 1 to {tokenizer.vocab_size}, the size of the vocabulary")
    ids, places = encode(parts, tokenizer, net.max_seq_len)
    best = guess(net, ids, places).topk(top_k)
    filled = parts[0]
    rows = zip(best.values.tolist(), best.indices.tolist(), parts[1:], strict=True)
    for number, (probabilities, tokens, part) in enumerate(rows, 1):
        table = Table(title=f"mask {number} of {len(places)}", title_justify="left")
        table.add_column("token")
        table.add_column("probability", justify="right")
        for token, probability in zip(tokens, probabilities, strict=True):
            table.add_row(Text(shown(tokenizer, token)), f"{probability:.4f}")
        Console().print(table)
        filled += tokenizer.decode(tokens[:1], skip_special_tokens=False) + part
    print(filled.strip())


def split_at_masks(text: str) -> list[str]:
    """What stands before, between and after the masks, as it is encoded: the space before a mask is part of the mask's token.

    Raises:
        BadInput: there is no mask.
    """
    *before, last = one_line(text).split(MASK)
    if not before:
        raise BadInput(f"the text has no {MASK}: write {MASK} where a word is to be guessed")
    return [*(part.removesuffix(" ") for part in before), last]


def encode(parts: list[str], tokenizer: Tokenizer, max_seq_len: int) -> tuple[list[int], list[int]]:
    """The ids of [CLS], the parts with a mask between any two, [SEP]; and where the masks stand.

    Raises:
        BadInput: these are more than max_seq_len.
    """
    special = SpecialIds.of(tokenizer)
    ids, places = [special.cls], []
    for i, part in enumerate(tokenizer.encode_batch(parts)):
        if i:
            places.append(len(ids))
            ids.append(special.mask)
        ids += part
    ids.append(special.sep)
    if len(ids) > max_seq_len:
        raise BadInput(
            f"the text has {len(ids)} tokens with [CLS] and [SEP]; the model takes {max_seq_len} (max_seq_len): shorten it"
        )
    return ids, places


@torch.no_grad()
def guess(net: BERT, ids: list[int], places: list[int]) -> Tensor:
    """(M, V) probabilities of the tokens at the places of a sequence."""
    input_ids = torch.tensor([ids], device=net.token_embedding.weight.device)
    predicted = torch.tensor(places, device=input_ids.device)
    logits = net(input_ids, torch.zeros_like(input_ids), torch.ones_like(input_ids, dtype=torch.bool), predicted)
    return logits.mlm.float().softmax(-1)


def shown(tokenizer: Tokenizer, token: int) -> str:
    """A token as people read it: a word without the space before it, a piece that goes on with a word as in ##ing."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    if text[:1].isalnum():
        return f"##{text}"
    text = text.removeprefix(" ") or text
    return text if text.strip() and text.isprintable() else repr(text)


def main(argv: list[str]) -> int:
    sys.argv[0] = "python -m pipeline fill"
    auto_cli(fill, args=argv[1:], as_positional=False)
    return 0
