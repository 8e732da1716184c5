"""`python -m pipeline tokenize`: learn a vocabulary from text and save it for many runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from datamodules.sources.base import TextSource
from datamodules.tokenizers.base import Tokenizer


def tokenize(
    source: str,
    vocab_size: int = 2048,
    out: str = "tok.json",
    special_tokens: list[str] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOS]"],  # noqa: B006 - never changed
    kind: Literal["bpe", "chars", "bytes"] = "bpe",
) -> None:
    """Train a tokenizer on the training split of a text, save it as one file, and show how well it compresses.

    Args:
        source: wikipedia, stdlib, a text file, folder or glob, or hub:NAME[:CONFIG[:COLUMN]].
        vocab_size: how many ids BPE may use, special tokens included; 256 bytes and these are the least.
        out: the file to write.
        special_tokens: take the first ids, in this order.
        kind: bytes need no training, chars have one id a character, bpe merges frequent neighbours.
    """
    from rich.console import Console
    from rich.table import Table

    if Path(out).is_dir():
        raise ValueError(f"out {out} is a folder: the name of a file was expected")
    start = time.perf_counter()
    tokenizer = make_tokenizer(kind, vocab_size, special_tokens)
    text = make_source(source)
    splits = text.load()
    train, validation = list(splits["train"]["text"]), list(splits["validation"]["text"])
    tokenizer.train(train)
    try:
        num_tokens = sum(map(len, tokenizer.encode_batch([p for t in validation for p in tokenizer.pieces(t)])))
    except ValueError as error:
        raise ValueError(f"{text.describe()}: validation, {error}") from None
    tokenizer.save(out)
    num_bytes = sum(len(t.encode()) for t in validation)

    table = Table(show_header=False)
    table.add_row("text", text.describe())
    table.add_row("vocabulary", f"{tokenizer.vocab_size:,}")
    table.add_row("documents", f"{len(train):,} train, {len(validation):,} validation")
    table.add_row("bytes per token on validation", f"{num_bytes / max(num_tokens, 1):.3f}")
    table.add_row("seconds", f"{time.perf_counter() - start:.1f}")
    table.add_row("file", str(out))
    console = Console()
    console.print(table)
    console.print("Use it in fit:", highlight=False)
    # On lines of their own and never wrapped, to be copied.
    console.print(usage(kind, out), soft_wrap=True, highlight=False, markup=False)


def main(argv: list[str]) -> None:
    """`argv` is the command's name and its options."""
    from jsonargparse import auto_cli

    auto_cli(tokenize, args=argv[1:], as_positional=False, prog=f"python -m pipeline {argv[0]}", allow_abbrev=False)


def usage(kind: str, path: str) -> str:
    """The options of `fit` that take the saved tokenizer."""
    options = f"  --data.init_args.tokenizer datamodules.tokenizers.{kind}.{CLASSES[kind]}"
    return options if kind == "bytes" else f"{options} --data.init_args.tokenizer.init_args.path {path}"


CLASSES = {"bpe": "BPETokenizer", "chars": "CharTokenizer", "bytes": "ByteTokenizer"}


def make_tokenizer(kind: str, vocab_size: int, special_tokens: list[str]) -> Tokenizer:
    from datamodules.tokenizers.bpe import BPETokenizer
    from datamodules.tokenizers.bytes import ByteTokenizer
    from datamodules.tokenizers.chars import CharTokenizer

    if kind == "bpe":
        return BPETokenizer(vocab_size, special_tokens)
    return CharTokenizer(special_tokens) if kind == "chars" else ByteTokenizer(special_tokens)


def make_source(name: str) -> TextSource:
    """The source that --source names. A file called wikipedia is ./wikipedia."""
    if name == "wikipedia":
        from datamodules.sources.wikipedia import Wikipedia

        return Wikipedia()
    if name == "stdlib":
        from datamodules.sources.stdlib import StdlibDocs

        return StdlibDocs()
    if name.startswith("hub:"):
        from datamodules.sources.hub import HubText

        data_set, config, column, *more = [*name.removeprefix("hub:").split(":"), "", ""]
        if not data_set or any(more):
            raise ValueError(f"source {name} should read hub:NAME[:CONFIG[:COLUMN]]")
        return HubText(data_set, config or None, column or "text")
    from datamodules.sources.files import TextFiles

    return TextFiles(name)
