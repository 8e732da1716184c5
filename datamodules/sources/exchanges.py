"""Rows of tables and hub sets as prompts with responses, or with a chosen and a rejected one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only

if TYPE_CHECKING:
    import datasets

READING = 1  # raise it when rows, or the cut of validation rows, change
LAST_TURN = "\n\nAssistant:"  # where prompts of Anthropic/hh-rlhf end
Exchange = dict[str, str]


def text_in(where: str, row: Mapping[str, Any], column: str) -> str:
    """The text of a cell; raises ValueError where it is none, or blank."""
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        kind = type(value).__name__
        raise ValueError(f"{where}: column {column!r} holds {str(value)[:40]} ({kind}), where text was expected")
    if value is None or not value.strip():
        raise ValueError(f"{where}: column {column!r} is empty: text was expected")
    return value


def turns_in(where: str, value: Sequence[Any], column: str) -> tuple[str, str]:
    """A list of {role, content} as a prompt, which ends in "assistant:", and the response, the assistant's last turn."""
    turns = []
    for number, turn in enumerate(value, 1):
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise ValueError(f"{where}: message {number} of column {column!r} has no role and content as text")
        turns.append((turn["role"], turn["content"].strip()))
    if not turns or turns[-1][0] != "assistant":
        found = turns[-1][0] if turns else "nobody"
        raise ValueError(f"{where}: the last message of column {column!r} is of {found}, where one of assistant was expected")
    if not turns[-1][1]:
        raise ValueError(f"{where}: the last message of column {column!r} is empty: a response was expected")
    before = "".join(f"{role}: {content}\n" for role, content in turns[:-1])
    return f"{before}assistant:", f" {turns[-1][1]}"


def response_in(where: str, row: Mapping[str, Any], columns: Mapping[str, str | None]) -> Exchange:
    """`prompt`, `response` and `row`, from the columns of prompt, context (which may be empty) and response, or of messages.

    Raises:
        ValueError: a part is missing, blank or no text.
    """
    if (messages := columns.get("messages")) is not None:
        value = row.get(messages)
        if not isinstance(value, list):
            raise ValueError(
                f"{where}: column {messages!r} holds {type(value).__name__}, where a list of messages was expected"
            )
        prompt, response = turns_in(where, value, messages)
        return {"prompt": prompt, "response": response, "row": where}
    prompt, response = (text_in(where, row, str(columns[name])) for name in ("prompt", "response"))
    named = columns.get("context")
    context = row.get(named) if named else None
    if context is not None and str(context).strip():
        prompt = f"{prompt}\n\n{str(context).strip()}"
    return {"prompt": prompt, "response": response, "row": where}


def preference_in(where: str, row: Mapping[str, Any], columns: Mapping[str, str | None]) -> Exchange:
    """`prompt`, `chosen`, `rejected` and `row`; cells are texts, or lists of messages.

    Without a prompt column the prompt is what stands before the last messages, or, of texts, what chosen and rejected have in
    common up to the assistant's last turn.

    Raises:
        ValueError: a part is missing, blank or no text, or there is no common prompt.
    """
    parts, prompts = [], []
    for name in ("chosen", "rejected"):
        column = str(columns[name])
        if isinstance(value := row.get(column), list):
            prompt, response = turns_in(where, value, column)
            prompts.append(prompt)
        else:
            response = text_in(where, row, column)
        parts.append(response)
    if columns.get("prompt") is not None:
        prompt = text_in(where, row, str(columns["prompt"]))
    elif prompts:
        prompt = prompts[0]
        if prompts != [prompt] * 2:
            raise ValueError(f"{where}: chosen and rejected answer different prompts")
    else:
        common = _common_start(*parts)
        end = common.rfind(LAST_TURN)
        if end < 0:
            raise ValueError(f"{where}: chosen and rejected have no common prompt that ends in {LAST_TURN!r}: name its column")
        prompt = common[: end + len(LAST_TURN)]
        parts = [part[len(prompt) :] for part in parts]
        if empty := next((name for name, part in zip(("chosen", "rejected"), parts, strict=True) if not part.strip()), None):
            raise ValueError(f"{where}: the {empty} response is empty")
    return {"prompt": prompt, "chosen": parts[0], "rejected": parts[1], "row": where}


def _common_start(a: str, b: str) -> str:
    length = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:length]


def to_exchange_splits(splits: Mapping[str, Iterable[Exchange]], val_fraction: float) -> datasets.DatasetDict:
    """Tables of the splits; validation rows are cut from train, where there are none, by whole prompts.

    Pairs that are equal say nothing: they are left out and counted.

    Raises:
        ValueError: a split is empty, or has one prompt to cut from.
    """
    import datasets

    made: dict[str, list[Exchange]] = {}
    for split, rows in splits.items():
        every = list(rows)
        made[split] = [row for row in every if "chosen" not in row or row["chosen"].strip() != row["rejected"].strip()]
        if equal := len(every) - len(made[split]):
            rank_zero_only(print)(f"{split}: {equal:,} pairs of equal responses are left out")
        if not made[split]:
            raise ValueError(f"the {split} split has no rows")
    if "train" in made and "validation" not in made:
        prompts = sorted({row["prompt"] for row in made["train"]}, key=lambda text: hashlib.sha256(text.encode()).digest())
        held = set(prompts[: max(1, round(len(prompts) * val_fraction))])
        if len(held) == len(prompts):
            raise ValueError("train has one prompt: no validation rows can be cut from it, give a validation split")
        made["validation"] = [row for row in made["train"] if row["prompt"] in held]
        made["train"] = [row for row in made["train"] if row["prompt"] not in held]
    order = [split for split in ("train", "validation", "test") if split in made]
    return datasets.DatasetDict({split: datasets.Dataset.from_list(made[split]) for split in order})
