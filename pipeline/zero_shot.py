"""Classes by their names or descriptions: texts in, the weights of a linear classifier out."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from datamodules.encoded import one_line
from datamodules.image_text import check_templates
from datamodules.image_text_pairs import Texts
from lit_models.clip import ensemble
from lit_models.nn.clip import CLIP
from pipeline.errors import BadInput


@torch.no_grad()
def class_weights(net: CLIP, texts: Texts, prompts: Sequence[Sequence[str]]) -> Float[Tensor, "C E"]:
    """Features of length 1 of each class: the mean over its prompts.

    Times `net.scale` they are the weights of a linear classifier of image features without bias: its logits are `net.logits`
    (less logit_bias, where there is one: the same for all classes, it changes no probability).

    Source: Radford et al. 2021 (CLIP), section 3.1.2.
    """
    device = net.logit_scale.device
    return torch.cat([ensemble(net.encode_text(texts(list(own)).to(device))[None]) for own in prompts])


def read_classes(given: str, templates: Sequence[str]) -> dict[str, list[str]]:
    """The prompts of each class: its name in every template, or its descriptions as they are.

    Args:
        given: names with commas between them; or a file: .txt with a name a line, .json with an object of name and description,
            or a list of descriptions.

    Raises:
        BadInput: fewer than two classes, an empty or repeated name, an empty description, or a file that is no such thing.
    """
    path = Path(given).expanduser()
    described: Mapping[str, object] = {}
    if path.suffix.lower() == ".json":
        described = _read_json(path)
        names = list(described)
    elif path.suffix.lower() == ".txt":
        names = [line for line in _read(path).splitlines() if line.strip()]
    else:
        names = given.split(",")
    names = [" ".join(name.split()) for name in names]
    where = f"--classes {given}" if len(given) < 60 else f"--classes {given[:60]}..."
    if "" in names:
        raise BadInput(f"{where} has an empty name: names with commas between them, or a .txt or .json file were expected")
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise BadInput(f"{where} names {twice!r} twice")
    if len(names) < 2:
        raise BadInput(f"{where} has {len(names)} class(es): at least two are needed to choose from")
    if described:
        return {name: _descriptions(name, own) for name, own in zip(names, described.values(), strict=True)}
    return {name: [template.replace("{}", name) for template in templates] for name in names}


def read_templates(path: str) -> list[str]:
    """The lines of a file, each with one {}. Raises BadInput for anything else."""
    templates = [line.strip() for line in _read(Path(path).expanduser()).splitlines() if line.strip()]
    try:
        check_templates(templates)
    except ValueError as error:
        raise BadInput(f"{path}: {error}") from None
    return templates


def hardly_known(texts: Texts, classes: Mapping[str, Sequence[str]]) -> list[str]:
    """Names of classes with a text that the tokenizer takes apart into pieces of less than two characters on average.

    The tokenizer was trained on the same texts as the network: it keeps whole what they often said.

    Args:
        classes: the texts of each class, in no template.
    """
    lines = [(name, one_line(text)) for name, own in classes.items() for text in own]
    encoded = texts.tokenizer.encode_batch([line for _, line in lines])
    length = [len(line) - 1 for _, line in lines]  # without the space in front
    rare = [n > 2 and len(ids) > n / 2 for n, ids in zip(length, encoded, strict=True)]
    return list(dict.fromkeys(name for (name, _), is_rare in zip(lines, rare, strict=True) if is_rare))


def num_cut(texts: Texts, prompts: Sequence[Sequence[str]]) -> int:
    """Prompts that are longer than the context, and are cut off."""
    encoded = texts.tokenizer.encode_batch([one_line(prompt) for own in prompts for prompt in own])
    return sum(len(ids) + 1 > texts.max_seq_len for ids in encoded)


def _descriptions(name: str, own: object) -> list[str]:
    found = [own] if isinstance(own, str) else own
    if not isinstance(found, list) or not found or not all(isinstance(text, str) and text.strip() for text in found):
        raise BadInput(f"the class {name!r} has {str(own)[:60]!r}, where a description or a list of them was expected")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows put a mark in front
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as UTF-8 text: {error}") from None


def _read_json(path: Path) -> Mapping[str, object]:
    def whole(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):  # else the last one would silently win
            twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise BadInput(f"{path} names {twice!r} twice")
        return found

    try:
        content = json.loads(_read(path), object_pairs_hook=whole)
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path} holds {type(content).__name__}, where an object of names and descriptions was expected")
    return content
